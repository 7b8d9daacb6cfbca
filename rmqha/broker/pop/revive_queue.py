"""State of one revive queue on its master: pending checkpoints and their acknowledgements. Pure.

Timer messages come here in the order of their times: a checkpoint a second before its time, acknowledgements at it.
Late acknowledgements follow. If timers were late, an acknowledgement may precede its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from rmqha.broker.pop.checkpoint import Ack, CheckPoint, Key

MAX_ORPHANS = 100_000
"""Bound on acknowledgements that wait for a checkpoint."""


class PendingCheckpoint:
    """Checkpoint with messages that are not acknowledged."""

    __slots__ = ("checked", "checkpoint", "first_offset", "is_taken", "open_offsets")

    def __init__(self, checkpoint: CheckPoint, first_offset: int) -> None:
        self.checkpoint = checkpoint
        self.first_offset = first_offset
        """Entry of the checkpoint in the queue."""
        self.open_offsets = set(checkpoint.queue_offsets)
        self.is_taken = False
        """True while its open messages are being stored again."""
        self.checked: dict[int, str] = {}
        """Messages that were found in memory, or the reason why the disk cannot read them, by offset."""


def _any_checkpoint(point: PendingCheckpoint) -> bool:
    return True


class _Orphan:
    __slots__ = ("due_ms", "first_offset", "queue_offsets")

    def __init__(self, first_offset: int, due_ms: int) -> None:
        self.first_offset = first_offset
        self.due_ms = due_ms
        self.queue_offsets: set[int] = set()


class ReviveQueue:
    def __init__(self, read_offset: int) -> None:
        self.read_offset = read_offset
        """Entry that is read next."""
        self._points: dict[Key, PendingCheckpoint] = {}
        self._orphans: dict[Key, _Orphan] = {}
        self._due: list[tuple[int, int, Key]] = []
        self._spans: list[tuple[int, int]] = []
        """Ranges from a preceding acknowledgement to its checkpoint, in the checkpoints' order: a replica that began to
        read within one would take the checkpoint for open."""
        self._over: dict[tuple[Key, int], None] | None = {}
        """Worked-off checkpoints, with the number of times they were put back, while timers may deliver them again;
        None afterwards."""

    @property
    def message_count(self) -> int:
        """Messages that are not acknowledged."""
        return sum(len(point.open_offsets) for point in self._points.values())

    def late_ms(self, now_ms: int) -> int:
        """Delay (ms) of the first checkpoint that is due, 0 if none is."""
        return max(0, now_ms - self._due[0][0]) if self._due and self._points else 0

    def points(self) -> Iterator[PendingCheckpoint]:
        return iter(self._points.values())

    @property
    def worked_off_offset(self) -> int:
        """Entries below it need not be read again."""
        found = self.read_offset
        for items in (self._points, self._orphans):  # each in the order of its entries
            for item in items.values():
                found = min(found, item.first_offset)
                break
        for first, last in reversed(self._spans):
            if first < found <= last:
                found = first
        return found

    def read(self, entry: CheckPoint | Ack | None, due_ms: int) -> None:
        """Read the entry at `read_offset`; `due_ms` is the time of its checkpoint. None: neither checkpoint nor
        acknowledgement."""
        offset = self.read_offset
        self.read_offset += 1
        if isinstance(entry, CheckPoint):
            self._add(entry, offset)
        elif entry is not None and not self.acked(entry) and len(self._orphans) < MAX_ORPHANS:
            orphan = self._orphans.setdefault(entry.key, _Orphan(offset, due_ms))
            orphan.queue_offsets.update(entry.queue_offsets)

    def _add(self, checkpoint: CheckPoint, offset: int) -> None:
        is_over = self._over is not None and _life_of(checkpoint) in self._over
        if not checkpoint.queue_offsets or checkpoint.key in self._points or is_over:
            return  # a timer delivered it twice
        orphan = self._orphans.pop(checkpoint.key, None)
        point = PendingCheckpoint(checkpoint, offset)
        if orphan is not None:
            point.open_offsets -= orphan.queue_offsets
            self._spans.append((orphan.first_offset, offset))
        if point.open_offsets:
            self._points[checkpoint.key] = point
            heappush(self._due, (checkpoint.due_ms, offset, checkpoint.key))
        else:
            self.past(checkpoint)

    def acked(self, ack: Ack) -> bool:
        """Take an acknowledgement; True if its checkpoint is known."""
        point = self._points.get(ack.key)
        if point is None:
            return False
        if not point.is_taken:
            point.open_offsets.difference_update(ack.queue_offsets)
            if not point.open_offsets:
                self.done(point)
        return True

    def take_due(
        self,
        until_ms: int,
        is_waited_for: set[Key] | dict[Key, int],
        is_readable: Callable[[PendingCheckpoint], bool] = _any_checkpoint,
    ) -> PendingCheckpoint | None:
        """Take the next checkpoint whose time is at most `until_ms`; None without one, while an acknowledgement of it
        is pending, or while its messages are not in memory."""
        while self._due and self._due[0][0] <= until_ms:
            key = self._due[0][2]
            point = self._points.get(key)
            if point is not None and not point.is_taken:
                if key in is_waited_for or not is_readable(point):
                    return None
                point.is_taken = True
                heappop(self._due)
                return point
            heappop(self._due)
        return None

    def done(self, point: PendingCheckpoint) -> None:
        """Remove a checkpoint whose open messages were stored again."""
        if self._points.get(point.checkpoint.key) is point:
            del self._points[point.checkpoint.key]
            self.past(point.checkpoint)

    def past(self, checkpoint: CheckPoint) -> None:
        """Remember a checkpoint as worked off, so that a repeated delivery is ignored."""
        if self._over is not None:
            self._over[_life_of(checkpoint)] = None

    def is_past(self, key: Key) -> bool:
        """True of a remembered worked-off checkpoint."""
        return self._over is not None and (key, 0) in self._over

    def forget_past(self) -> None:
        """Forget them once timers deliver nothing twice."""
        self._over = None

    def settle(self, until_ms: int) -> None:
        """Drop orphans once all checkpoints up to `until_ms` have been read."""
        if self._orphans:
            for key in [key for key, orphan in self._orphans.items() if orphan.due_ms <= until_ms]:
                del self._orphans[key]
        if self._spans:
            worked_off_offset = self.worked_off_offset
            self._spans = [span for span in self._spans if span[1] >= worked_off_offset]

    def knows(self, key: Key) -> bool:
        return key in self._points


def _life_of(checkpoint: CheckPoint) -> tuple[Key, int]:
    return checkpoint.key, checkpoint.put_times
