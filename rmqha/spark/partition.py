"""Partitions that the tasks of Spark read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rmqha.host import kernel_choice
from rmqha.model.error import UsageError
from rmqha.scan.api import Decoding, LogRange, ReadCounts, RowFilter, StoreView, group_ranges, plan_ranges, read_range
from rmqha.scan.index import is_indexed
from rmqha.scan.native import columns as native_columns
from rmqha.scan.storage import LocalStorage, storage_of
from rmqha.spark.errors import sentences
from rmqha.spark.options import ReadOptions

TASK_MAX_BYTES = 1024 * 1024 * 1024
"""Largest size of a task: a whole file of RocketMQ's default size."""
TASK_BYTES = 256 * 1024 * 1024
"""Usual size of a task: a second of one core's work. A task costs 8 ms of Python's CPU, and some of the JVM's."""
TASKS_PER_CORE = 2
CUT_TASKS, REMOTE_CUT_TASKS = 4096, 128
"""Most tasks that are made by cutting files: the driver searches one record for each cut, which takes a millisecond on
a local disk and a tenth of a second elsewhere."""


@dataclass(frozen=True, slots=True)
class TaskSizing:
    """Number of cores that will read, and the sizes of tasks that follow from it."""

    core_count: int | None = None
    """Number of cores; None if it is not known, as with Spark Connect: then that of the machine that plans counts."""
    may_grow: bool = True
    """True if executors come and go: tasks are then small enough for more cores than these."""

    @property
    def least_tasks(self) -> int:
        """Number of tasks that keep all cores busy."""
        return TASKS_PER_CORE * (self.core_count or os.cpu_count() or 1)

    def task_bytes(self, log_bytes: int, cut_tasks: int) -> int:
        """Size of a task (bytes), so that the log makes at least `least_tasks`."""
        wanted = max(TASK_BYTES, -(-log_bytes // cut_tasks)) if self.may_grow else TASK_MAX_BYTES
        return min(wanted, TASK_MAX_BYTES)


UNKNOWN = TaskSizing()


JOINED_BYTES, JOINED_COUNT = 1024 * 1024, 16
"""Batches of fewer bytes are sent to Spark together, as many as make so much, and never more at once: each costs it a
tenth of a millisecond, as much as some hundred rows."""


class LogPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[LogRange, ...]) -> None:
        super().__init__(ranges)


def partitions(
    options: ReadOptions, groups: Sequence[Sequence[StoreView]], rows: RowFilter, sizing: TaskSizing
) -> list[LogPartition]:
    """Tasks for the first view of each group; the others are replicas to compare it with, if that was asked for."""
    least = options.min_partitions or sizing.least_tasks
    total = sum(view.size_bytes for view, *_ in groups)
    is_local = all(isinstance(storage_of(view.root), LocalStorage) for view, *_ in groups)
    target = sizing.task_bytes(total, CUT_TASKS if is_local else REMOTE_CUT_TASKS)
    if is_indexed(rows) and options.use_queues:
        target = TASK_MAX_BYTES  # little of it is read, and every task searches all queues
    ranges = []
    for view, *peers in groups:
        ranges += plan_ranges(
            view,
            min_ranges=-(-least // len(groups)),
            target_bytes=target,
            max_records=options.max_records_per_partition,
            pass_damage=options.on_corrupt != "fail",
            peers=peers if options.verify_replicas else (),
        )
    if options.max_records_per_partition is not None:
        return [LogPartition((item,)) for item in ranges]
    share = -(-sum(item.size_bytes for item in ranges) // least)
    return [LogPartition(group) for group in group_ranges(ranges, min(share, target))]


def read(options: ReadOptions, partition: InputPartition, decoding: Decoding, rows: RowFilter) -> Iterator[Any]:
    """The batches of one task."""
    with sentences():
        yield from joined(_read(options, partition, decoding, rows))


def joined(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches, with small ones that follow each other joined."""
    waiting: list[Any] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= JOINED_BYTES or len(waiting) == JOINED_COUNT:
            yield _one_of(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _one_of(waiting)


def _one_of(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _read(options: ReadOptions, partition: InputPartition, decoding: Decoding, rows: RowFilter) -> Iterator[Any]:
    options.use_storage()
    native_columns.use(kernel_choice.native_columns())
    counts, row_count = ReadCounts(), 0
    for item in partition.value or ():
        for batch in read_range(
            item,
            decoding,
            rows,
            pass_loss=not options.fail_on_data_loss,
            use_queues=options.use_queues,
            trust_index=options.trust_index,
            counts=counts,
        ):
            row_count += batch.num_rows
            yield batch
    if options.read_report is not None:
        _report(options.read_report, partition.value or (), rows, row_count, counts)


def _report(directory: str, ranges: Sequence[LogRange], rows: RowFilter, row_count: int, counts: ReadCounts) -> None:
    """Write the counts of a task that ended to a file of its own, also if Spark runs it again. UsageError if it cannot
    be written."""
    told = {
        "ranges": [[item.file.path, item.start, item.end] for item in ranges],
        "rangeBytes": sum(item.size_bytes for item in ranges),
        "logBytes": counts.log_bytes,
        "queueBytes": counts.queue_bytes,
        "rows": row_count,
        "filter": rows.conditions_by_column,
        "walkedBytes": counts.walked,
    }
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=directory, prefix="task-", suffix=".json", delete=False) as file:
            json.dump(told, file)
    except OSError as error:
        raise UsageError(f"readReport = {directory} cannot be written: {error.strerror or error}") from None
