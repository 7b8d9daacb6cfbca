"""From one master to the next, planned or not. In CP whoever becomes master holds what any master before it has
acknowledged, byte for byte, and from then on no older master acknowledges what the new one lacks: no two masters
acknowledge the end of one epoch. After a hand-over the same holds in AP. Seen at once, where survival needs all of it
to be there in the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import BLANK
from tests.simulation.checkers.logs.visibility import checksum
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

KEPT_PIECES = 64
"""Of the log's end, as it was acknowledged: a new master is compared with them."""


class _Piece(NamedTuple):
    start: int
    end: int
    checksum: int


def whole_records_end(broker: BrokerProcess, start: int, limit: int) -> int:
    """End of the last whole record of [`start`, `limit`) of its log, `start` without any. Slaves acknowledge halves of
    records too, and cut them when they start again; no client hears of them."""
    end, first = start, int(broker.store.min_phy_offset)
    while first <= end and end + BLANK.size <= limit:
        size, _ = BLANK.unpack_from(broker.store.view(PhyOffset(end), BLANK.size), 0)
        if size <= 0 or end + size > limit:
            break
        end += size
    return end


class TakeOvers:
    """`brokers` are the replicas that may become master."""

    def __init__(self, brokers: Sequence[BrokerProcess], *, cp: bool) -> None:
        self._brokers = brokers
        self._cp = cp
        self._pieces: deque[_Piece] = deque(maxlen=KEPT_PIECES)
        self._acked_at = -1
        """Where the last record begins that a client has got SEND_OK for."""
        self._acked_by: dict[str, tuple[int, int, int]] = {}
        """By host: its life, the epoch that it leads, and how far it acknowledges."""
        self._newest: tuple[int, str, int] = (0, "", 0)
        """The highest epoch in which a replica took the role of master, its host and its life."""
        self._handed: tuple[int, int, int] | None = None
        """The epoch of a master that has handed over, to which replica, and where its log ended."""
        self.judged_count = 0
        self.planned_count = 0

    def accepted_loss(self) -> None:
        """An operator elected uncleanly."""
        self._pieces.clear()
        self._acked_at = -1
        self._acked_by.clear()

    # --- a new master -----------------------------------------------------------------------------------------------
    def elected(self, broker: BrokerProcess, epoch: int) -> None:
        """`broker` takes the role of master."""
        if epoch > self._newest[0]:
            self._newest = epoch, broker.host, broker.life
        if self._handed is not None and self._handed[1] == broker.broker_id and epoch == self._handed[0] + 1:
            self._verify_planned(broker, self._handed[2])
        # by an old notice one goes on in its epoch of before: nobody follows, and what it acknowledges is looked at
        if self._cp and epoch >= self._newest[0] and not broker.has_bad_disk:
            self.judged_count += 1
            self._verify_end(broker, f"{broker.host} becomes master of epoch {epoch}")
            for piece in self._pieces:
                self._verify_piece(broker, piece, f"{broker.host} becomes master of epoch {epoch}")

    def _verify_planned(self, broker: BrokerProcess, end: int) -> None:
        self.planned_count += 1
        if broker.end_offset < end and not broker.lost_power:
            raise InvariantError(
                f"{broker.host} takes over and ends at {broker.end_offset}; the master handed over at {end}"
            )

    def _verify_end(self, broker: BrokerProcess, where: str) -> None:
        if broker.end_offset <= self._acked_at and not broker.lost_power:
            raise InvariantError(
                f"{where} and ends at {broker.end_offset}; the record at {self._acked_at} was acknowledged"
            )

    @staticmethod
    def _verify_piece(broker: BrokerProcess, piece: _Piece, where: str) -> None:
        if piece.start < broker.store.min_phy_offset or piece.end > broker.end_offset or broker.lost_power:
            return
        if broker.rotten and broker.has_rot(piece.start, piece.end):
            return
        if checksum(broker, piece.start, piece.end) != piece.checksum:
            raise InvariantError(
                f"{where} and holds other bytes in [{piece.start}, {piece.end}) than a master before it acknowledged"
            )

    # --- acknowledgements -------------------------------------------------------------------------------------------
    def answered(self, address: str, phy_offset: int) -> None:
        """A client has got SEND_OK for the record there."""
        if not self._cp:
            return
        self._acked_at = max(self._acked_at, phy_offset)
        newest = self._newest_master()
        if newest is not None:
            self._verify_end(newest, f"{address} answers a send, {newest.host} leads epoch {self._newest[0]}")

    def _newest_master(self) -> BrokerProcess | None:
        """While it lives, and in its epoch; with a sound disk."""
        for broker in self._brokers:
            if (broker.host, broker.life) == self._newest[1:] and broker.alive and not broker.has_bad_disk:
                return broker if broker.replica.is_master and broker.replica.epoch == self._newest[0] else None
        return None

    def stepped(self, master: BrokerProcess) -> None:
        """A step of a broker."""
        replica = master.replica
        if not replica.is_master:
            self._acked_by.pop(master.host, None)
            return
        waiting = replica._hand_over._waiting
        if waiting is not None and waiting.is_answered:
            self._handed = int(replica.epoch), int(waiting.target), int(master.store.max_phy_offset)
        elif self._handed is not None and self._handed[0] == replica.epoch:
            self._handed = None  # it goes on
        if self._cp:
            self._acknowledges(master)

    def _acknowledges(self, master: BrokerProcess) -> None:
        replica, released = master.replica, int(master.replica.releasable_offset)
        term = master.life, int(replica.epoch)
        known = self._acked_by.get(master.host)
        if known is not None and known[:2] == term:
            start, end = known[2], whole_records_end(master, known[2], released)
        else:
            start = end = whole_records_end(master, int(master.store.min_phy_offset), released)
        self._acked_by[master.host] = (*term, max(start, end))
        if end <= start or start < master.store.min_phy_offset or master.lost_power:
            return
        piece = _Piece(start, end, checksum(master, start, end))
        newest = self._newest_master()
        if newest is None or newest is master:
            self._pieces.append(piece)
        elif replica.epoch < self._newest[0]:
            where = f"{master.host} acknowledges up to {end} in epoch {replica.epoch}, {newest.host} leads"
            self._verify_piece(newest, piece, where)
