"""Data plane: records that need not be read in the log again: those that this broker has just appended as master, and
those that it has read for the queues.

Only a shortcut: a record counts where the log is dispatched from next, and whatever is not here is read from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rmqha.store.queue.dispatcher import DispatchedBlock, DispatchedRecord, DispatchedRun

MAX_COUNT = 16_384
"""Records that one follower may leave; then it has to read the log."""


class PendingDispatch(deque[DispatchedRecord | DispatchedRun | DispatchedBlock]):
    """Records that wait for one reader, in log order; it takes from the left."""

    record_count = 0
    """Records, those of runs and blocks included."""
    reached_offset = -1
    """Offset that the reader has reached; -1 if it is not known."""

    @property
    def end_offset(self) -> int:
        """Offset up to which the reader has, or finds here, all records; -1 if it is not known."""
        return self[-1][0] + self[-1][1] if self else self.reached_offset

    def add(
        self, items: Sequence[DispatchedRecord] | Sequence[DispatchedRun] | Sequence[DispatchedBlock], count: int
    ) -> None:
        if self.record_count > MAX_COUNT:
            self.clear()
        self.extend(items)
        self.record_count += count

    def take(self) -> None:
        """Remove the first item, which has been dispatched."""
        item = self.popleft()
        if isinstance(item, DispatchedRecord):
            self.record_count -= 1
        else:
            self.record_count -= item.record_count if isinstance(item, DispatchedBlock) else len(item.tails)

    def forget_below(self, phy_offset: int) -> None:
        """Drop those that begin below the offset that the reader has reached: they were read from the log meanwhile."""
        self.reached_offset = phy_offset
        while self and self[0][0] < phy_offset:
            self.take()

    def take_part(self, run: DispatchedRun, count: int) -> DispatchedRun:
        """The first `count` records of `run`, which is the first item: the rest of it stays."""
        self.record_count -= count
        if count == len(run.tails):
            self.popleft()
            return run
        self[0] = run.part(count, len(run.tails))
        return run.part(0, count)

    def clear(self) -> None:
        super().clear()
        self.record_count, self.reached_offset = 0, -1


class DispatchCache:
    """Records that this master has just appended, or that the first follower has read in the log, in log order, for
    each follower apart. Call `clear` whenever bytes of the log may become others."""

    def __init__(self) -> None:
        self._followers: list[PendingDispatch] = []

    def follow(self) -> PendingDispatch:
        """Records that are added from now on."""
        follower = PendingDispatch()
        self._followers.append(follower)
        return follower

    def add(self, records: Sequence[DispatchedRecord]) -> None:
        for follower in self._followers:
            follower.add(records, len(records))

    def add_run(self, run: DispatchedRun) -> None:
        for follower in self._followers:
            follower.add((run,), len(run.tails))

    def add_block(self, block: DispatchedBlock) -> None:
        for follower in self._followers:
            follower.add((block,), block.record_count)

    def end_offset(self) -> int:
        """Offset up to which all but the first follower have, or find here, all records; -1 if there is none."""
        ends = {follower.end_offset for follower in self._followers[1:]}
        return ends.pop() if len(ends) == 1 else -1

    def pass_on(self, blocks: Sequence[DispatchedBlock]) -> None:
        """Add blocks that the first follower has read from `end_offset` on."""
        for follower in self._followers[1:]:
            follower.add(blocks, sum(block.record_count for block in blocks))

    def clear(self) -> None:
        for follower in self._followers:
            follower.clear()
