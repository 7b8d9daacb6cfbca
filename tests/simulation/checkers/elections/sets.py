"""A set has one epoch, as the controllers apply it and as masters know it; and in CP a master waits for everybody whom
a set may have that is in force by now (ruling 1). Seen at once, where survival needs the unlucky election to follow."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

Members = tuple[int, ...]


class Sets:
    """`brokers` are the replicas of group `name` that may be in a set."""

    def __init__(self, name: str, brokers: Sequence[BrokerProcess], *, cp: bool) -> None:
        self._name = name
        self._brokers = brokers
        self._cp = cp
        self._applied: dict[tuple[int, int, int], Members] = {}
        """By disks lost, master epoch and set epoch."""
        self._newest: tuple[tuple[int, int], int, int, Members] = ((-1, -1), -1, -1, ())
        """(Disks lost, index applied), master epoch, set epoch and members."""
        self._known: dict[str, tuple[int, int, int, Members, Members, bool]] = {}
        """By host: its life, the epoch that it leads, the set's epoch, who is confirmed and who counts, and whether it
        is blind."""

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        group = controller.machine.info.groups.get(self._name)
        if group is None or not group.set_known:
            return
        applied_to = controller.wipe_count, int(controller.machine._feed.index)
        if applied_to <= self._newest[0]:
            return
        members = tuple(sorted(map(int, group.sync_state_set)))
        key = controller.wipe_count, int(group.master_epoch), int(group.sync_state_set_epoch)
        before = self._applied.setdefault(key, members)
        if before != members:
            raise InvariantError(f"{controller.host}: set {key[2]} of epoch {key[1]} is {members}, and was {before}")
        is_news = self._newest[1:] != (*key[1:], members)
        self._newest = (applied_to, *key[1:], members)
        if is_news:
            for broker in self._brokers:
                if broker.alive and broker.host in self._known:
                    self._judge(broker)

    def stepped(self, broker: BrokerProcess) -> None:
        """A step of a broker."""
        replica = broker.replica
        if not replica.is_master:
            self._known.pop(broker.host, None)
            return
        state = replica._set.state
        now = (broker.life, int(replica.epoch), state.set_epoch, state.confirmed, state.union, state.blind)
        before = self._known.get(broker.host)
        if now == before:
            return
        self._known[broker.host] = now
        if before is not None and before[:2] == now[:2] and now[2] < before[2]:
            raise InvariantError(f"{broker.host} takes set {now[2]} for news after set {before[2]} of epoch {now[1]}")
        self._judge(broker)

    def _judge(self, broker: BrokerProcess) -> None:
        _, epoch, set_epoch, confirmed, union, blind = self._known[broker.host]
        _, applied_epoch, applied_set_epoch, members = self._newest
        if applied_epoch != epoch or applied_set_epoch < set_epoch or not self._cp:
            return
        if applied_set_epoch == set_epoch:
            if not set(members) <= set(confirmed):
                raise InvariantError(f"{broker.host} calls {confirmed} set {set_epoch} of epoch {epoch}: {members}")
        elif not blind and not set(members) <= set(union):
            raise InvariantError(
                f"{broker.host} waits for {union} in epoch {epoch}, and set {applied_set_epoch} is {members}"
            )
