"""CP: at the moment a master may acknowledge up to X, a majority of the group holds X, synced if the mode says so
(rulings 1 and 6); AP: as many as its acknowledgement level says. No send is answered that ends behind that. This is
seen at once, where survival needs the unlucky fault to follow."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.offset import PhyOffset
from tests.simulation.checkers.logs.visibility import checksum
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Copies:
    """`brokers` are the replicas that count for acknowledgements."""

    def __init__(self, brokers: Sequence[BrokerProcess], *, cp: bool, sync_flush: bool) -> None:
        self._brokers = brokers
        self._cp = cp
        self._sync_flush = sync_flush
        self._acked_to: dict[tuple[str, int, int], int] = {}
        self._may_ack_to = 0
        """The most that any master has been free to acknowledge: a slave may pass a send on."""
        self.static_to = 0
        """Where the log ended when the group got its controllers: what lies before is not theirs to judge."""
        self._alone_to = 0
        """What one of two has acknowledged alone: it stays acknowledged when they are to be three (ruling 15)."""

    def stepped(self, master: BrokerProcess) -> None:
        replica = master.replica
        if not replica.is_master:
            return
        self._may_ack_to = max(self._may_ack_to, replica.releasable_offset)
        if master.is_static:
            self._stepped_as_static(master)
            return
        if not self._cp:
            self._stepped_in_ap(master)
            return
        key = (master.host, master.life, replica.epoch)
        start, end = self._acked_to.get(key, self.static_to), replica.releasable_offset
        if end <= start:
            return
        self._acked_to[key] = end
        pair = len(self._brokers) == 2
        alone = pair and replica.sync_required
        if alone:
            self._alone_to = max(self._alone_to, end)
        elif pair and replica._commit_tracker.total_replicas > 2:
            start = max(start, self._alone_to)
            if end <= start:
                return
        needed = 1 if alone else len(self._brokers) // 2 + 1
        synced = self._sync_flush or (alone and len(self._brokers) > 1)
        holders = self._holders(master, start, end, synced=synced)
        if len(holders) < needed:
            # a slave acknowledges bytes as they come; half a record is no message, and a new master cuts it
            end = PhyOffset(end_of_records(master, end))
            if end <= max(start, master.store.min_phy_offset):
                return  # what was acknowledged is older than the log; a file that was rolled holds no message
            holders = self._holders(master, start, end, synced=synced)
        if len(holders) < needed:
            raise InvariantError(
                f"{master.host} acknowledges up to {end} in epoch {replica.epoch};"
                f" only {holders} hold{' it synced' if synced else ''}, {needed} are needed"
            )

    def answered(self, address: str, phy_offset: int) -> None:
        """A client has got SEND_OK for the record there."""
        if phy_offset >= self._may_ack_to:
            raise InvariantError(f"{address} answers SEND_OK for {phy_offset}; {self._may_ack_to} may be acknowledged")

    def _stepped_in_ap(self, master: BrokerProcess) -> None:
        """What `docs/start/guarantees.md` says of each acknowledgement level."""
        replica = master.replica
        config = replica._config  # that of its process is the next life's, where a roll has found it paused
        whole_set = config.all_ack_in_sync_state_set
        if not whole_set and (config.broker_role == "ASYNC_MASTER" or config.enable_auto_in_sync_replicas):
            return
        key = (master.host, master.life, replica.epoch)
        # what a master has when it begins, in its epoch again too, nobody waits for any more
        start, end = self._acked_to.setdefault(key, master.store.max_phy_offset), replica.releasable_offset
        if end <= start:
            return
        self._acked_to[key] = end
        holders = self._holders(master, max(start, master.store.min_phy_offset), end, synced=self._sync_flush)
        counted = [broker.host for broker in self._brokers if broker.broker_id in replica._set.state.union]
        lacking = [host for host in counted if host not in holders]
        if lacking if whole_set else len(holders) < config.in_sync_replicas:
            raise InvariantError(
                f"{master.host} acknowledges up to {end} in epoch {replica.epoch}; only {holders} of {counted} hold it"
            )

    def _stepped_as_static(self, master: BrokerProcess) -> None:
        """A SYNC_MASTER and one slave, whichever."""
        replica = master.replica
        key = (master.host, master.life, replica.epoch)
        start = self._acked_to.get(key, int(master.store.min_phy_offset))
        end = int(replica.releasable_offset)
        if end <= start:
            return
        self._acked_to[key] = end
        holders = self._holders(master, start, end, synced=self._sync_flush)
        if master.host not in holders or len(holders) < 2:
            raise InvariantError(f"{master.host}, without a controller, acknowledges up to {end}; {holders} hold it")

    def _holders(self, master: BrokerProcess, start: int, end: int, *, synced: bool) -> list[str]:
        return [broker.host for broker in self._brokers if self._holds(broker, master, start, end, synced=synced)]

    @staticmethod
    def _holds(broker: BrokerProcess, master: BrokerProcess, start: int, end: int, *, synced: bool) -> bool:
        if broker.lost_power:
            return True  # it may have held it; what a loss of power may cost is for survival to judge
        store = broker.store
        has = store.synced_offset if synced else store.max_phy_offset
        low = max(start, store.min_phy_offset, master.store.min_phy_offset)
        if any(item.rotten and item.has_rot(low, end) for item in (broker, master)):
            return True  # it is for the others to keep it
        return has >= end and (low >= end or checksum(broker, low, end) == checksum(master, low, end))


def end_of_records(broker: BrokerProcess, end: int) -> int:
    """Of those that end at or below `end`."""
    position = int(broker.store.min_phy_offset)
    while position + 4 <= end:
        size = int.from_bytes(broker.store.view(PhyOffset(position), 4), "big")
        if not size or position + size > end:
            return position
        position += size
    return position
