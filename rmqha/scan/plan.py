"""The cut of a log into ranges that other processes read (control plane)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rmqha.scan.columns import I64, Records, Source
from rmqha.scan.damage import pieces
from rmqha.scan.files import StoreView
from rmqha.scan.position import between
from rmqha.scan.queues import QueueEntries
from rmqha.scan.read import LogFile, LogFileInfo
from rmqha.scan.storage import storage_of
from rmqha.scan.walk import RECORD_MAX_BYTES

TRIES = 8
"""Number of candidates (magic and own offset are right) of which one must be in its queue; a deleted topic has none."""


class Boundaries:
    """Search for record starts by the consume queues of a store; without queues none is found."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._bases = [name.base_offset for name in view.files]
        self._queues = QueueEntries(storage_of(view.root), view.root)
        self._file: LogFile | None = None

    @property
    def can_tell(self) -> bool:
        """True if the store has consume queues to ask."""
        return self._queues.exist

    def close(self) -> None:
        """Close the file that was read last."""
        if self._file is not None:
            self._file.close()

    def at(self, offset: int) -> Records | None:
        """The record at physical offset `offset`, which must be a record's start; None if none is there."""
        file = self.file_of(offset)
        return None if file is None else file.record_at(offset - file.name.base_offset)

    def after(self, offset: int, end: int) -> Records | None:
        """A record of `offset`'s file that starts in the physical offsets [offset, end) and that its queue has; None if
        none is found."""
        file = self.file_of(offset) if self.can_tell else None
        if file is None:
            return None
        base = file.name.base_offset
        at, stop = offset - base, min(end, file.name.end_offset, self._view.end_offset) - base
        for _ in range(TRIES):
            found = file.find_record(at, stop)
            if found is None:
                return None
            record = file.record_at(found)
            if record is not None and self._queues.has(record):
                return record
            at = found + 1
        return None

    def file_of(self, offset: int) -> LogFile | None:
        """The file that has this byte; None if none has. It is closed when another one is asked for."""
        if self._file is not None and self._file.name.base_offset <= offset < self._file.name.end_offset:
            return self._file
        self.close()
        place = bisect_right(self._bases, offset) - 1
        name = self._view.files[place] if place >= 0 else None
        self._file = LogFile(name) if name is not None and offset < name.end_offset else None
        return self._file


RANGE_MIN_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole records of one file: physical offsets [start, end). Picklable."""

    file: LogFileInfo
    start: int
    end: int
    source: Source
    peers: tuple[StoreView, ...] = ()
    """Replicas of the same stretch, to be compared."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the log in the range."""
        return self.end - self.start


def plan_ranges(
    view: StoreView,
    *,
    min_ranges: int,
    target_bytes: int | None = None,
    max_records: int | None = None,
    pass_damage: bool = False,
    peers: Sequence[StoreView] = (),
) -> list[LogRange]:
    """Cut the log into ranges at record starts, at least `min_ranges` where they would not fall below 4 MiB, of about
    `target_bytes` where consume queues tell record starts, each of at most `max_records` records; `peers` are replicas
    to compare them with.

    A cut reads some 256 KiB of log and one entry of a queue. Where queues do not tell enough record starts a file that
    must be cut is walked, as all files are for `max_records`; a file that fits one range is not read here. StoreError
    where a walk meets damage, unless it is passed.
    """
    source = Source(view.broker_name, view.epochs, view.root)
    whole = []
    for name, start in zip(view.files, view.starts, strict=True):
        end = min(name.end_offset, view.end_offset)
        if start < end:
            whole.append(LogRange(name, start, end, source))
    total = sum(item.size_bytes for item in whole)
    most = max(RANGE_MIN_BYTES, -(-total // max(min_ranges, 1)))
    wanted = most if target_bytes is None else max(RANGE_MIN_BYTES, min(target_bytes, most))
    boundaries = Boundaries(view)
    cut: list[LogRange] = []
    try:
        for item in whole:
            found = [] if max_records is not None else _cut_by_queues(item, _count(item, wanted), boundaries)
            enough = len(found) >= _count(item, most)
            cut += found if found and enough else _cut(item, _count(item, most), max_records, pass_damage)
    finally:
        boundaries.close()
    if not peers:
        return cut
    return [replace(item, peers=tuple(_held(peer, item) for peer in peers)) for item in cut]


def _count(item: LogRange, size_bytes: int) -> int:
    return max(round(item.size_bytes / size_bytes), 1)


def _goals(item: LogRange, count: int) -> I64:
    """Offsets at which cuts are wanted."""
    return item.start + np.arange(1, count) * (item.size_bytes // count)


def _at_cuts(item: LogRange, cuts: Sequence[int]) -> list[LogRange]:
    bounds = [item.start, *sorted(set(cuts) - {item.start}), item.end]
    return [LogRange(item.file, low, high, item.source) for low, high in pairwise(bounds)]


def _cut_by_queues(item: LogRange, count: int, boundaries: Boundaries) -> list[LogRange]:
    """Cut the range into about `count` ranges, fewer where the queues do not tell where a record starts."""
    cuts = []
    for goal in _goals(item, count).tolist():
        end = min(goal + min(item.size_bytes // count, RECORD_MAX_BYTES), item.end)
        found = boundaries.after(goal, end)
        if found is not None:
            cuts.append(int(found.number("physicalOffset")[0]))
    return _at_cuts(item, cuts)


def _held(peer: StoreView, item: LogRange) -> StoreView:
    """View of the part of the range that a replica has."""
    return between(peer, item.start, max(min(item.end, peer.end_offset), item.start))


def _cut(item: LogRange, count: int, max_records: int | None, pass_damage: bool) -> list[LogRange]:
    """Cut the range by a walk over its records."""
    if count == 1 and max_records is None:
        return [item]
    starts = _record_starts(item, pass_damage)
    places = [0, *np.searchsorted(starts, _goals(item, count)).tolist(), len(starts)]
    if max_records is not None:
        places = [at for low, high in pairwise(places) for at in range(low, high, max_records)]
    return _at_cuts(item, [int(starts[place]) for place in places if place < len(starts)])


def _record_starts(item: LogRange, pass_damage: bool) -> I64:
    """Physical offsets of the range's records."""
    base, found = item.file.base_offset, [np.empty(0, np.int64)]
    with LogFile(item.file) as file:
        for piece in pieces(file, item.start - base, item.end - base, item.source, pass_damage=pass_damage):
            if isinstance(piece, Records):
                found.append(piece.number("physicalOffset"))
    return np.concatenate(found)


def group_ranges(ranges: Sequence[LogRange], target_bytes: int) -> list[tuple[LogRange, ...]]:
    """Put small neighbouring ranges together, so that a log of many small files does not make as many tasks."""
    groups: list[list[LogRange]] = []
    filled = target_bytes
    for item in ranges:
        if filled + item.size_bytes > target_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(item)
        filled += item.size_bytes
    return [tuple(group) for group in groups]
