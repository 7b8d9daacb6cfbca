"""Offsets from which groups pop on: committed ones, and beyond them what checkpoints on their way hold.

A checkpoint counts once the group's ack rule holds it. Only then is the offset behind it committed, so that no replica
passes over messages whose checkpoint it may lack.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rmqha.broker.tables.offsets import OffsetTable

MAX_PLACES = 1_000_000


class PopQueue(NamedTuple):
    """A queue as one group pops from it."""

    topic: str
    group: str
    queue_id: int


class Took:
    """Entries of a place that a checkpoint on its way holds, up to `next_offset`."""

    __slots__ = ("next_offset", "place", "timer_offset")

    def __init__(self, place: PopQueue, next_offset: int, timer_offset: int) -> None:
        self.place = place
        self.next_offset = next_offset
        self.timer_offset = timer_offset
        """Entry of the timer topic's queue from which on the checkpoint waits there."""


class PopPositions:
    def __init__(self, offsets: OffsetTable) -> None:
        self._offsets = offsets
        self._taken: dict[PopQueue, deque[Took]] = {}
        """Takes on their way, in the log's order."""

    def next_offset(self, place: PopQueue) -> int | None:
        """None if the group has none here yet."""
        committed = self._offsets.query(place.group, place.topic, place.queue_id)
        taken = self._taken.get(place)
        if not taken:
            return committed
        return max(taken[-1].next_offset, committed or 0)

    def take(self, place: PopQueue, next_offset: int, timer_offset: int) -> Took:
        took = Took(place, next_offset, timer_offset)
        self._taken.setdefault(place, deque()).append(took)
        return took

    def passed(self, place: PopQueue, next_offset: int) -> None:
        """Nothing up to there is wanted."""
        taken = self._taken.get(place)
        if taken:
            taken[-1].next_offset = max(next_offset, taken[-1].next_offset)
        else:
            self._commit(place, next_offset)

    def held(self, took: Took) -> None:
        """Its checkpoint counts, and so do those before it in the log."""
        taken = self._taken.get(took.place)
        if taken is None or took not in taken:
            return  # the group was put elsewhere since
        while taken.popleft() is not took:
            pass
        if not taken:
            del self._taken[took.place]
        self._commit(took.place, took.next_offset)

    def forget(self, place: PopQueue) -> None:
        """The group goes on elsewhere: what is on its way moves it no more."""
        self._taken.pop(place, None)

    def clear(self) -> None:
        self._taken.clear()

    def raise_to(self, place: PopQueue, next_offset: int) -> bool:
        """A checkpoint that counts says that the group is so far; True if that was not known."""
        if next_offset <= (self._offsets.query(*_of(place)) or 0):
            return False
        return self._commit(place, next_offset)

    def first_timer_offset(self) -> int | None:
        """The first entry of the timer topic's queue that may be a checkpoint whose offset is not committed."""
        return min((took.timer_offset for taken in self._taken.values() for took in taken), default=None)

    def _commit(self, place: PopQueue, offset: int) -> bool:
        return self._offsets.commit(*_of(place), offset)


def _of(place: PopQueue) -> tuple[str, str, int]:
    return place.group, place.topic, place.queue_id
