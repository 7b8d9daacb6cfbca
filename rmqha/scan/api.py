"""Reading a store directory as Arrow RecordBatches, without Spark and without a broker (data plane).

    view = open_store("/data/broker-a")
    for batch in read_store(view, Decoding(columns=("topic", "queueOffset", "body"))): ...

`open_store` fixes how far the log is committed; `plan_ranges` cuts it into ranges that other processes can read with
`read_range`. An inner batch of a BatchCQ topic is a row for each of its messages, unless `Decoding` says otherwise. The
modules of this package import NumPy and pyarrow; nobody imports them but readers of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmqha.model.error import StoreError
from rmqha.scan.access.bounds import of_queues
from rmqha.scan.access.key_index import places
from rmqha.scan.columns import CORRUPT, STORE_PATH, TYPES, Decoding, Records, Source
from rmqha.scan.damage import Damage, pieces
from rmqha.scan.files import (
    StoreView,
    ViewCache,
    ViewOptions,
    by_group,
    check_no_copies,
    check_same,
    cluster_of,
    open_store,
    storage_errors,
)
from rmqha.scan.filter import ANY_NUMBER, Interval, RowFilter
from rmqha.scan.index import (
    ContradictionError,
    QueueIndex,
    ReadCounts,
    RecordPlaces,
    Stripe,
    UnusableIndexError,
    is_indexed,
    packs,
)
from rmqha.scan.inner_batches import explode
from rmqha.scan.plan import Boundaries, LogRange, group_ranges, plan_ranges
from rmqha.scan.position import between
from rmqha.scan.read import FILTERED_WINDOW_BYTES, WINDOW_BYTES, LogFile, RemovedFileError
from rmqha.scan.storage import storage_of
from rmqha.scan.walk import I64, MAGIC_V1, MAGIC_V2

TIMESTAMP_SLACK_MS = 600_000
"""Time (ms) by which brokers' clocks may have stepped back: no record is stored so much before an earlier one."""
NEAR_BYTES = 256 * 1024
"""Bytes to which the search for a cut narrows the place."""


def prune(view: StoreView, rows: RowFilter, slack_ms: int) -> StoreView:
    """The part of the log that the bounds of physicalOffset and storeTimestamp leave, at record starts; more than
    needed, never less, if no record's storeTimestamp is more than `slack_ms` behind that of an earlier record."""
    offsets, times = rows.physical_offsets, rows.store_timestamps
    start, end = of_queues(view, rows) if _bounds_queues(rows) else (view.min_offset, view.end_offset)
    search = _Search(view)
    try:
        if offsets.low > start:
            start = search.last(start, end, lambda offset, stored_ms: offset <= offsets.low)
        if offsets.high < end:
            end = search.first(start, end, lambda offset, stored_ms: offset > offsets.high)
        if times.low > ANY_NUMBER.low:
            start = search.last(start, end, lambda offset, stored_ms: stored_ms < times.low - slack_ms)
        if times.high < ANY_NUMBER.high:
            end = search.first(start, end, lambda offset, stored_ms: stored_ms > times.high + slack_ms)
    finally:
        search.close()
    return between(view, start, end) if start < end else replace(view, files=(), starts=(), end_offset=start)


def _bounds_queues(rows: RowFilter) -> bool:
    return bool(rows.queue_offsets) or "queueOffset" in rows.intervals or "queueOffset" in rows.values


class _Search:
    """Binary search for cuts. Its answers are record starts of the log, or its ends."""

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


__all__ = [
    "ALL_ROWS",
    "ANY_NUMBER",
    "CORRUPT",
    "STORE_PATH",
    "TIMESTAMP_SLACK_MS",
    "TYPES",
    "Decoding",
    "Interval",
    "LogRange",
    "ReadCounts",
    "Records",
    "RowFilter",
    "Source",
    "StoreView",
    "ViewCache",
    "ViewOptions",
    "by_group",
    "check_no_copies",
    "cluster_of",
    "group_ranges",
    "open_store",
    "plan_ranges",
    "prune",
    "read_range",
    "read_store",
    "storage_errors",
]

EVERYTHING = Decoding()
ALL_ROWS = RowFilter()


def read_range(
    item: LogRange,
    decoding: Decoding = EVERYTHING,
    rows: RowFilter = ALL_ROWS,
    *,
    pass_loss: bool = False,
    use_queues: bool = True,
    trust_index: bool = False,
    counts: ReadCounts | None = None,
) -> Iterator[Any]:
    """RecordBatches of the range's records that pass the filter, about 4 MiB of log each, 8 if there is one.

    A filter on topic, queueId, queueOffset or tags reads only the records that the consume queues name, where these
    prove that they know all of them; `counts` says what was read, and why the log was walked where it was. With
    `trust_index` they need not prove it, and a filter on keys reads what the index of keys names.

    StoreError for a damaged record: names the file, the offset, what was expected and what was found. With
    `on_corrupt` = skip it is left out; with row it is a row of its own, which only physical offsets can leave out.
    A file that has gone is a StoreError too, unless `pass_loss`; so are replicas of the range that differ.
    """
    counts = ReadCounts() if counts is None else counts
    try:
        file = LogFile(item.file)
    except RemovedFileError:
        if pass_loss:
            return
        raise
    with file:
        indexed = use_queues and not item.peers and decoding.on_corrupt == "fail"
        if indexed and trust_index and rows.keys is not None:
            found: Iterator[Records | Damage] = keyed(file, item, rows, counts, decoding)
        elif indexed and is_indexed(rows):
            found = named(file, item, rows, counts, decoding, trusted=trust_index)
        else:
            found = _walked(file, item, decoding, rows)
        for piece in found:
            if isinstance(piece, Records) and not len(piece):
                continue
            for batch in piece.batches(decoding):
                if batch.num_rows:
                    yield batch
        counts.log_bytes += file.read_bytes


def _walked(file: LogFile, item: LogRange, decoding: Decoding, rows: RowFilter) -> Iterator[Records | Damage]:
    """The records of the range that pass the filter, found by a walk over all records of the range."""
    base, bounds = item.file.base_offset, rows.physical_offsets
    window_bytes = WINDOW_BYTES if rows == ALL_ROWS else FILTERED_WINDOW_BYTES
    pass_damage = decoding.on_corrupt != "fail"
    span = item.start - base, item.end - base
    for piece in pieces(file, *span, item.source, pass_damage=pass_damage, window_bytes=window_bytes):
        if isinstance(piece, Records):
            check_same(piece, item.peers)
            yield from map(rows.apply, explode(piece, decoding))
        elif decoding.on_corrupt == "row" and bounds.low <= piece.start <= bounds.high:
            yield piece


def read_store(
    view: StoreView,
    decoding: Decoding = EVERYTHING,
    rows: RowFilter = ALL_ROWS,
    *,
    timestamp_slack_ms: int = TIMESTAMP_SLACK_MS,
    use_queues: bool = True,
    trust_index: bool = False,
    counts: ReadCounts | None = None,
) -> Iterator[Any]:
    """The whole store in log order, in this process; of the log only what the bounds of offsets and times need."""
    # a damaged stretch has no time
    kept = view if decoding.on_corrupt == "row" else prune(view, rows, timestamp_slack_ms)
    for item in plan_ranges(kept, min_ranges=1, pass_damage=decoding.on_corrupt != "fail"):
        yield from read_range(item, decoding, rows, use_queues=use_queues, trust_index=trust_index, counts=counts)


# --- the records of a range that the consume queues name for a filter -------------------------------------------------


def named(
    file: LogFile,
    item: LogRange,
    rows: RowFilter,
    counts: ReadCounts,
    decoding: Decoding = EVERYTHING,
    *,
    trusted: bool = False,
) -> Iterator[Records]:
    """The records of the range that pass the filter, in log order; valid until the next ones are asked for. If the
    queues contradict the log, the records that they had hidden come last."""
    reader = _Reader(file, item, rows, counts, decoding, trusted=trusted)
    given: list[I64] = [np.empty(0, np.int64)]
    try:
        for found in reader.records():
            given.append(found.number("physicalOffset"))
            yield found
        return
    except (UnusableIndexError, OSError) as doubt:
        start = item.start if isinstance(doubt, ContradictionError) else reader.sure
        counts.walk(str(doubt), item.end - start)
    base, known = file.name.base_offset, np.concatenate(given)
    for piece in pieces(file, start - base, item.end - base, item.source, window_bytes=FILTERED_WINDOW_BYTES):
        if isinstance(piece, Records):
            for part in explode(piece, decoding):
                passed = rows.apply(part)
                yield passed.select(~np.isin(passed.number("physicalOffset"), known))


def keyed(file: LogFile, item: LogRange, rows: RowFilter, counts: ReadCounts, decoding: Decoding) -> Iterator[Records]:
    """The records of the range that the index of keys names and that pass the filter; those of a walk where there is no
    such index."""
    root, base = _root_of(item), file.name.base_offset
    storage = storage_of(root)
    topics = rows.topics
    if topics is None:
        listed = [storage.entries(f"{root}/{name}") or () for name in ("consumequeue", "batchconsumequeue")]
        topics = frozenset(name for entries in listed for name, size in entries if size is None)
    try:
        offsets = places(storage, root, topics, rows.keys or (), item.start, item.end)
    except (UnusableIndexError, OSError) as doubt:
        counts.walk(str(doubt), item.size_bytes)
        for piece in pieces(file, item.start - base, item.end - base, item.source, window_bytes=FILTERED_WINDOW_BYTES):
            if isinstance(piece, Records):
                yield from map(rows.apply, explode(piece, decoding))
        return
    for offset in offsets.tolist():
        found = file.record_at(offset - base)
        if found is not None:
            record = Records(found.window, found.starts, item.source)
            yield from map(rows.apply, explode(record, decoding))


def _root_of(item: LogRange) -> str:
    assert item.source.root is not None, "a range that was planned knows its store"
    return item.source.root


class _Reader:
    """Read of a range by its consume queues. Every record that passes and begins before `sure`, a record's start, has
    been given."""

    def __init__(
        self,
        file: LogFile,
        item: LogRange,
        rows: RowFilter,
        counts: ReadCounts,
        decoding: Decoding,
        *,
        trusted: bool,
    ) -> None:
        self._trusted = trusted
        self._file, self._item, self._rows, self._counts = file, item, rows, counts
        self._decoding = decoding
        self._rest = rows.without_topics()
        self._base = file.name.base_offset
        self.sure = item.start

    def records(self) -> Iterator[Records]:
        item = self._item
        root = _root_of(item)
        index = QueueIndex(storage_of(root), root, self._rows, item.start, item.size_bytes, trusted=self._trusted)
        try:
            for stripe in index.stripes(item.end):
                self._check_samples(stripe)
                wanted, at = stripe.wanted, 0
                for low, high in stripe.gaps:
                    until = int(np.searchsorted(wanted.offsets, low))
                    yield from self._entries(wanted.part(slice(at, until)))
                    yield from self._gap(low, high)
                    at = until
                yield from self._entries(wanted.part(slice(at, None)))
        finally:
            index.close()
            self._counts.queue_bytes += index.read_bytes

    def _gap(self, low: int, high: int) -> Iterator[Records]:
        try:
            for piece in pieces(self._file, low - self._base, high - self._base, self._item.source):
                if isinstance(piece, Records):
                    self._counts.walk("queues have no entry", int(piece.fixed["storeSize"].sum()))
                    self._seen(piece)
                    yield from map(self._rows.apply, explode(piece, self._decoding))
        except StoreError:
            raise ContradictionError("queues contradict the log") from None

    def _check_samples(self, stripe: Stripe) -> None:
        """ContradictionError where a queue's file is another one's."""
        topics = iter(stripe.sample_topics)
        for entries, records in self._packed(stripe.samples):
            if not _agree(records, entries).all() or not records.whole.all():
                raise ContradictionError("queues contradict the log")
            for topic, found in zip(islice(topics, len(entries)), records.topic.to_pylist(), strict=True):
                if topic is not None and topic != found:
                    raise ContradictionError("queues contradict the log")

    def _packed(self, entries: RecordPlaces) -> Iterator[tuple[RecordPlaces, Records]]:
        """The entries and the records that they name, some at a time; valid until the next ones are asked for."""
        for pack in packs(entries.offsets, entries.sizes, WINDOW_BYTES):
            window = self._file.packed([(offset - self._base, size) for offset, size in pack.runs])
            yield entries.part(slice(pack.low, pack.high)), Records(window, pack.places, self._item.source)

    def _entries(self, wanted: RecordPlaces) -> Iterator[Records]:
        for entries, records in self._packed(wanted):
            if not _agree(records, entries).all():
                raise ContradictionError("queues contradict the log")
            of_topic = self._rows.topic_mask(records) if self._rows.names_topics else np.ones(len(records), bool)
            if not (of_topic | (entries.queue_offsets < 0)).all():
                raise ContradictionError("queues contradict the log")
            self._seen(records)
            for found in explode(records, self._decoding):
                if found is not records and self._rows.names_topics:
                    of_topic = self._rows.topic_mask(found)
                yield self._rest.apply(found.select(of_topic) if self._rows.names_topics else found)

    def _seen(self, records: Records) -> None:
        last = records.fixed[-1]
        self.sure = int(last["physicalOffset"]) + int(last["storeSize"])


def _agree(records: Records, entries: RecordPlaces) -> NDArray[np.bool_]:
    """Mask of the records that agree with their entries."""
    fixed, numbers = records.fixed, entries.queue_offsets
    right: NDArray[np.bool_] = (fixed["magic"] == MAGIC_V1) | (fixed["magic"] == MAGIC_V2)
    right &= fixed["physicalOffset"] == entries.offsets
    right &= fixed["storeSize"] == entries.sizes
    right &= fixed["queueId"] == entries.queue_ids
    right &= (fixed["queueOffset"] == numbers) | (numbers < 0)
    return right
