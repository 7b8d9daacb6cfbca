"""The time up to which all timer messages that were stored are known. Pure.

A message may be taken back until its time has come: it is delivered only once whatever was stored before has been
looked at, for that may take it back.
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
        """Entries that were stored before this wall time are known, as long as the clock is not put back."""
        self._mark_ms = self._mark_phy_offset = 0
        self._mark_queue_end: int | None = None

    def check(self, taken_offset: int, now_ms: int) -> None:
        """Entries of the queue below `taken_offset` are known. Call it often: a clock that is put back is seen here."""
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
