"""Queue of the parts of the store that threads must read into memory, and the reads that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rmqha.model.error import DamagedError
from rmqha.port import Clock
from rmqha.store.cold_range import NO_BOUNDS, Bounds, ColdRange

COLD_WAIT_MS = 2_000
"""Time (ms) that a request waits for a thread to read its messages into memory, unless it may wait longer; then it is
to be sent again. Some clients give up after three seconds."""
MAX_LOAD_COUNT = 3
"""Loads into memory for one read of a queue: of its entries, of its messages, and of what was dropped meanwhile."""
TROUBLE_MS = 10_000
"""Time (ms) after which what the disk could not read is tried again."""
MAX_PENDING_COUNT = 10_000
"""Reads of queues that are remembered; the oldest gives way."""

ColdPart = tuple[str, int, ColdRange]
"""Topic, queue id, and range of the queue's files and of the log."""
K = TypeVar("K", bound=Hashable)


class ColdReads:
    """Waiting and running reads. Requests of the same part share one read."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something to read."""
        self._wake = wake
        self._waiting: dict[ColdPart, None] = {}
        self._being_read: set[ColdPart] = set()

    def want(self, part: ColdPart) -> None:
        """Request a read of `part`, unless it is waiting or running."""
        if part not in self._waiting and part not in self._being_read:
            self._waiting[part] = None
            self._wake()

    def begin(self) -> ColdPart | None:
        """Begin the next read; None if none waits. `end` follows."""
        if not self._waiting:
            return None
        part = next(iter(self._waiting))
        del self._waiting[part]
        self._being_read.add(part)
        return part

    def end(self, part: ColdPart) -> None:
        """End a read, whatever its result."""
        self._being_read.discard(part)


@dataclass(slots=True)
class AwaitedRead:
    """A read of a queue that found something not in memory."""

    part: ColdPart | None = None
    """The part that is being read for it."""
    load_count: int = 0
    is_single: bool = False
    """True if one entry is to be read at a time: the disk could not read several together, with others' messages
    between them."""
    trouble: str = ""
    """The reason why the disk cannot read it, until `retry_at_ms`."""
    retry_at_ms: int = 0

    @property
    def from_memory(self) -> bool:
        """False after MAX_LOAD_COUNT loads: some file systems keep nothing in memory, so the read then waits for the
        disk."""
        return self.load_count < MAX_LOAD_COUNT


class AwaitedReads(Generic[K]):
    """Reads of queues that are tried again when a part has been loaded, by the place at which they begin."""

    def __init__(self, reads: ColdReads, clock: Clock) -> None:
        self._reads = reads
        self._clock = clock
        self._pending: dict[K, AwaitedRead] = {}
        self._waiting: dict[ColdPart, dict[K, None]] = {}

    def get(self, place: K) -> AwaitedRead | None:
        """The waiting read that begins at `place`; None if all of it was in memory, as far as is known."""
        read = self._pending.get(place)
        if read is not None and read.trouble and read.retry_at_ms <= self._clock.now_ms():
            del self._pending[place]
            return None
        return read

    def want(self, place: K, part: ColdPart) -> None:
        """Request that `part` is loaded for the read at `place`."""
        read = self._pending.setdefault(place, AwaitedRead())
        read.part = part
        self._waiting.setdefault(part, {})[place] = None
        self._reads.want(part)
        if len(self._pending) > MAX_PENDING_COUNT:
            self.done(next(iter(self._pending)))

    def done(self, place: K) -> None:
        """Forget the read at `place`, which needs nothing more."""
        self._pending.pop(place, None)

    def loaded(self, part: ColdPart) -> list[K]:
        """The places that are to be read again: the part is in memory."""
        places = self._take(part)
        for place in places:
            self._pending[place].load_count += 1
        return places

    def unreadable(self, part: ColdPart, reason: str) -> list[K]:
        """The places that are to be read again: the disk cannot read the part."""
        places = self._take(part)
        for place in places:
            read = self._pending[place]
            if read.is_single:
                read.trouble, read.retry_at_ms = reason, self._clock.now_ms() + TROUBLE_MS
            read.is_single = True
        return places

    def _take(self, part: ColdPart) -> list[K]:
        waited = self._waiting.pop(part, {})
        places = [place for place in waited if (read := self._pending.get(place)) is not None and read.part == part]
        for place in places:
            self._pending[place].part = None
        return places

    def clear(self) -> None:
        self._pending.clear()
        self._waiting.clear()


class ResidencyLog(Protocol):
    """The log that tells what of a queue is in memory; the store."""

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange: ...


class ColdEntries(AwaitedReads[tuple[str, int, int]]):
    """Reads of services that go through queues in steps, by topic, queue id and first entry."""

    def __init__(self, log: ResidencyLog, reads: ColdReads, clock: Clock) -> None:
        super().__init__(reads, clock)
        self._log = log

    def bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | None:
        """The bounds within which `count` entries from `offset` on, and their records, may be read now; None: they are
        being loaded. Raises DamagedError if the disk cannot read the first."""
        place = topic, queue_id, offset
        read = self.get(place)
        if read is not None:
            if read.part is not None:
                return None
            if read.trouble:
                raise DamagedError(read.trouble)
            count = 1 if read.is_single else count
        found: Bounds | ColdRange = NO_BOUNDS
        if read is None or read.from_memory:
            found = self._log.memory_bounds(topic, queue_id, offset, count)
        if isinstance(found, ColdRange):
            self.want(place, (topic, queue_id, found))
            return None
        if read is not None:
            self.done(place)
        return found
