"""Reads over damaged parts of the log: the records before and after each, and the stretch itself (data plane).

A stretch is damaged from where no record starts, or where one starts whose lengths do not add up, to the next place
that looks like a record's start: magic and own offset agree. So a damaged size cannot hide the records behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rmqha.model.error import StoreError
from rmqha.scan.columns import CORRUPT, Decoding, Records, Source
from rmqha.scan.read import WINDOW_BYTES, LogFile
from rmqha.scan.walk import I64, RECORD_MAX_BYTES, RECORD_MIN_BYTES, Window, find_record, walk

AFTER_DAMAGE_BYTES = 64 * 1024
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Damage:
    """Physical offsets [start, end) that hold no sound record, and why."""

    start: int
    end: int
    sentence: str
    source: Source

    def batches(self, decoding: Decoding) -> Iterator[Any]:
        """One RecordBatch of one row: the place, and the sentence in _corrupt; all other columns are null."""
        known: dict[str, Any] = {
            "physicalOffset": self.start,
            "storeSize": min(self.end - self.start, INT32_MAX),
            "brokerName": self.source.broker_name,
            CORRUPT: f"{self.sentence} (up to {self.end})",
        }
        schema = decoding.schema
        yield pa.RecordBatch.from_arrays(
            [pa.array([known.get(field.name)], field.type) for field in schema], schema=schema
        )


def pieces(
    file: LogFile,
    start: int,
    stop: int,
    source: Source,
    *,
    pass_damage: bool = False,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Records | Damage]:
    """The records of the positions [start, stop), a window at a time; valid until the next one is asked for.

    StoreError where no record starts, unless damage is passed; then also records that do not add up are damage. The
    damage of a window comes after its records.
    """
    if pass_damage:
        yield from _over_damage(file, start, stop, source)
        return
    for at, window, chain in file.windows(start, stop, window_bytes):
        if len(chain.starts):
            yield Records(window, chain.starts, source, seen_flags=chain.seen_flags)
        if chain.broken:
            raise StoreError(file.describe_break(at + chain.end, stop))


def _over_damage(file: LogFile, start: int, stop: int, source: Source) -> Iterator[Records | Damage]:
    position, size = start, WINDOW_BYTES
    while position < stop:
        window = file.window(position, min(position + size, stop), reused=True)
        found = _Salvage(file, window, stop - position, source)
        records = found.records()
        if not found.end and not found.damage and found.broken is None:
            size = min(size * 4, 2 * RECORD_MAX_BYTES)  # one record is longer than the window
            continue
        if len(records):
            yield records
        yield from found.damage
        position += found.end
        if found.broken is not None:
            after = file.find_record(position + 1, stop)
            after = stop if after is None else after
            yield Damage(file.name.base_offset + position, file.name.base_offset + after, found.broken, source)
            position = after
        # small windows where damage is: what is walked again for each does not add up then
        size = AFTER_DAMAGE_BYTES if found.damage or found.broken else min(size * 4, WINDOW_BYTES)


class _Salvage:
    """The records of a window and the damage between them. `end`: position up to which it was understood; `broken`: the
    reason why it ends there, if the damage ends behind the window."""

    def __init__(self, file: LogFile, window: Window, stop: int, source: Source) -> None:
        self._file, self._window, self._stop, self._source = file, window, stop, source
        self._kept: list[I64] = [np.empty(0, np.int64)]
        self.damage: list[Damage] = []
        self.end = 0
        self.broken: str | None = None

    def records(self) -> Records:
        while self.end < self._window.size_bytes and self.broken is None:
            chain = walk(self._window.after(self.end), self._stop - self.end)
            starts, end = chain.starts + self.end, self.end + chain.end
            hidden = self._keep_whole(Records(self._window, starts, self._source))
            if hidden is not None:
                self.end = hidden
                continue
            self.end = end
            if not chain.broken:
                break
            sentence = self._describe_break(end)
            after = find_record(self._window, end + 1, self._stop)
            if after is None:
                self.broken = sentence
            else:
                self._add(end, after, sentence)
                self.end = after
        return Records(self._window, np.concatenate(self._kept), self._source)

    def _keep_whole(self, records: Records) -> int | None:
        """Position to go on from if a record that does not add up hides another one in what it claims to be its
        bytes."""
        whole, low = records.whole, 0
        for bad in np.flatnonzero(~whole).tolist():
            self._kept.append(records.starts[low:bad])
            low = bad + 1
            start = int(records.starts[bad])
            end = start + int(records.fixed["storeSize"][bad])
            # it may end behind what the damaged size claims: a size that claims a little too much hides a whole one
            hidden = find_record(self._window, start + 1, self._stop, until=end)
            if hidden is None and self._window.size_bytes - RECORD_MIN_BYTES < end and self._goes_on:
                self.broken = records.describe_incomplete(bad)  # a neighbour's header may be cut by the window's end
                return start
            self._add(start, end if hidden is None else hidden, records.describe_incomplete(bad))
            if hidden is not None:
                return hidden
        self._kept.append(records.starts[low:])
        return None

    @property
    def _goes_on(self) -> bool:
        """True if there is more behind the window."""
        return self._window.size_bytes < self._stop

    def _describe_break(self, end: int) -> str:
        base = self._window.base_offset - self._file.name.base_offset
        return self._file.describe_break(base + end, base + self._stop)

    def _add(self, start: int, end: int, sentence: str) -> None:
        base = self._window.base_offset
        self.damage.append(Damage(base + start, base + end, sentence, self._source))
