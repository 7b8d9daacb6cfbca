"""Only members of the applied SyncStateSet, and those eligible beside it, are elected (docs/internals/spec), but where
the cause says that nobody knew a set or that a loss was accepted. Seen at the election, before anybody leads."""

from __future__ import annotations

from controller.state.event import Cause
from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess

MAY_TAKE_OTHERS = frozenset(
    {Cause.FIRST_ELECTION, Cause.SOLE_REPLICA, Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC}
)


class Elected:
    """Of group `name`. A controller that applies several entries in one step shows no state between them; the one that
    led, and decided, applied each by itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before: dict[tuple[str, int], tuple[int, int, tuple[int, ...] | None]] = {}
        """By controller and life: the index applied, the master epoch, and who might be elected if a set was known."""
        self.judged_count = 0

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        group = controller.machine.info.groups.get(self._name)
        if group is None:
            return
        key, index = (controller.host, controller.life), int(controller.machine._role_changes.index)
        before = self._before.get(key)
        if before is not None and before[0] == index:
            return
        electable = tuple(map(int, group.electable_ids)) if group.set_known else None
        self._before[key] = index, group.master_epoch, electable
        if before is None or index != before[0] + 1 or group.master_epoch <= before[1] or before[2] is None:
            return
        last = group.elections[-1]
        if last.cause in MAY_TAKE_OTHERS or last.broker_id is None:
            return
        self.judged_count += 1
        if last.broker_id not in before[2]:
            raise InvariantError(
                f"{controller.host}: replica {last.broker_id} is elected in epoch {group.master_epoch}"
                f" ({last.cause.name}); only {sorted(before[2])} could be"
            )
