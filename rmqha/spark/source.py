"""The Spark data source "commitlog": rows straight from CommitLog files, vectorised.

    spark.read.format("commitlog").option("topic", "orders").load("/data/broker-a")

Every task reads whole ranges of whole records and sends Arrow batches. How far the log was committed is fixed by the
first action on a DataFrame: load again to see what has come since.

What is not read at all. Spark 4's Python data sources get no column pruning: name the columns with the option `columns`
or with `.schema("topic string, queueId int")`. Rows are pruned by the options topic, queueId, starting… and ending…,
always rightly. Pruning by WHERE is Spark's filter pushdown, which works here too, but Spark 4.3 keeps what was pushed
last in an object that all scans of one loaded DataFrame share: in a UNION or a join of the DataFrame with itself, and
in its next query without a filter, a scan silently gets another scan's rows. So filters are pushed only with the option
`pushFilters`, for a DataFrame that is scanned once; `rmqha.spark.query` sets it where it has counted one scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rmqha.model.error import UsageError
from rmqha.scan.api import RowFilter, by_group, prune, told_of
from rmqha.spark.options import ReadOptions, column_type, known_column
from rmqha.spark.partition import UNKNOWN, LogPartition, Sizing, partitions, read
from rmqha.spark.pushdown import push
from rmqha.spark.stream import CommitLogStreamReader
from rmqha.spark.write_rows import check_schema, parse_write_options
from rmqha.spark.writer import CommitLogWriter


class CommitLogSource(DataSource):
    """Registered by `rmqha.spark.register`, as a class that knows the session's cores."""

    sizing = UNKNOWN

    @classmethod
    def name(cls) -> str:
        """Name of the data source in `spark.read.format`."""
        return "commitlog"

    def schema(self) -> str:
        """Columns as DDL. Raises UsageError for a wrong option or path."""
        options = ReadOptions.parse(self.options)
        options.check_paths()
        return options.ddl

    def reader(self, schema: StructType) -> CommitLogReader:
        """Reader of a batch query. Raises UsageError for wrong options or columns."""
        options, properties_as = self._checked(schema)
        if options.from_latest:
            raise UsageError("startingOffsets = 'latest' is for a streaming query; here it would read nothing")
        kind = PushingReader if options.push_filters else CommitLogReader
        return kind(options, schema.fieldNames(), properties_as, self.sizing)

    def streamReader(self, schema: StructType) -> CommitLogStreamReader:  # noqa: N802 - the base class's name
        """Reader of a streaming query. Raises UsageError for wrong options or columns."""
        options, properties_as = self._checked(schema)
        if options.has_ending_offsets:
            raise UsageError("endingOffsets is not for a streaming query, which has no end: leave it out")
        return CommitLogStreamReader(options, schema.fieldNames(), properties_as, self.sizing)

    def writer(self, schema: StructType, overwrite: bool) -> CommitLogWriter:
        """Writer of a new or an existing store. Raises UsageError for wrong options or columns."""
        path, config = parse_write_options(self.options)
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields})
        return CommitLogWriter(path, config, overwrite=overwrite)

    def _checked(self, schema: StructType) -> tuple[ReadOptions, str]:
        """The options, and the form of the properties that the schema asks for. UsageError for a foreign column."""
        options = ReadOptions.parse(self.options)
        properties_as = options.properties_as
        for field in schema.fields:
            name, given = known_column(field.name, options.on_corrupt), field.dataType.simpleString()
            if name != field.name:
                raise UsageError(f"commitlog's column {name} is spelled so, not {field.name}")
            types = {column_type(name, form): form for form in ("json", "map")}
            if given not in types:
                raise UsageError(f"commitlog's column {name} is a {' or '.join(types)}, not a {given}")
            if name == "properties":
                properties_as = types[given]
        return options, properties_as


class CommitLogReader(DataSourceReader):
    """Plans in one Python process of the driver, reads in those of the tasks; pickled in between."""

    def __init__(self, options: ReadOptions, columns: list[str], properties_as: str, sizing: Sizing = UNKNOWN) -> None:
        self._options, self._sizing = options, sizing
        self._decoding = options.decoding(columns, properties_as)
        self._rows: RowFilter = options.rows

    def partitions(self) -> list[LogPartition]:
        """Ranges of the log, one for each task. Raises UsageError or StoreError."""
        with told_of(", ".join(self._options.paths)):
            return self._partitions()

    def _partitions(self) -> list[LogPartition]:
        groups = by_group(self._options.open())
        self._options.check_loss([view for view, *_ in groups])
        pruned = self._options.on_corrupt != "row"  # a damaged stretch has no time
        kept = [
            [prune(group[0], self._rows, self._options.timestamp_slack_ms) if pruned else group[0], *group[1:]]
            for group in groups
        ]
        return partitions(self._options, kept, self._rows, self._sizing)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Rows of one partition as Arrow record batches; runs in a task."""
        return read(self._options, partition, self._decoding, self._rows)


class PushingReader(CommitLogReader):
    """Also lets Spark's filters prune. An own class: Spark asks for a session setting as soon as the method exists."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the base class's name
        """Takes what it can apply exactly; the rest stays with Spark."""
        self._rows, left = push(self._rows, filters)
        return left
