"""Scrubs the log: checks every record at a bounded rate (scrubBytesPerSecond). Shell."""

from __future__ import annotations

import trio

from rmqha.broker.core import BrokerCore
from rmqha.store.integrity.scrubber import PIECE_BYTES, SLICE_BYTES

IDLE_MS = 1000
"""Interval (ms) of checks for work."""
PASS_PAUSE_MS = 60_000
"""Pause (ms) between two passes, so that a short log is not read all the time."""
TURN_S = 0.001
"""Time (s) of slices after which other tasks get a turn; the native kernel does several in that time."""


class ScrubLoop:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    async def run(self) -> None:
        scrubber = self._core.scrubber
        while True:
            bytes_per_second = self._core.config.scrub_bytes_per_second
            if not bytes_per_second or self._core.driver.is_copying or not self._core.driver.is_log_free:
                await trio.sleep(IDLE_MS / 1000)
                continue
            piece = scrubber.next_piece(min(PIECE_BYTES, bytes_per_second))
            if piece is None:
                await trio.sleep(PASS_PAUSE_MS / 1000)
                continue
            # a disk that hangs keeps the thread, not the broker
            trouble = await trio.to_thread.run_sync(scrubber.read, piece, abandon_on_cancel=True)
            await self._check(*piece, trouble)
            await trio.sleep((piece[1] - piece[0]) / bytes_per_second)

    async def _check(self, start: int, end: int, trouble: str) -> None:
        """Check a part. Ends early if the log is changed or cut: the next part begins where this one ended."""
        scrubber, began_at_s = self._core.scrubber, trio.current_time()
        while start < end and self._core.driver.is_log_free:
            scrubber.check((start, min(end, start + SLICE_BYTES)), trouble)
            if scrubber.position <= start:
                return
            start = scrubber.position
            if trio.current_time() - began_at_s >= TURN_S:
                await trio.lowlevel.checkpoint()
                began_at_s = trio.current_time()
