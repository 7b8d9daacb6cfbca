"""rmqha.timers: snapshot of the waiting timer messages, so that a start need not read a million records.

It is derived from the queue of the timer topic, as RocketMQ's wheel is. It is valid only if the log has its last entry,
byte for byte at the same offset: then all entries before are the same. It has the progress of delivery at that time; a
start that finds less delivered in config/timercheck reads the queue.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from rmqha.broker.timers.timer_check import TimerProgress
from rmqha.broker.timers.waiting import MAX_OFFSET, Span
from rmqha.model.error import StoreError
from rmqha.port import Clock, Disk, Tracer
from rmqha.store.meta import sidecar
from rmqha.store.meta.sidecar import BadSidecarError, number
from rmqha.store.timer.timer_log import CHECK_PATH
from rmqha.store.timer.timer_log import SNAPSHOT_PATH as PATH

LEAST_COUNT = 20_000
"""New entries without a snapshot: a start reads that many in a tenth of a second."""
SHARE = 32
"""Growth (1/SHARE of the waiting messages) after which a snapshot is written: each message is written at most 32 times,
ten bytes each, and no more often than tables are saved."""
LULL_MS = 5000
"""Time (ms) without new entries after which it is written as well."""
_VERSION = 3
"""Versions 1 and 2 had other slots and are not read; the queue is."""


class TimerSnapshot(NamedTuple):
    """Waiting messages among the entries below `taken_offset`, at the time of `progress`."""

    progress: TimerProgress
    taken_offset: int
    phy_offset: int
    """Physical offset of the last entry's record; `crc` is the CRC-32 of its bytes."""
    crc: int
    topics: list[bytes]
    recalls: dict[int, bytes]
    """Recalls (`RecallSet.kept`)."""
    spans: list[Span]
    late: list[tuple[int, int]]
    recall_marks: dict[int, bytes]
    """Accounts of the recalls (`RecallSet.kept_marks`). Releases that know no shares leave them out."""


class SnapshotTimers(Protocol):
    """Port to the timers; `TimerService` is one."""

    begin_count: int

    @property
    def waiting_count(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def snapshot(self) -> TimerSnapshot | None: ...

    def restore(self, kept: TimerSnapshot) -> bool: ...


class TimerProgressFile(Protocol):
    """Port to config/timercheck; `DelayOffsetTable` is one."""

    is_timer_ours: bool

    @property
    def written_timer(self) -> TimerProgress | None:
        """Progress that is durable in the file; None if uncertain."""
        ...


class TimerSnapshots:
    """Snapshot file. It is written once config/timercheck durably has at least its progress. Create it at a start
    before anything else reads the timers. Raises OSError and StoreError."""

    def __init__(
        self, disk: Disk, timers: SnapshotTimers, progress: TimerProgressFile, clock: Clock, tracer: Tracer
    ) -> None:
        self._disk = disk
        self._timers = timers
        self._progress = progress
        self._clock = clock
        self._tracer = tracer
        self.least_count = LEAST_COUNT
        self._written_end = 0
        """End of the queue at the last snapshot."""
        self._seen_end = self._grown_at_ms = 0
        self._begin_count = timers.begin_count
        self._made: TimerSnapshot | None = None
        self._restore()

    def _restore(self) -> None:
        if not self._disk.exists(PATH):
            return
        try:
            kept = decode(sidecar.decode(self._disk.read(PATH), PATH))
            is_taken = self._is_progress_ours() and self._timers.restore(kept)
        except (BadSidecarError, ValueError) as error:
            self._tracer.event("timer_snapshot_damaged", reason=str(error))
            return
        if is_taken:
            self._written_end = kept.taken_offset

    def _is_progress_ours(self) -> bool:
        """False if another program has delivered since, with other times for messages that wait in several rounds."""
        return self._progress.is_timer_ours or not self._disk.exists(CHECK_PATH)

    def writes(self) -> Iterator[Callable[[], None]]:
        """The due write, if there is one, for any thread, after that of config/timercheck. Raises OSError."""
        if self._timers.begin_count != self._begin_count:
            self._begin_count, self._made, self._written_end = self._timers.begin_count, None, 0
        if self._made is None and self._is_due():
            self._made = self._timers.snapshot()
        made, written = self._made, self._progress.written_timer
        if made is not None and written is not None and not written.is_behind(made.progress):
            self._made, self._written_end = None, made.taken_offset
            yield partial(self._write, made)

    def _is_due(self) -> bool:
        end, now_ms = self._timers.end_offset, self._clock.now_ms()
        if end != self._seen_end:
            self._seen_end, self._grown_at_ms = end, now_ms
        grown_count = end - self._written_end
        is_lull = now_ms >= self._grown_at_ms + LULL_MS
        return grown_count >= self.least_count and (is_lull or grown_count >= self._timers.waiting_count // SHARE)

    def _write(self, made: TimerSnapshot) -> None:
        self._disk.write_atomic(PATH, sidecar.encode(encode(made)))


def encode(kept: TimerSnapshot) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "byteOrder": sys.byteorder,
        "progress": list(kept.progress),
        "takenOffset": kept.taken_offset,
        "phyOffset": kept.phy_offset,
        "crc": kept.crc,
        "topics": kept.topics,
        "recalls": [[slot_ms, keys] for slot_ms, keys in kept.recalls.items()],
        "recallMarks": [[slot_ms, marks] for slot_ms, marks in kept.recall_marks.items()],
        "spans": [list(span) for span in kept.spans],
        "late": [list(entry) for entry in kept.late],
    }


def decode(fields: dict[str, Any]) -> TimerSnapshot:
    """Snapshot of the fields. Raises BadSidecarError, and StoreError for a newer version."""
    version = number(fields, "version")
    if version < _VERSION:
        raise BadSidecarError(f"expected version {_VERSION}, found {version}")
    if version > _VERSION:
        raise StoreError(
            f"{PATH} has version {fields['version']}, this release reads up to {_VERSION}: remove the file, or use the"
            " release that wrote it or a newer one"
        )
    try:
        progress = TimerProgress(*_numbers(fields["progress"], 4))
        if fields["byteOrder"] != sys.byteorder:
            raise BadSidecarError(f"expected the byte order {sys.byteorder}, found {fields['byteOrder']!r}")
        spans = []
        for number_of, first_offset, entries, topics in fields["spans"]:
            if not isinstance(entries, bytes) or not isinstance(topics, bytes):
                raise BadSidecarError("expected the entries of a span as bytes")
            place = _numbers([number_of, first_offset], 2)
            spans.append(Span(place[0], place[1], entries, topics))
        topics_named = [_bytes(name) for name in fields["topics"]]
        recalls = {_numbers([slot], 1)[0]: _bytes(keys) for slot, keys in fields["recalls"]}
        marks = {_numbers([slot], 1)[0]: _bytes(found) for slot, found in fields.get("recallMarks") or ()}
        late = [(_numbers(entry[:1], 1)[0], _numbers(entry[1:], 1, MAX_OFFSET)[0]) for entry in fields["late"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadSidecarError(f"expected what waits, found something else ({error!r})") from None
    where = number(fields, "takenOffset"), number(fields, "phyOffset"), number(fields, "crc")
    return TimerSnapshot(progress, *where, topics_named, recalls, spans, late, marks)


def _numbers(values: Any, count: int, limit: int = 1 << 62) -> list[int]:
    """Check that `values` are `count` numbers from 0 below the limit. Raises BadSidecarError."""
    found = list(values)
    if len(found) != count or any(type(value) is not int or not 0 <= value < limit for value in found):
        raise BadSidecarError(f"expected {count} numbers from 0, found {values!r:.100}")
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise BadSidecarError(f"expected bytes, found {type(value).__name__}")
    return value
