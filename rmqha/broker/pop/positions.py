"""Next offsets of groups that pop: committed ones, and beyond them those of uncommitted records.

The records that advance a group are checkpoints and ordered progress. The offset is committed once all replicas that
may be elected have the record on their disks: no replica skips messages whose checkpoint it may lack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rmqha.broker.tables.offsets import OffsetTable

MAX_PLACES = 1_000_000
_NOT_STORED = 2**63


class PopQueue(NamedTuple):
    """A queue for one group that pops."""

    topic: str
    group: str
    queue_id: int


class HeldEntries:
    """Entries of a queue that an uncommitted record has taken, up to `next_offset`."""

    __slots__ = ("end_offset", "next_offset", "place", "pop_ms", "timer_offset")

    def __init__(self, place: PopQueue, pop_ms: int, next_offset: int, timer_offset: int) -> None:
        self.place = place
        self.pop_ms = pop_ms
        self.next_offset = next_offset
        self.end_offset = _NOT_STORED
        """End of the record in the log."""
        self.timer_offset = timer_offset
        """Entry of the timer topic's queue at or after which the checkpoint waits."""


def stand_at(takes: Iterable[HeldEntries], end_offset: int) -> None:
    """Set the end of the record of these entries, after those of all earlier ones."""
    for took in takes:
        took.end_offset = end_offset


class PopPositions:
    def __init__(self, offsets: OffsetTable) -> None:
        self._offsets = offsets
        self._taken: dict[tuple[str, str, int], deque[HeldEntries]] = {}
        """Uncommitted entries by `PopQueue`, in the order of the log."""
        self._under_way: deque[HeldEntries] = deque()
        """Uncommitted entries of all queues."""
        self._set_back_count = offsets.set_back_count

    def next_offset(self, place: PopQueue) -> int | None:
        """Next offset of the group in the queue; None without one."""
        if self._set_back_count != self._offsets.set_back_count:
            self._forget_void()
        committed = self._offsets.query(place.group, place.topic, place.queue_id)
        taken = self._taken.get(place)
        if not taken:
            return committed
        return max(taken[-1].next_offset, committed or 0)

    def under_way_offset(self, place: PopQueue) -> int:
        """End of the entries that uncommitted records have taken, 0 without any."""
        taken = self._taken.get(place)
        return taken[-1].next_offset if taken else 0

    def is_settled(self, place: PopQueue, offset: int) -> bool:
        """True if no replica that may be elected gives that offset again."""
        return offset < (self._offsets.query(*_of(place)) or 0)

    def pop_ms(self, wall_ms: int) -> int:
        """Time (ms) of a pop."""
        return self._offsets.pop_ms(wall_ms)

    def is_void(self, place: PopQueue, pop_ms: int) -> bool:
        """True of a pop before the group's last reset or removal, which does not show its offset."""
        set_back_ms = self._offsets.set_back_ms(*_of(place))
        return set_back_ms > 0 and pop_ms <= set_back_ms

    def _forget_void(self) -> None:
        self._set_back_count = self._offsets.set_back_count
        for place in [taken[-1].place for taken in self._taken.values()]:
            if self.is_void(place, self._taken[place][-1].pop_ms):
                self.forget(place)

    def next_offsets(self, topic: str, group: str, queue_ids: Sequence[int]) -> list[int | None]:
        """Results of `next_offset` for queues of the topic."""
        committed, taken = self._offsets.queues_of(group, topic).get, self._taken
        found = [committed(queue_id) for queue_id in queue_ids]
        if taken:
            if self._set_back_count != self._offsets.set_back_count:
                self._forget_void()
            for place, queue_id in enumerate(queue_ids):
                if takes := taken.get((topic, group, queue_id)):
                    found[place] = max(takes[-1].next_offset, found[place] or 0)
        return found

    def take(self, place: PopQueue, pop_ms: int, next_offset: int, timer_offset: int) -> HeldEntries:
        """Advance the group when the record is stored and committed; `stand_at` sets the record's end."""
        took = HeldEntries(place, pop_ms, next_offset, timer_offset)
        self._taken.setdefault(place, deque()).append(took)
        self._under_way.append(took)
        return took

    def passed(self, place: PopQueue, next_offset: int) -> None:
        """Advance the group past entries that it does not want."""
        taken = self._taken.get(place)
        if taken:
            taken[-1].next_offset = max(next_offset, taken[-1].next_offset)
        else:
            self._commit(place, next_offset)

    def advance(self, settled_offset: int) -> None:
        """Commit offsets of records below `settled_offset`, which are committed and durable."""
        if self._set_back_count != self._offsets.set_back_count:
            self._forget_void()
        while self._under_way and self._under_way[0].end_offset <= settled_offset:
            took = self._under_way.popleft()
            taken = self._taken.get(took.place)
            if taken is None or taken[0] is not took:
                continue  # the group was put elsewhere since
            taken.popleft()
            if not taken:
                del self._taken[took.place]
            self.raise_to(took.place, took.next_offset)

    def forget(self, place: PopQueue) -> None:
        """Drop uncommitted entries of a group whose offset was reset."""
        self._taken.pop(place, None)

    def clear(self) -> None:
        self._taken.clear()
        self._under_way.clear()

    def raise_to(self, place: PopQueue, next_offset: int) -> bool:
        """Advance the group by a committed record; True if the offset was lower."""
        if next_offset <= (self._offsets.query(*_of(place)) or 0):
            return False
        return self._commit(place, next_offset)

    def raise_by_pop(self, place: PopQueue, pop_ms: int, next_offset: int) -> bool:
        """Advance the group by a pop in the log. A pop after a reset has consumed that reset."""
        if self.is_void(place, pop_ms):
            return False
        if self._offsets.set_back_ms(*_of(place)):
            self._offsets.take_reset(*_of(place))
        return self.raise_to(place, next_offset)

    def first_timer_offset(self) -> int | None:
        """First entry of the timer topic's queue that may be a checkpoint whose offset is not committed."""
        return self._under_way[0].timer_offset if self._under_way else None

    def _commit(self, place: PopQueue, offset: int) -> bool:
        return self._offsets.commit(*_of(place), offset)


def _of(place: PopQueue) -> tuple[str, str, int]:
    return place.group, place.topic, place.queue_id
