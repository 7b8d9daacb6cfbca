"""Reads of one turn of a poller, handed to a taker in one call. Shell.

Behind a call lie one append, one settlement and one dispatch, whatever number of sessions it is for: with eight that
send eight messages each that is most of what a message costs.
"""

from __future__ import annotations

import time

from rmqha.host.net.poller import SLICE_COUNT, Poller
from rmqha.host.net.session import FrameTaker, Session

GATHERED_BYTES = 256 * 1024
"""Bytes of one call at most, but for one that alone is larger: who comes behind goes by himself."""


class TurnReads:
    """Implements Gatherer."""

    def __init__(self, taker: FrameTaker, poller: Poller) -> None:
        self._taker = taker
        self._poller = poller
        self._reads: list[tuple[Session, bytes]] = []
        self._size_bytes = 0

    def add(self, session: Session, data: bytes) -> bool:
        """Take part in the call at the end of this turn; False, and nothing is done, if there is none or no room. One
        alone comes so too: it is the shortest way."""
        if self._reads:
            if self._size_bytes + len(data) > GATHERED_BYTES:
                return False
        elif not self._poller.at_turn_end(self._take, alone=True):
            return False
        self._reads.append((session, data))
        self._size_bytes += len(data)
        return True

    def _take(self) -> None:
        """Raises what ends the process."""
        reads, size_bytes = self._reads, self._size_bytes
        self._reads, self._size_bytes = [], 0
        began_s = time.monotonic()
        try:
            found = self._taker.take(reads, SLICE_COUNT)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            for session, _ in reads:
                session.fail(error)
            return
        byte_us = (time.monotonic() - began_s) * 1e6 / size_bytes
        for (session, data), (end, count) in zip(reads, found, strict=True):
            session.taken(end, count, byte_us * len(data))
