"""How a log is cut into ranges that other processes read (control plane)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rmqha.store.scan_columns import I64, Records, Source
from rmqha.store.scan_damage import pieces
from rmqha.store.scan_files import StoreView
from rmqha.store.scan_position import between
from rmqha.store.scan_read import FileName, LogFile

RANGE_MIN_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole records of one file: physical offsets [start, end). Picklable."""

    file: FileName
    start: int
    end: int
    source: Source
    peers: tuple[StoreView, ...] = ()
    """Replicas of the same stretch, to be compared."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def plan_ranges(
    view: StoreView,
    *,
    min_ranges: int,
    max_records: int | None = None,
    pass_damage: bool = False,
    peers: Sequence[StoreView] = (),
) -> list[LogRange]:
    """Cut the log into ranges at record starts, at least `min_ranges` where they would not fall below 4 MiB, each of at
    most `max_records` records; `peers` are replicas to compare them with.

    A file that must be cut is walked for its record starts; a file that fits one range is not read here. StoreError
    where a walk meets damage, unless it is passed.
    """
    source = Source(view.broker_name, view.epochs)
    whole = []
    for name, start in zip(view.files, view.starts, strict=True):
        end = min(name.end_offset, view.end_offset)
        if start < end:
            whole.append(LogRange(name, start, end, source))
    total = sum(item.size_bytes for item in whole)
    target = max(RANGE_MIN_BYTES, -(-total // max(min_ranges, 1)))
    cut = [piece for item in whole for piece in _cut(item, target, max_records, pass_damage)]
    if not peers:
        return cut
    return [replace(item, peers=tuple(_held(peer, item) for peer in peers)) for item in cut]


def _held(peer: StoreView, item: LogRange) -> StoreView:
    """What a replica has of the range."""
    return between(peer, item.start, max(min(item.end, peer.end_offset), item.start))


def _cut(item: LogRange, target: int, max_records: int | None, pass_damage: bool) -> list[LogRange]:
    count = max(round(item.size_bytes / target), 1)
    if count == 1 and max_records is None:
        return [item]
    starts = _record_starts(item, pass_damage)
    goals = item.start + np.arange(1, count) * (item.size_bytes // count)
    places = [0, *np.searchsorted(starts, goals).tolist(), len(starts)]
    if max_records is not None:
        places = [at for low, high in pairwise(places) for at in range(low, high, max_records)]
    cuts = sorted({int(starts[place]) for place in places if place < len(starts)} - {item.start})
    bounds = [item.start, *cuts, item.end]
    return [LogRange(item.file, low, high, item.source) for low, high in pairwise(bounds)]


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
