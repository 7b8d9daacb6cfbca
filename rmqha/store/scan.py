"""Reading a store directory as Arrow RecordBatches, without Spark and without a broker (data plane).

    view = open_store("/data/broker-a")
    for batch in read_store(view, Decoding(columns=("topic", "queueOffset", "body"))): ...

`open_store` fixes how far the log is committed; `plan_ranges` cuts it into ranges that other processes can read with
`read_range`. An inner batch of a BatchCQ topic is one row, as it is stored. This module and the other scan_ modules
are the only ones of the store that import NumPy and pyarrow; nobody imports them but readers of columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rmqha.model.error import StoreError
from rmqha.store.scan_columns import TYPES, Decoding, Records, Source
from rmqha.store.scan_files import LogRange, StoreView, group_ranges, map_file, open_store, plan_ranges
from rmqha.store.scan_filter import Interval, RowFilter
from rmqha.store.scan_walk import LogFile, describe_break, walk_blocks

__all__ = [
    "ALL_ROWS",
    "TYPES",
    "Decoding",
    "Interval",
    "LogRange",
    "Records",
    "RowFilter",
    "Source",
    "StoreView",
    "group_ranges",
    "open_store",
    "plan_ranges",
    "read_range",
    "read_store",
]

BATCH_BYTES = 4 * 1024 * 1024
"""About so much log makes one RecordBatch; Arrow's int32 offsets would end at 2 GiB."""


EVERYTHING = Decoding()
ALL_ROWS = RowFilter()


def read_range(item: LogRange, decoding: Decoding = EVERYTHING, rows: RowFilter = ALL_ROWS) -> Iterator[Any]:
    """RecordBatches of the range's records that pass the filter.

    StoreError for a damaged record: names the file, the offset, what was expected and what was found.
    """
    for records in walk_range(item):
        chosen = rows.apply(records)
        if len(chosen):
            yield chosen.batch(decoding)


def read_store(view: StoreView, decoding: Decoding = EVERYTHING, rows: RowFilter = ALL_ROWS) -> Iterator[Any]:
    """The whole store in log order, in this process."""
    bounds = rows.physical_offsets
    for item in plan_ranges(view, min_ranges=1, low=bounds.low, high=bounds.high):
        yield from read_range(item, decoding, rows)


def walk_range(item: LogRange) -> Iterator[Records]:
    """The range's records, undecoded, about BATCH_BYTES of log at a time."""
    file = map_file(item.file)
    base = item.file.base_offset
    stop = item.end - base
    for chain in walk_blocks(file, item.start - base, stop):
        yield from _batches(file, chain.starts, item.source)
        if chain.broken:
            raise StoreError(describe_break(file, chain.end, stop))


def _batches(file: LogFile, starts: np.ndarray, source: Source) -> Iterator[Records]:
    low = 0
    while low < len(starts):
        high = max(int(np.searchsorted(starts, starts[low] + BATCH_BYTES)), low + 1)
        yield Records(file, starts[low:high], source)
        low = high
