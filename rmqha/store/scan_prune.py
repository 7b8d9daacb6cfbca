"""What of a log need not be read for a filter: whole stretches before and after what it can let through.

A cut inside a file needs a place of which it is certain that a record starts there (`scan_boundary`). Without queues
only whole files are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rmqha.store.scan_boundary import Boundaries
from rmqha.store.scan_columns import Records
from rmqha.store.scan_files import StoreView
from rmqha.store.scan_filter import Interval, RowFilter
from rmqha.store.scan_position import between

TIMESTAMP_SLACK_MS = 600_000
"""By how much brokers' clocks may have stepped back: no record is stored so much before an earlier one."""
NEAR_BYTES = 256 * 1024
"""A cut is looked for until it is known so closely."""
ANY_TIME = Interval()


def prune(view: StoreView, rows: RowFilter, slack_ms: int) -> StoreView:
    """The part of the log that the bounds of physicalOffset and storeTimestamp leave, at record starts; more than
    needed, never less, if no record's storeTimestamp is more than `slack_ms` behind that of an earlier record."""
    offsets, times = rows.physical_offsets, rows.store_timestamps
    start, end = view.min_offset, view.end_offset
    search = _Search(view)
    try:
        if offsets.low > start:
            start = search.last(start, end, lambda offset, stored_ms: offset <= offsets.low)
        if offsets.high < end:
            end = search.first(start, end, lambda offset, stored_ms: offset > offsets.high)
        if times.low > ANY_TIME.low:
            start = search.last(start, end, lambda offset, stored_ms: stored_ms < times.low - slack_ms)
        if times.high < ANY_TIME.high:
            end = search.first(start, end, lambda offset, stored_ms: stored_ms > times.high + slack_ms)
    finally:
        search.close()
    return between(view, start, end) if start < end else replace(view, files=(), starts=(), end_offset=start)


class _Search:
    """Looks for cuts by halving. Its answers are record starts of the log, or its ends."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._boundaries = Boundaries(view)

    def close(self) -> None:
        self._boundaries.close()

    def last(self, start: int, end: int, holds: Callable[[int, int], bool]) -> int:
        """A late place of [start, end) whose record's (physical offset, storeTimestamp) the condition holds for;
        `start` if none is found."""
        return self._halve(start, end, holds)[0]

    def first(self, start: int, end: int, holds: Callable[[int, int], bool]) -> int:
        """An early place of [start, end) for whose record the condition holds; `end` if none is found."""
        return self._halve(start, end, lambda offset, stored_ms: not holds(offset, stored_ms))[1]

    def _halve(self, start: int, end: int, below: Callable[[int, int], bool]) -> tuple[int, int]:
        """The last place seen that is below, and the first one that is not."""
        low, high = start, end
        places = [offset for offset in self._view.starts if start < offset < end]
        floor, ceiling = 0, len(places)
        while floor < ceiling:
            middle = (floor + ceiling) // 2
            stored_ms = _stored_ms(self._boundaries.at(places[middle]))
            if stored_ms is not None and below(places[middle], stored_ms):
                low, floor = places[middle], middle + 1
                continue
            ceiling = middle
            if stored_ms is not None:
                high = places[middle]
        floor, ceiling = low, places[ceiling] if ceiling < len(places) else end
        while self._boundaries.can_tell and ceiling - floor > NEAR_BYTES:
            middle = (floor + ceiling) // 2
            found = self._boundaries.after(middle, ceiling)
            stored_ms = _stored_ms(found)
            if found is None or stored_ms is None:
                ceiling = middle
                continue
            at = int(found.number("physicalOffset")[0])
            if below(at, stored_ms):
                low = floor = at
            else:
                ceiling, high = middle, at
        return low, high


def _stored_ms(record: Records | None) -> int | None:
    return None if record is None else int(record.number("storeTimestamp")[0])
