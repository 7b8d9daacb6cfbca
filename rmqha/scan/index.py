"""ConsumeQueues as an index: which records of a stretch of log a filter can let through, without reading the others
(data plane, read only).

A queue's entry tells topic, queueId, queueOffset, place and size of a record, and the hash of its tag. Whether the
queues are complete is proved, not believed: the entries of all queues together must tile the stretch, each record
ending where the next one starts. Where they leave gaps, the log itself is walked; where they contradict each other, the
rest of the range is, and all of it where they contradict a record that is read. One record is read of each queue file
that takes part, so that a file in another queue's place is seen. What cannot be seen is an entry whose tag hash alone
is wrong, or a single one that names another queue's record where that record's own entry is missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqha.model.message import tags_code
from rmqha.model.pattern import compiled
from rmqha.scan.filter import Interval, RowFilter
from rmqha.scan.storage import LocalStorage, Storage, StorageFile, read_exactly
from rmqha.scan.walk import I64, RECORD_MAX_BYTES, RECORD_MIN_BYTES

UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
BATCH_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8"), ("rest", "V26")])
LIGHT_QUEUE_PREFIX = "%LMQ%"
"""Queues that name records of other topics once more."""
QUEUE_COST_BYTES = 64 * 1024
"""Bytes of log whose walk takes as long as a search in one queue."""
WALKED_SPACING_BYTES, WALKED_SHARE = 16 * 1024, 12
"""Bounds of a filter that a walk answers sooner than single reads do: its records lie closer than the spacing, in the
mean, but not so close that what is between them is read too, and are more than one of so many records."""
STRIPE_BYTES = 64 * 1024 * 1024
"""Bytes of log whose entries are held at once."""
FIRST_CHUNK_UNITS, CHUNK_MAX_UNITS = 256, 8192
GAPS_MAX, GAPS_MAX_BYTES = 64, STRIPE_BYTES // 8
"""Most gaps in one stripe, and their bytes: more are better walked with what is between them. The blank record at a
file's end is a gap too."""
JOIN_BYTES = 4 * 1024
"""Unwanted bytes that are cheaper to read than another call is."""
UNREADABLE = "\ufffd"


class UnusableIndexError(Exception):
    """The queues, or the index of keys, cannot be used, or no further; the text says why. Never leaves the reader."""


class ContradictionError(UnusableIndexError):
    """An entry of a queue contradicts its record: entries that were used before may be wrong too."""


@dataclass(slots=True)
class ReadCounts:
    """Costs of a read; they add up over ranges."""

    log_bytes: int = 0
    """Bytes of CommitLog files."""
    queue_bytes: int = 0
    """Bytes of ConsumeQueue files used as an index."""
    walked: dict[str, int] = field(default_factory=dict)
    """Bytes of ranges that had to be walked for a filter that queues could have answered, by reason."""

    def walk(self, reason: str, size_bytes: int) -> None:
        """Count `size_bytes` that were read by a walk, and why."""
        self.walked[reason] = self.walked.get(reason, 0) + size_bytes


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Places of records, with queue ids and queue offsets by their entries, in log order."""

    offsets: I64
    sizes: I64
    queue_ids: I64
    queue_offsets: I64
    """Queue offset of each record; −1 where the entry does not tell it."""

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, chosen: Any) -> RecordPlaces:
        """The entries of a slice, a mask, or of places."""
        return RecordPlaces(
            *(column[chosen] for column in (self.offsets, self.sizes, self.queue_ids, self.queue_offsets))
        )


NOTHING = RecordPlaces(*(np.empty(0, np.int64),) * 4)


@dataclass(frozen=True, slots=True)
class Stripe:
    """The next piece of a range: physical offsets [start, end), with the wanted records, and the gaps, which no queue
    covers. `samples` are entries of queue files of which nothing else is read, each with its queue's topic, None where
    its directory does not tell it."""

    start: int
    end: int
    wanted: RecordPlaces
    gaps: tuple[tuple[int, int], ...] = ()
    samples: RecordPlaces = NOTHING
    sample_topics: tuple[str | None, ...] = ()


def is_indexed(rows: RowFilter) -> bool:
    """True if queues can tell more of this filter than the log's walk."""
    numbers = rows.intervals.keys() | rows.values.keys()
    named = rows.topics, rows.topic_pattern, rows.queues, rows.tags
    return (
        any(part is not None for part in named)
        or bool(rows.queue_offsets)
        or bool(numbers & {"queueId", "queueOffset"})
    )


class QueueIndex:
    """The queues of the store at `root`, read forwards from physical offset `start` on."""

    def __init__(
        self, storage: Storage, root: str, rows: RowFilter, start: int, size_bytes: int, *, trusted: bool = False
    ) -> None:
        """UnusableIndexError if there are no queues, or too many for so small a range. `trusted` queues need not prove
        that they know every record: only those that are wanted are read."""
        if not isinstance(storage, LocalStorage):
            raise UnusableIndexError("the store is not on a local disk")
        if any(UNREADABLE in text for text in (*(rows.topics or ()), *(rows.tags or ()))):
            raise UnusableIndexError("a name that stands for several")
        self.read_bytes = 0
        self._trusted = trusted
        self._storage, self._rows, self._at = storage, rows, start
        self._codes = None if rows.tags is None else np.array(sorted(map(tags_code, rows.tags)), np.int64)
        self._queues: list[_Cursor] = []
        self._exists = False
        for name, unit in (("consumequeue", UNIT), ("batchconsumequeue", BATCH_UNIT)):
            for topic in self._directories(f"{root}/{name}"):
                for queue in self._directories(f"{root}/{name}/{topic}"):
                    if queue.isdecimal():
                        self._add(f"{root}/{name}/{topic}/{queue}", topic, int(queue), unit)
        if not self._queues and not (trusted and self._exists):
            raise UnusableIndexError("the store has no queues")
        if not trusted and len(self._queues) * QUEUE_COST_BYTES > size_bytes:
            raise UnusableIndexError("too many queues for so small a range")

    def close(self) -> None:
        """Close the files of all queues."""
        for queue in self._queues:
            queue.close()

    def stripes(self, end: int) -> Iterator[Stripe]:
        """The range up to `end`, a piece at a time. UnusableIndexError where a walk is quicker, or the queues
        contradict each other or leave too much open; OSError as the files have it."""
        if not self._trusted and self._is_walked_sooner(end):
            raise UnusableIndexError("a walk finds the wanted records sooner")
        for queue in self._queues:
            queue.seek(self._at)
        start = self._at
        while start < end:
            stripe = self._stripe(start, min(start + STRIPE_BYTES, end), end)
            yield stripe
            start = stripe.end

    def _is_walked_sooner(self, end: int) -> bool:
        """True if a walk is quicker, by the number of wanted entries up to `end`; False for a filter on tags, which
        only the entries tell."""
        if self._codes is not None:
            return False
        size_bytes = end - self._at
        wanted = sum(self._wanted_count(queue, queue.numbers(self._at, end)) for queue in self._queues if queue.wanted)
        if not JOIN_BYTES * wanted < size_bytes < WALKED_SPACING_BYTES * wanted:
            return False
        return wanted * WALKED_SHARE > sum(len(queue.numbers(self._at, end)) for queue in self._queues)

    def _wanted_count(self, queue: _Cursor, numbers: range) -> int:
        """Number of wanted entries among `numbers` of a queue."""
        low, high = numbers.start, numbers.stop
        for limit in queue.limits:
            low, high = max(low, limit.low), min(high, limit.high + 1)
        values = self._rows.values.get("queueOffset")
        return len(range(low, high)) if values is None else sum(low <= value < high for value in values)

    def _stripe(self, start: int, bound: int, end: int) -> Stripe:
        if not self._queues:
            return Stripe(start, bound, NOTHING)
        parts = [self._of_queue(queue, start, bound) for queue in self._queues]
        self.read_bytes = sum(queue.read_bytes for queue in self._queues)
        found, chosen, sampled = (
            RecordPlaces(*(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True))),
            np.concatenate([part.chosen for part in parts]),
            np.concatenate([part.sampled for part in parts]),
        )
        order = np.argsort(found.offsets, kind="stable")
        found, chosen = found.part(order), chosen[order]
        ends = found.offsets + found.sizes
        if self._trusted:
            stop = max(bound, int(ends[-1])) if len(ends) else bound
            return Stripe(start, stop, found.part(chosen))
        if bound < end and not len(ends):
            raise UnusableIndexError("queues do not cover the range")
        stop = end if bound == end else int(ends[-1])
        lows, highs = np.append(start, ends), np.append(found.offsets, stop)
        if stop > end or (lows > highs).any():
            raise UnusableIndexError("queues contradict each other")
        open_at = np.flatnonzero(lows < highs)
        gaps = tuple(zip(lows[open_at].tolist(), highs[open_at].tolist(), strict=True))
        if len(gaps) > GAPS_MAX or sum(high - low for low, high in gaps) > GAPS_MAX_BYTES:
            raise UnusableIndexError("queues do not cover the range")
        places = np.flatnonzero(sampled[order])
        of_queue = np.repeat(np.arange(len(parts)), [len(part.chosen) for part in parts])[order[places]]
        topics = tuple(self._queues[number].topic for number in of_queue.tolist())
        return Stripe(start, stop, found.part(chosen), gaps, found.part(places), topics)

    def _of_queue(self, queue: _Cursor, start: int, bound: int) -> _Part:
        """A queue's records of [start, bound)."""
        units, first = queue.take(bound)
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        numbers = np.arange(first, first + len(units))
        chosen = np.full(len(units), queue.wanted)
        if queue.wanted and not queue.is_batch:
            for limit in queue.limits:
                chosen &= (numbers >= limit.low) & (numbers <= limit.high)
            values = self._rows.values.get("queueOffset")
            if values is not None:
                chosen &= np.isin(numbers, sorted(values))
            if self._codes is not None:
                codes = units["code"].astype(np.int64)
                # other things are stored there too, all of them outside a hash's 32 bits
                chosen &= np.isin(codes, self._codes) | (codes != codes.astype(np.int32))
        real = (sizes >= RECORD_MIN_BYTES) & (sizes <= RECORD_MAX_BYTES) & (offsets >= start)
        chosen &= real
        sampled = np.zeros(len(units), bool)
        if not self._trusted:
            sampled[queue.to_sample(first, sizes, real, chosen)] = True
        if queue.is_batch:
            numbers[:] = -1
        found = _Part((offsets, sizes, np.full(len(units), queue.queue_id), numbers), chosen, sampled)
        return found if real.all() else found.only(real)

    def _directories(self, path: str) -> list[str]:
        return [name for name, size in self._storage.entries(path) or () if size is None]

    def _add(self, directory: str, topic: str, queue_id: int, unit: np.dtype[Any]) -> None:
        found = self._storage.entries(directory) or ()
        files = sorted((int(name), size, name) for name, size in found if len(name) == 20 and name.isdecimal() and size)
        if not files or topic.startswith(LIGHT_QUEUE_PREFIX):
            return
        places = [
            (base // unit.itemsize, (size or 0) // unit.itemsize, f"{directory}/{name}") for base, size, name in files
        ]
        self._exists = True
        if self._trusted and not _wants(self._rows, topic, queue_id):
            return
        limits = [self._rows.intervals.get("queueOffset"), self._rows.queue_offsets.get((topic, queue_id))]
        cursor = _Cursor(self._storage, places, unit, queue_id)
        cursor.topic = topic if _is_told(topic) else None
        cursor.limits = [limit for limit in limits if limit is not None]
        cursor.wanted = _wants(self._rows, topic, queue_id)
        self._queues.append(cursor)


def _wants(rows: RowFilter, topic: str, queue_id: int) -> bool:
    """True if a record of this queue can pass."""
    limit, values = rows.intervals.get("queueId", Interval()), rows.values.get("queueId")
    if not limit.low <= queue_id <= limit.high or (values is not None and queue_id not in values):
        return False
    if not _is_told(topic):
        return True
    if rows.queues is not None and (topic, queue_id) not in rows.queues:
        return False
    if rows.topics is not None and topic not in rows.topics:
        return False
    return rows.topic_pattern is None or compiled(rows.topic_pattern).is_whole(topic.encode())


def _is_told(topic: str) -> bool:
    """True if the name of a queue's directory is its topic, letter by letter."""
    return topic.isprintable() and UNREADABLE not in topic


@dataclass(frozen=True, slots=True)
class _Part:
    """One queue's part of a stripe: the columns of `RecordPlaces`, masks of the wanted records and of the samples."""

    columns: tuple[NDArray[Any], ...]
    chosen: NDArray[np.bool_]
    sampled: NDArray[np.bool_]

    def only(self, mask: NDArray[np.bool_]) -> _Part:
        return _Part(tuple(column[mask] for column in self.columns), self.chosen[mask], self.sampled[mask])


class _Cursor:
    """Forward reader of the entries of one queue. `places` are its files: number of the first entry, count, path."""

    def __init__(
        self, storage: Storage, places: Sequence[tuple[int, int, str]], unit: np.dtype[Any], queue_id: int
    ) -> None:
        self._storage, self._places, self._unit = storage, places, unit
        self.queue_id = queue_id
        self.topic: str | None = None
        self.is_batch = unit is BATCH_UNIT
        self.wanted = True
        self.limits: list[Interval] = []
        self.read_bytes = 0
        self._file: StorageFile | None = None
        self._open_index = -1
        self._index, self._within = 0, 0
        """Place of the next entry to read: index of its file, and its number in that file."""
        self._chunk_units = FIRST_CHUNK_UNITS
        self._held: NDArray[Any] = np.empty(0, unit)
        self._held_first = 0
        self._sampled: set[int] = set()
        """Files that were told apart from another queue's."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def seek(self, offset: int) -> None:
        """Go to the first entry at or behind this physical offset."""
        self._index, self._within = self._find(offset)

    def numbers(self, start: int, end: int) -> range:
        """Numbers of the entries of physical offsets [start, end)."""
        return range(*(self._places[index][0] + within for index, within in map(self._find, (start, end))))

    def _find(self, offset: int) -> tuple[int, int]:
        """Place of the first entry at or behind this physical offset: index of its file, and its number in that file.
        Entries that were never written end a queue."""
        low, high = 0, len(self._places) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._is_before(middle, 0, offset) else (low, middle - 1)
        index, low, high = low, 0, self._places[low][1]
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._is_before(index, middle, offset) else (low, middle)
        return index, low

    def _is_before(self, index: int, within: int, offset: int) -> bool:
        unit = self._read(index, within, 1)
        return bool(len(unit)) and int(unit["size"][0]) > 0 and int(unit["offset"][0]) < offset

    def take(self, bound: int) -> tuple[NDArray[Any], int]:
        """The entries up to this physical offset that were not taken yet, and the number of the first."""
        pieces: list[NDArray[Any]] = []
        first = self._held_first
        while True:
            if not len(self._held) and not self._fill():
                break
            if not pieces:
                first = self._held_first
            elif self._held_first != first + sum(map(len, pieces)):
                break  # a file is missing in between: what follows comes with the next call
            behind = (self._held["offset"] >= bound) | (self._held["size"] <= 0)
            count = int(np.argmax(behind)) if behind.any() else len(self._held)
            pieces.append(self._held[:count])
            self._held, self._held_first = self._held[count:], self._held_first + count
            if len(self._held):
                break
        return (np.concatenate(pieces) if pieces else self._held), first

    def to_sample(self, first: int, sizes: I64, real: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> list[int]:
        """Indexes of the entries to read as samples: of each file that is met for the first time the `real` entry with
        the smallest record, unless a `chosen` one of the file is read anyhow. `first`: number of the first entry."""
        found = []
        lowest = max(bisect_right(self._places, first, key=itemgetter(0)) - 1, 0)
        highest = bisect_left(self._places, first + len(sizes), key=itemgetter(0))
        for index in range(lowest, highest):
            number, count, _ = self._places[index]
            low, high = max(number - first, 0), min(number + count - first, len(sizes))
            if low >= high or index in self._sampled or not real[low:high].any():
                continue
            self._sampled.add(index)
            if not chosen[low:high].any():
                found.append(low + int(np.where(real[low:high], sizes[low:high], RECORD_MAX_BYTES + 1).argmin()))
        return found

    def _fill(self) -> bool:
        """Read more; False at the queue's end."""
        while self._index < len(self._places) and self._within >= self._places[self._index][1]:
            self._index, self._within = self._index + 1, 0
        if self._index >= len(self._places):
            return False
        first, count, _ = self._places[self._index]
        self._held = self._read(self._index, self._within, min(self._chunk_units, count - self._within))
        self._held_first = first + self._within
        self._within += len(self._held)
        self._chunk_units = min(self._chunk_units * 2, CHUNK_MAX_UNITS)
        return bool(len(self._held))

    def _read(self, index: int, within: int, count: int) -> NDArray[Any]:
        if self._open_index != index:
            self.close()
            self._file, self._open_index = self._storage.open(self._places[index][2]), index
        assert self._file is not None
        data = bytearray(count * self._unit.itemsize)
        found = read_exactly(self._file, within * self._unit.itemsize, data)
        self.read_bytes += found
        return np.frombuffer(data, self._unit, found // self._unit.itemsize)


@dataclass(frozen=True, slots=True)
class Pack:
    """Records that are read together: entries [low, high) of a stripe. `runs`: the stretches of log to read, one
    behind the other, as (physical offset, size). `places`: where each record starts in the bytes so read."""

    low: int
    high: int
    runs: tuple[tuple[int, int], ...]
    places: I64


def packs(offsets: I64, sizes: I64, window_bytes: int) -> Iterator[Pack]:
    """Records in log order as packs of about `window_bytes`; neighbours not more than JOIN_BYTES apart are read with
    what is between them."""
    if not len(offsets):
        return
    ends = offsets + sizes
    joined = offsets[1:] - ends[:-1] <= JOIN_BYTES
    steps = np.where(joined, offsets[1:] - offsets[:-1], sizes[:-1])
    places = np.append(0, np.cumsum(steps))
    of_pack = places // window_bytes
    bounds = np.flatnonzero(np.diff(of_pack)) + 1
    for low, high in zip([0, *bounds.tolist()], [*bounds.tolist(), len(offsets)], strict=True):
        breaks = np.flatnonzero(~joined[low : high - 1]) + low + 1
        first, last = np.append(low, breaks), np.append(breaks, high) - 1
        starts = offsets[first]
        runs = tuple(zip(starts.tolist(), (ends[last] - starts).tolist(), strict=True))
        yield Pack(low, high, runs, places[low:high] - places[low])
