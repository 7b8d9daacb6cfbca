"""One master per (group, epoch); epochs of a replica never fall; no confirm offset of a serving master falls; no send
waits for a broker that is no master (ruling 13). The log of whoever becomes master ends with a whole record. A replica
keeps its id as long as its disk, and while the controllers know it."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.error import StoreError
from rmqha.model.identity import Role
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess


class Roles:
    def __init__(self, controllers: Sequence[ControllerProcess]) -> None:
        self._controllers = controllers
        self._master_of: dict[int, str] = {}
        self._epoch_of: dict[str, int] = {}
        self._confirm_of: dict[str, tuple[int, int, int]] = {}
        self._id_of: dict[tuple[str, int], int] = {}
        """By host and disks before."""

    @property
    def master_epochs(self) -> list[int]:
        """Epochs in which somebody was master."""
        return sorted(self._master_of)

    def has_led(self, host: str) -> bool:
        return host in self._master_of.values()

    def is_superseded(self, host: str) -> bool:
        """True if another host has been master in a later epoch, which this one need not know."""
        led = [epoch for epoch, master in self._master_of.items() if master == host]
        return max(self._master_of, default=0) > max(led, default=0)

    def role_taken(self, broker: BrokerProcess, role: int, epoch: int) -> None:
        if epoch < self._epoch_of.get(broker.host, 0) and not broker.is_restored:
            raise InvariantError(f"{broker.host} fell from epoch {self._epoch_of[broker.host]} to {epoch}")
        self._epoch_of[broker.host] = epoch
        if role == Role.MASTER:
            other = self._master_of.setdefault(epoch, broker.host)
            if other != broker.host:
                raise InvariantError(f"{broker.host} and {other} are both master of epoch {epoch}")
            if excess := half_bytes(broker):
                raise InvariantError(f"{broker.host} is master, and its log ends with {excess} bytes of a record")

    def stepped(self, broker: BrokerProcess) -> None:
        replica = broker.replica
        if replica.broker_id is not None and not any(item.wipe_count for item in self._controllers):
            known = self._id_of.setdefault((broker.host, broker.disk_count), replica.broker_id)
            if known != replica.broker_id:
                raise InvariantError(f"{broker.host} is replica {replica.broker_id}, and was {known} on the same disk")
        if not replica.is_master:
            self._confirm_of.pop(broker.host, None)
            if len(replica.ack_waits):
                raise InvariantError(f"{broker.host} is no master, and producers wait for its acknowledgements")
            return
        now = (broker.life, replica.epoch, broker.store.confirm_offset)
        before = self._confirm_of.get(broker.host)
        if now == before:
            return
        if before is not None and before[:2] == now[:2] and now[2] < before[2]:
            raise InvariantError(f"{broker.host} let its confirm offset fall from {before[2]} to {now[2]}")
        self._confirm_of[broker.host] = now


def half_bytes(broker: BrokerProcess) -> int:
    """Bytes of a record that is not whole, at its log's end; 0 also where rot hides what is whole."""
    store = broker.store
    try:
        return store.max_phy_offset - store._dispatch_service.whole_below(store.max_phy_offset)
    except StoreError:
        return 0
