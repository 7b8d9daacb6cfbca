"""Batch of what several sessions have sent in one turn of the poller, answered by the fast path in one call. Shell.

Each call costs one append, one settlement of acknowledgements and one dispatch, whatever number of sessions it is for.
With eight sessions that send eight messages each, that is most of the cost of a message.
"""

from __future__ import annotations

import time

from rmqha.host.net.poller import SLICE_COUNT, Poller
from rmqha.host.net.session import SendFastPath, Session

GATHERED_BYTES = 256 * 1024
"""Most bytes of a batch; a single read may be larger. Reads for which there is no room are handled one by one."""


class TurnReadBatch:
    """Reads of the present turn, which are handed to a `SendFastPath` in one call."""

    def __init__(self, fast_path: SendFastPath, poller: Poller) -> None:
        self._fast_path = fast_path
        self._poller = poller
        self._reads: list[tuple[Session, bytes]] = []
        self._size_bytes = 0

    def add(self, session: Session, data: bytes) -> bool:
        """Add a read to the batch, which is handled at the end of this turn. False if there is no turn or no room. A
        turn that serves one session uses a batch too: it is the shortest way."""
        if self._reads:
            if self._size_bytes + len(data) > GATHERED_BYTES:
                return False
        elif not self._poller.at_turn_end(self._handle_reads, alone=True):
            return False
        self._reads.append((session, data))
        self._size_bytes += len(data)
        return True

    def _handle_reads(self) -> None:
        """Answer the sends of the batch. Raises exceptions that end the process."""
        reads, size_bytes = self._reads, self._size_bytes
        self._reads, self._size_bytes = [], 0
        # reading the CPU time takes a microsecond or two, which a lone sender would wait for
        clock_ns = time.thread_time_ns if self._poller.has_waiting else time.monotonic_ns
        began_ns = clock_ns()
        try:
            found = self._fast_path.take(reads, SLICE_COUNT)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            for session, _ in reads:
                session.fail(error)
            return
        byte_us = (clock_ns() - began_ns) / 1000 / size_bytes
        for (session, data), (end, count) in zip(reads, found, strict=True):
            session.batch_handled(end, count, byte_us * len(data))
