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

from rmqha.store.scan_columns import CORRUPT, TYPES, Decoding, Records, Source
from rmqha.store.scan_damage import Damage, pieces
from rmqha.store.scan_files import Looking, StoreView, cluster_of, open_store, told_of
from rmqha.store.scan_filter import Interval, RowFilter
from rmqha.store.scan_index import ReadCounts, is_indexed
from rmqha.store.scan_named import named
from rmqha.store.scan_plan import LogRange, group_ranges, plan_ranges
from rmqha.store.scan_prune import TIMESTAMP_SLACK_MS, prune
from rmqha.store.scan_read import FILTERED_WINDOW_BYTES, WINDOW_BYTES, GoneError, LogFile
from rmqha.store.scan_replicas import by_group, check_same

__all__ = [
    "ALL_ROWS",
    "CORRUPT",
    "TIMESTAMP_SLACK_MS",
    "TYPES",
    "Decoding",
    "Interval",
    "LogRange",
    "Looking",
    "ReadCounts",
    "Records",
    "RowFilter",
    "Source",
    "StoreView",
    "by_group",
    "cluster_of",
    "group_ranges",
    "open_store",
    "plan_ranges",
    "prune",
    "read_range",
    "read_store",
    "told_of",
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
    counts: ReadCounts | None = None,
) -> Iterator[Any]:
    """RecordBatches of the range's records that pass the filter, about 4 MiB of log each, 8 if there is one.

    A filter on topic, queueId, queueOffset or tags reads only the records that the consume queues name, where these
    prove that they know all of them; `counts` says what was read, and why the log was walked where it was.

    StoreError for a damaged record: names the file, the offset, what was expected and what was found. With
    `on_corrupt` = skip it is left out; with row it is a row of its own, which only physical offsets can leave out.
    A file that has gone is a StoreError too, unless `pass_loss`; so are replicas of the range that differ.
    """
    counts = ReadCounts() if counts is None else counts
    try:
        file = LogFile(item.file)
    except GoneError:
        if pass_loss:
            return
        raise
    with file:
        if is_indexed(rows) and use_queues and not item.peers and decoding.on_corrupt == "fail":
            found: Iterator[Records | Damage] = named(file, item, rows, counts)
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
    """What the range has for the filter, every record of it having been looked at."""
    base, bounds = item.file.base_offset, rows.physical_offsets
    window_bytes = WINDOW_BYTES if rows == ALL_ROWS else FILTERED_WINDOW_BYTES
    pass_damage = decoding.on_corrupt != "fail"
    span = item.start - base, item.end - base
    for piece in pieces(file, *span, item.source, pass_damage=pass_damage, window_bytes=window_bytes):
        if isinstance(piece, Records):
            check_same(piece, item.peers)
            yield rows.apply(piece)
        elif decoding.on_corrupt == "row" and bounds.low <= piece.start <= bounds.high:
            yield piece


def read_store(
    view: StoreView,
    decoding: Decoding = EVERYTHING,
    rows: RowFilter = ALL_ROWS,
    *,
    timestamp_slack_ms: int = TIMESTAMP_SLACK_MS,
    use_queues: bool = True,
    counts: ReadCounts | None = None,
) -> Iterator[Any]:
    """The whole store in log order, in this process; of the log only what the bounds of offsets and times need."""
    # a damaged stretch has no time
    kept = view if decoding.on_corrupt == "row" else prune(view, rows, timestamp_slack_ms)
    for item in plan_ranges(kept, min_ranges=1, pass_damage=decoding.on_corrupt != "fail"):
        yield from read_range(item, decoding, rows, use_queues=use_queues, counts=counts)
