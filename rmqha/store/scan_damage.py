"""Reading over what is damaged: the records before and after it, and the stretch itself (data plane).

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
from rmqha.store.scan_columns import CORRUPT, Decoding, Records, Source
from rmqha.store.scan_read import WINDOW_BYTES, LogFile

AFTER_DAMAGE_BYTES = 64 * 1024
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Damage:
    """Physical offsets [start, end) that hold no sound record, and why."""

    start: int
    end: int
    sentence: str
    source: Source

    def batch(self, decoding: Decoding) -> Any:
        """One row: the place, and the sentence in _corrupt; everything that a record would tell is null."""
        known: dict[str, Any] = {
            "physicalOffset": self.start,
            "storeSize": min(self.end - self.start, INT32_MAX),
            "brokerName": self.source.broker_name,
            CORRUPT: f"{self.sentence} (up to {self.end})",
        }
        schema = decoding.schema
        return pa.RecordBatch.from_arrays(
            [pa.array([known.get(field.name)], field.type) for field in schema], schema=schema
        )


def pieces(
    file: LogFile, start: int, stop: int, source: Source, *, pass_damage: bool = False
) -> Iterator[Records | Damage]:
    """The records of the positions [start, stop), a window at a time, good until the next is asked for.

    StoreError where no record starts, unless damage is passed; then also records that do not add up are damage.
    """
    position, size, base = start, WINDOW_BYTES, file.name.base_offset
    while position < stop:
        sentence = None
        for at, window, chain in file.windows(position, stop, size):
            records = Records(window, chain.starts, source)
            position = at + chain.end
            if pass_damage and not records.whole.all():
                bad = int(np.argmin(records.whole))
                position, sentence = at + int(chain.starts[bad]), records.describe_unwhole(bad)
                records = Records(window, chain.starts[:bad], source)
            elif chain.broken:
                sentence = file.describe_break(position, stop)
            if len(records):
                yield records
            if sentence is not None:
                break
        if sentence is None:
            return
        if not pass_damage:
            raise StoreError(sentence)
        found = file.find_record(position + 1, stop)
        after = stop if found is None else found
        yield Damage(base + position, base + after, sentence, source)
        position, size = after, AFTER_DAMAGE_BYTES
