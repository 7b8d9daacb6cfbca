"""Every replica that the controllers may elect holds what was acknowledged (rulings 1, 4, 9). In CP: members of the
applied SyncStateSet, and those that are eligible beside it. In AP, where members may lack the last moments: those that
are eligible, of what the master of this epoch has acknowledged. Seen at once, where survival needs such a replica to be
elected. Who runs with an unclean store takes no mastership, whoever is told of it, and says so with its first word
(ruling 3): until the controllers have heard that, it is not judged."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.checkers.logs.copies import end_of_records
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess


class Electable:
    """`brokers` are the replicas of group `name` that may be elected."""

    def __init__(self, name: str, brokers: Sequence[BrokerProcess], *, cp: bool) -> None:
        self._name = name
        self._brokers = brokers
        self._cp = cp
        self._acked_to = 0
        self._acked_by = ""
        self._applied_to = (-1, -1)
        """Disks lost, and the index of the newest entry that any controller has applied: who starts again, or comes
        late, has older states for a while, and decides nothing by them."""
        self._shown: tuple[int, int, int, tuple[int, ...]] = (-1, -1, -1, ())
        """Disks lost, master epoch, set epoch and who is judged."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Of those who are judged."""
        return self._shown[3]

    def acknowledges(self, master: BrokerProcess) -> None:
        """A step of a broker."""
        end = master.replica.releasable_offset
        if not self._cp and master.replica.epoch != self._shown[1]:
            return
        if end > self._acked_to and master.replica.is_master:
            self._acked_to, self._acked_by = end, master.host
            self._verify()

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        group = controller.machine.info.groups.get(self._name)
        if group is None or not group.set_known:
            return
        applied_to = controller.wipe_count, controller.machine._role_changes.index
        if applied_to <= self._applied_to:
            return
        self._applied_to = applied_to
        judged = group.electable_ids if self._cp else group.eligible
        shown = (controller.wipe_count, group.master_epoch, group.sync_state_set_epoch, judged)
        if shown != self._shown:
            new_epoch = shown[:2] != self._shown[:2]
            self._shown = shown
            if group.accepts_loss or (not self._cp and new_epoch):
                self._acked_to = 0  # an operator's choice, or the fork of a master that another has followed
            self._verify()

    def _verify(self) -> None:
        for broker in self._brokers:
            if broker.broker_id not in self._shown[3] or broker.end_offset >= self._acked_to:
                continue
            if broker.lost_power or (broker.alive and broker.store.unclean):
                continue
            (master,) = [item for item in self._brokers if item.host == self._acked_by]
            if broker.end_offset < end_of_records(master, self._acked_to):
                raise InvariantError(
                    f"{broker.host} may be elected and ends at {broker.end_offset};"
                    f" {self._acked_by} acknowledges up to {self._acked_to}"
                )
