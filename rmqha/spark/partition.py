"""What the tasks of Spark read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pyspark.sql.datasource import InputPartition

from rmqha.model.error import UsageError
from rmqha.spark.options import ReadOptions
from rmqha.store.scan import Decoding, LogRange, ReadCounts, RowFilter, StoreView, group_ranges, plan_ranges, read_range

TASK_MAX_BYTES = 1024 * 1024 * 1024
TASKS_PER_CORE = 2


class LogPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[LogRange, ...]) -> None:
        super().__init__(ranges)


def partitions(options: ReadOptions, groups: Sequence[Sequence[StoreView]]) -> list[LogPartition]:
    """Tasks for the first view of each group; the others are replicas to compare it with, if that was asked for."""
    least = options.min_partitions or TASKS_PER_CORE * (os.cpu_count() or 1)
    ranges = []
    for view, *peers in groups:
        ranges += plan_ranges(
            view,
            min_ranges=-(-least // len(groups)),
            max_records=options.max_records_per_partition,
            pass_damage=options.on_corrupt != "fail",
            peers=peers if options.verify_replicas else (),
        )
    if options.max_records_per_partition is not None:
        return [LogPartition((item,)) for item in ranges]
    share = -(-sum(item.size_bytes for item in ranges) // least)
    return [LogPartition(group) for group in group_ranges(ranges, min(share, TASK_MAX_BYTES))]


def read(options: ReadOptions, partition: InputPartition, decoding: Decoding, rows: RowFilter) -> Iterator[Any]:
    """The batches of one task."""
    counts, row_count = ReadCounts(), 0
    for item in partition.value or ():
        for batch in read_range(
            item,
            decoding,
            rows,
            pass_loss=not options.fail_on_data_loss,
            use_queues=options.use_queues,
            counts=counts,
        ):
            row_count += batch.num_rows
            yield batch
    if options.read_report is not None:
        _report(options.read_report, partition.value or (), row_count, counts)


def _report(directory: str, ranges: Sequence[LogRange], row_count: int, counts: ReadCounts) -> None:
    """One file for each task that ended, also for one that Spark ran again. UsageError if it cannot be written."""
    told = {
        "ranges": [[item.file.path, item.start, item.end] for item in ranges],
        "rangeBytes": sum(item.size_bytes for item in ranges),
        "logBytes": counts.log_bytes,
        "queueBytes": counts.queue_bytes,
        "rows": row_count,
        "walkedBytes": counts.walked,
    }
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=directory, prefix="task-", suffix=".json", delete=False) as file:
            json.dump(told, file)
    except OSError as error:
        raise UsageError(f"readReport = {directory} cannot be written: {error.strerror or error}") from None
