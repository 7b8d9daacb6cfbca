"""Data plane: queries of a store's records, read only: by place, queue and time; and sums over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rmqha.inspect.log_reader import Check, Entry, LogPiece, LogReader, Stop, StopReason
from rmqha.inspect.store_inspection import StoreInspection
from rmqha.model.error import StoreError
from rmqha.store.log.record import BadRecordError, Located, Record, decode, locate, verify


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A query for records: physical offsets [start, end), store times [since, until)."""

    topic: str | None = None
    queue_id: int | None = None
    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    uncommitted: bool = False
    """True: include whole records behind the committed end."""


def entries(store: StoreInspection, query: RecordQuery, check: Check = verify) -> Iterator[tuple[Entry, Located]]:
    """The chosen records in log order, blank ones left out. Raises StoreError at the first bytes below the committed
    end that are no whole record, after the records before them."""
    reader = store.reader()
    try:
        yield from _entries(store, reader, query, check)
    except OSError as error:
        raise StoreError(f"{store.disk.label} cannot be read: {error.strerror or error}; check the disk") from None
    finally:
        reader.close()


def _entries(
    store: StoreInspection, reader: LogReader, query: RecordQuery, check: Check
) -> Iterator[tuple[Entry, Located]]:
    limit = reader.max_offset if query.uncommitted else store.committed_end
    end = limit if query.end is None else min(limit, query.end)
    topic = query.topic.encode() if query.topic is not None else None
    first = _first_file(reader, query)
    for entry in reader.records(first.start_offset if first is not None else 0, limit, check):
        position, view, _, parts = entry
        if position >= end:
            return
        if parts is None or position < query.start:
            continue
        if topic is not None and view[parts[6] : parts[6] + parts[7]] != topic:
            continue
        if query.queue_id is not None and parts[2] != query.queue_id:
            continue
        if query.since_ms is not None and parts[10] < query.since_ms:
            continue
        if query.until_ms is not None and parts[10] >= query.until_ms:
            continue
        yield entry, parts
    require_sound_end(store, reader.stop)


def _first_file(reader: LogReader, query: RecordQuery) -> LogPiece | None:
    """The first file that may hold a chosen record: store times rise, and so do offsets."""
    chosen: LogPiece | None = reader.files[0] if reader.files else None
    for piece in reader.files[1:]:
        if piece.start_offset > query.start:
            if query.since_ms is None:
                break
            stored_ms = _first_stored_ms(reader, piece)
            if stored_ms is None or stored_ms >= query.since_ms:
                break
        chosen = piece
    return chosen


def _first_stored_ms(reader: LogReader, piece: LogPiece) -> int | None:
    entry = reader.record_at(piece.start_offset)
    return None if entry is None or entry[3] is None else entry[3][10]


def require_sound_end(store: StoreInspection, stop: Stop) -> None:
    """Raise StoreError unless the walk ended where a sound log may end."""
    if stop.why is StopReason.END or (stop.why is StopReason.UNWRITTEN and stop.position >= store.committed_end):
        return
    committed = f" (committed up to {store.committed_end})" if stop.position < store.committed_end else ""
    raise StoreError(
        f"{store.disk.label}/{stop.path} at byte {stop.at}: expected {stop.expected}, found {stop.found}{committed};"
        f" see rmqha fsck {store.disk.label}"
    )


def record_of(entry: Entry, parts: Located) -> Record:
    """The record of an entry, decoded. StoreError for a topic that is no text."""
    position, view, at, _ = entry
    try:
        return decode(view, at, end=at + parts[0])
    except BadRecordError as error:
        raise StoreError(f"the record at {position} cannot be decoded: {error}; see rmqha fsck") from None


@dataclass(slots=True)
class RecordTotals:
    """Sums over some records: their number and bytes, and the bounds of their queue offsets and store times."""

    count: int = 0
    size_bytes: int = 0
    min_queue_offset: int | None = None
    max_queue_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, parts: Located) -> None:
        self.count += 1
        self.size_bytes += parts[0]
        queue_offset, stored = parts[3], parts[10]
        if self.min_queue_offset is None or queue_offset < self.min_queue_offset:
            self.min_queue_offset = queue_offset
        if self.max_queue_offset is None or queue_offset > self.max_queue_offset:
            self.max_queue_offset = queue_offset
        if self.first_ms is None or stored < self.first_ms:
            self.first_ms = stored
        if self.last_ms is None or stored > self.last_ms:
            self.last_ms = stored


@dataclass(slots=True)
class FileTotals:
    """Sums over one file of the log. `used_bytes` ends behind the last record or blank record."""

    piece: LogPiece
    records: RecordTotals = field(default_factory=RecordTotals)
    used_bytes: int = 0
    problem: str = ""


def file_totals(store: StoreInspection) -> list[FileTotals]:
    """Sums of each file by itself, over whole records only, CRC not checked: one bad file does not hide the others.
    Records behind the committed end count too. Raises OSError."""
    sums = []
    for piece in store.log.files:
        made = FileTotals(piece)
        reader = LogReader(store.disk, (piece,))
        for position, _, _, parts in reader.records(piece.start_offset, piece.end_offset, locate):
            if parts is None:
                made.used_bytes = piece.size_bytes
            else:
                made.records.add(parts)
                made.used_bytes = position + parts[0] - piece.start_offset
        stop = reader.stop
        reader.close()
        if stop.why not in (StopReason.END, StopReason.UNWRITTEN) or (
            stop.why is StopReason.UNWRITTEN and stop.position < min(store.committed_end, piece.end_offset)
        ):
            made.problem = f"byte {stop.at}: expected {stop.expected}, found {stop.found}"
        sums.append(made)
    return sums


def queue_totals(store: StoreInspection, query: RecordQuery) -> dict[tuple[str, int], RecordTotals]:
    """Sums by topic and queue, sorted. Raises StoreError as `entries` does."""
    found: dict[tuple[bytes, int], RecordTotals] = {}
    for (_, view, _, _), parts in entries(store, query, locate):
        key = (bytes(view[parts[6] : parts[6] + parts[7]]), parts[2])
        made = found.get(key)
        if made is None:
            made = found[key] = RecordTotals()
        made.add(parts)
    return {(topic.decode("utf-8", "replace"), queue_id): found[topic, queue_id] for topic, queue_id in sorted(found)}
