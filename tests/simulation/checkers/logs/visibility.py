"""Nothing above the confirm offset is visible. In CP nothing that was visible is ever cut or changed, and a master that
begins to serve shows all that consumers have seen."""

from __future__ import annotations

from zlib import crc32

from rmqha.model.offset import PhyOffset
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class Visibility:
    """Keeps a checksum of every visible stretch of the log, by its end, as the first broker showed it."""

    def __init__(self, cp: bool) -> None:
        self._cp = cp
        self._shown_to = 0
        self._pieces: list[tuple[int, int, int]] = []
        self._shown_in = 0
        """Epoch of the broker that has shown most."""
        self._loss_accepted = False
        self._serving: dict[str, tuple[int, int]] = {}
        """(life, epoch) in which each host was last seen to serve."""

    def stepped(self, broker: BrokerProcess) -> None:
        store = broker.store
        end = store.dispatched_offset
        if end > store.confirm_offset:
            raise InvariantError(f"{broker.host} shows records up to {end}; only {store.confirm_offset} is confirmed")
        if not self._cp:
            return
        self._begins(broker, end)
        if self._loss_accepted and not (broker.replica.is_master or broker.replica.is_following):
            return  # it may hold what was given up, and says so
        start, removed_to = self._shown_to, store.min_phy_offset
        if removed_to > start and removed_to > end:
            raise InvariantError(
                f"{broker.host} has removed everything below {removed_to}; consumers could see {start} at most"
            )
        if end > start >= removed_to and not (broker.rotten and broker.has_rot(start, end)):
            self._pieces.append((start, end, checksum(broker, start, end)))
            self._shown_to, self._shown_in = end, broker.replica.epoch

    def _begins(self, broker: BrokerProcess, end: int) -> None:
        """A look at whether it serves, and has just begun to."""
        if not broker.driver.is_serving:
            return
        term = broker.life, broker.replica.epoch
        if self._serving.get(broker.host) == term:
            return
        self._serving[broker.host] = term
        if broker.replica.epoch >= self._shown_in and end < self._shown_to:
            raise InvariantError(
                f"{broker.host} serves as master of epoch {broker.replica.epoch} and shows records up to {end};"
                f" consumers have seen up to {self._shown_to}"
            )

    def accepted_loss(self, end_offset: int) -> None:
        """An operator elected uncleanly a replica whose log ends there."""
        self._pieces = [piece for piece in self._pieces if piece[1] <= end_offset]
        self._shown_to = self._pieces[-1][1] if self._pieces else 0
        self._loss_accepted = True

    def verify(self, broker: BrokerProcess) -> None:
        """At the end, on a replica that is whole."""
        if not self._cp:
            return
        if broker.store.max_phy_offset < self._shown_to:
            raise InvariantError(
                f"{broker.host} ends at {broker.store.max_phy_offset}; consumers have seen up to {self._shown_to}"
            )
        for start, end, shown in self._pieces:
            if start < broker.store.min_phy_offset:
                continue  # removed by rule
            if checksum(broker, start, end) != shown:
                raise InvariantError(f"{broker.host} holds other bytes in [{start}, {end}) than consumers have seen")


def checksum(broker: BrokerProcess, start: int, end: int) -> int:
    """Of the bytes that the broker was given: what rots under it may be mended."""
    value, position = 0, start
    while position < end:
        piece = broker.store.view(PhyOffset(position), end - position)
        if not len(piece):
            raise InvariantError(f"{broker.host} has no bytes at {position}, below {end}")
        value = crc32(_as_given(broker, position, piece), value)
        position += len(piece)
    return value


def _as_given(broker: BrokerProcess, position: int, piece: memoryview) -> memoryview:
    """Bytes of the log from `position` on as they were before theme `rotting` struck them."""
    inside = [offset for offset in broker.struck if position <= offset < position + len(piece)]
    if not inside:
        return piece
    data = bytearray(piece)
    for offset in inside:
        sound, rotten = broker.struck[offset]
        if data[offset - position] == rotten:
            data[offset - position] = sound
    return memoryview(data)
