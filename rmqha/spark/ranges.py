"""Wide reads as one `mapInArrow`: ranges of the log come as rows, and messages as batches made of those.

Spark 4.3 copies each row of a Python data source once more (the Project above its scan), so reads with bodies or
properties are made of two steps: a data source of one row a task, which plans as "commitlog" does and returns the
task's ranges as bytes; and `mapInArrow` over it, which reads them. The first step's processes load nothing of the
decoder.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.util import PythonEvalType

RANGES = "ranges"
"""The column of the first step."""
WIDE_COLUMNS = frozenset(("body", "properties"))
"""Columns that make a read wide; without them the second step costs what it spares."""


def is_wide(columns: Iterable[str]) -> bool:
    """True if a read of these columns is faster as a `mapInArrow`."""
    return not WIDE_COLUMNS.isdisjoint(columns)


class RangesReader(DataSourceReader):
    """Reader that returns the tasks of another reader, each as one row."""

    def __init__(self, reader: DataSourceReader | None) -> None:
        self._reader = reader

    def __reduce__(self) -> tuple[Any, ...]:
        return RangesReader, (None,)

    def partitions(self) -> list[InputPartition]:
        """One partition for each task. Errors as of the reader's own."""
        assert self._reader is not None, "only the process that has made a reader plans"
        planned = self._reader.partitions() or [InputPartition(None)]
        return [InputPartition(pickle.dumps((self._reader, item))) for item in planned]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The one row of a task."""
        yield pa.RecordBatch.from_arrays([pa.array([partition.value], pa.binary())], [RANGES])


def read_ranges(rows: Iterator[Any]) -> Iterator[Any]:
    """Read the ranges in `rows` and yield batches of messages; runs in a task."""
    for batch in rows:
        for row in batch.column(0):
            reader, partition = pickle.loads(row.as_py())
            yield from reader.read(partition)


def messages(ranges: DataFrame, ddl: str) -> DataFrame:
    """The messages of the first step's DataFrame, with columns as `ddl` writes them."""
    from pyspark.sql.udf import UserDefinedFunction  # a task goes without

    # DataFrame.mapInArrow does the same, and insists on pandas, which it does not use
    made = UserDefinedFunction(read_ranges, ddl, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    java: Any = ranges
    return DataFrame(java._jdf.mapInArrow(made(ranges[RANGES])._jc, False, None), ranges.sparkSession)
