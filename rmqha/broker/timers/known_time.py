"""Time up to which all stored timer messages have been read. Pure.

A message may be recalled until its time: it is delivered only after everything stored before has been read, since that
may contain its recall.
"""

from __future__ import annotations

from rmqha.broker.services.schedule import ScheduleLog
from rmqha.broker.timers.message import TIMER_QUEUE_ID
from rmqha.model.message import TIMER_TOPIC


class KnownTime:
    def __init__(self, log: ScheduleLog) -> None:
        self._log = log
        self.forget()

    def forget(self) -> None:
        self.ms = 0
        """Wall time (ms) before which all stored entries have been read, unless the clock is set back."""
        self._mark_ms = self._mark_phy_offset = 0
        self._mark_queue_end: int | None = None

    def check(self, taken_offset: int, now_ms: int) -> None:
        """Take note that entries below `taken_offset` have been read. Call it often: it detects a clock that is set
        back."""
        if not self._mark_ms or now_ms < self._mark_ms:
            self._set_mark(now_ms)
        self.ms = min(self.ms, now_ms)
        if self._is_reached(taken_offset):
            self.ms = self._mark_ms
            self._set_mark(now_ms)
            if self._is_reached(taken_offset):
                self.ms = now_ms

    def _set_mark(self, now_ms: int) -> None:
        self._mark_ms, self._mark_phy_offset, self._mark_queue_end = now_ms, self._log.max_phy_offset, None

    def _is_reached(self, taken_offset: int) -> bool:
        if self._mark_queue_end is None:
            # half a record at a slave's end is cut when it becomes master, and nobody may send for long
            if self._log.dispatched_offset < min(self._mark_phy_offset, self._log.max_phy_offset):
                return False
            self._mark_queue_end = self._log.queue_range(TIMER_TOPIC, TIMER_QUEUE_ID)[1]
        return taken_offset >= self._mark_queue_end
