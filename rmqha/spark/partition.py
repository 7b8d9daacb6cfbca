"""What one Spark task reads."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from rmqha.store.scan import LogRange

TASK_MAX_BYTES = 1024 * 1024 * 1024
TASKS_PER_CORE = 2


class LogPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[LogRange, ...]) -> None:
        super().__init__(ranges)
