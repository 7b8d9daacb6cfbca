"""The Spark data source "commitlog": rows straight from CommitLog files, vectorised.

    spark.read.format("commitlog").option("topic", "orders").load("/data/broker-a")

Every task reads whole ranges of whole records and sends Arrow batches. How far the log was committed is fixed by the
first action on a DataFrame: load again to see what has come since.

Pruning: Spark 4's Python data sources get no column pruning, so name the columns with the option `columns` or with
`.schema("topic string, queueId int")`. Rows are pruned by the options topic, queueId, where, starting… and ending…,
always rightly. Spark's filter pushdown is not used: Spark 4.3 keeps what was pushed last in an object that all scans of
one loaded DataFrame share, so in a UNION or a join of the DataFrame with itself, and in its next query without a
filter, a scan silently gets another scan's rows. `rmqha.spark.read` and `sql` make options of what a query needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rmqha.model.error import UsageError
from rmqha.scan.api import Interval, RowFilter, by_group, prune, storage_errors
from rmqha.spark.errors import sentences
from rmqha.spark.options import COMMENTS, ReadOptions, column_type, is_table, known_column, without_table_properties
from rmqha.spark.partition import UNKNOWN, LogPartition, TaskSizing, partitions, read
from rmqha.spark.ranges import RANGES, RangesReader

if TYPE_CHECKING:
    from rmqha.spark.stream import CommitLogStreamReader
    from rmqha.spark.writer import CommitLogWriter

TABLE_OPTIONS = "rmqha.options"
"""Key of a column's metadata."""


class CommitLogSource(DataSource):
    """The data source "commitlog", registered by `rmqha.spark.register` as a class that knows the session's cores."""

    sizing = UNKNOWN
    storage: Mapping[str, str] = MappingProxyType({})
    """The session's own settings fs.s3a.…"""

    @classmethod
    def name(cls) -> str:
        """Name of the data source in `spark.read.format`."""
        return "commitlog"

    @sentences()
    def schema(self) -> str | StructType:
        """The columns. Raises UsageError for a wrong option or path."""
        options = ReadOptions.parse(self.options, self.storage)
        options.check_paths()
        if not is_table(self.options):
            return options.ddl
        # Spark hands the options of a catalog's table to nobody but here: its first column keeps them
        made = from_arrow_schema(options.decoding(options.columns, options.properties_as).schema)
        for field in made.fields:
            field.metadata = {"comment": COMMENTS[field.name]}
        made.fields[0].metadata[TABLE_OPTIONS] = without_table_properties(self.options)
        return made

    @sentences()
    def reader(self, schema: StructType) -> CommitLogReader:
        """Reader of a batch query. Raises UsageError for wrong options or columns."""
        options, properties_as = self._checked(schema)
        return self._reader(options, schema.fieldNames(), properties_as)

    @sentences()
    def streamReader(self, schema: StructType) -> CommitLogStreamReader:  # noqa: N802 - the base class's name
        """Reader of a streaming query. Raises UsageError for wrong options or columns."""
        from rmqha.spark.stream import CommitLogStreamReader  # a batch query's processes go without

        options, properties_as = self._checked(schema)
        if options.has_ending_offsets:
            raise UsageError("endingOffsets is not for a streaming query, which has no end: leave it out")
        return CommitLogStreamReader(options, schema.fieldNames(), properties_as, self.sizing)

    @sentences()
    def writer(self, schema: StructType, overwrite: bool) -> CommitLogWriter:
        """Writer of a new or an existing store. Raises UsageError for wrong options or columns."""
        from rmqha.spark.write_rows import check_schema, parse_write_options
        from rmqha.spark.writer import CommitLogWriter  # with the store; those that only read go without

        path, config = parse_write_options(self.options)
        check_schema({field.name: field.dataType.simpleString() for field in schema.fields})
        return CommitLogWriter(path, config, overwrite=overwrite)

    def _reader(self, options: ReadOptions, columns: list[str], properties_as: str) -> CommitLogReader:
        if options.from_latest:
            raise UsageError("startingOffsets = 'latest' is for a streaming query; here it would read nothing")
        return CommitLogReader(options, columns, properties_as, self.sizing)

    def _options_of(self, schema: StructType) -> dict[str, str]:
        given = dict(self.options)
        kept = {} if given else next((field.metadata.get(TABLE_OPTIONS) or {} for field in schema.fields), {})
        if not given and not kept:
            raise UsageError(
                "commitlog is given no options: a table keeps them only if CREATE TABLE … USING commitlog names no "
                "columns; choose those by the option columns"
            )
        return given or dict(kept)

    def _checked(self, schema: StructType) -> tuple[ReadOptions, str]:
        """The options, and the form of the properties that the schema asks for. UsageError for a foreign column."""
        options = ReadOptions.parse(self._options_of(schema), self.storage)
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


class CommitLogRanges(CommitLogSource):
    """Data source of the tasks of a read: one row for each, with the ranges of the log that it reads (`ranges.py`)."""

    @classmethod
    def name(cls) -> str:
        """Name of the data source in `spark.read.format`."""
        return "commitlog_ranges"

    def schema(self) -> str:
        """The one column. The options are checked by `reader`."""
        return f"{RANGES} binary"

    @sentences()
    def reader(self, schema: StructType) -> RangesReader:  # type: ignore[override]
        """Reader of the ranges. Raises UsageError for wrong options."""
        options = ReadOptions.parse(self.options, self.storage)
        return RangesReader(self._reader(options, list(options.columns), options.properties_as))


class CommitLogReader(DataSourceReader):
    """Reader of a batch query: it plans in one Python process of the driver, reads in those of the tasks, and is
    pickled in between."""

    def __init__(
        self, options: ReadOptions, columns: list[str], properties_as: str, sizing: TaskSizing = UNKNOWN
    ) -> None:
        self._options, self._sizing = options, sizing
        self._decoding = options.decoding(columns, properties_as)
        self._rows: RowFilter = options.rows

    @sentences()
    def partitions(self) -> list[LogPartition]:
        """Ranges of the log, one for each task. Raises UsageError or StoreError."""
        with storage_errors(", ".join(self._options.paths)):
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


# --- filters of Spark as row filters, exactly -------------------------------------------------------------------------
# topic and tags with = and IN; queueId, queueOffset, physicalOffset, bornTimestamp and storeTimestamp with =, IN, <,
# <=, >, >=. Timestamps are kept in milliseconds, Spark compares microseconds: bounds are rounded inwards.

WHOLE_NUMBERS = frozenset(("queueId", "queueOffset", "physicalOffset"))
TIMESTAMPS = frozenset(("bornTimestamp", "storeTimestamp"))
TEXTS = frozenset(("topic", "tags"))
NEVER_NULL = WHOLE_NUMBERS | {"topic"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def push(rows: RowFilter, filters: Iterable[Filter]) -> tuple[RowFilter, list[Filter]]:
    """The row filter with all that can be pushed, and the filters that Spark must still apply."""
    left = []
    for item in filters:
        pushed = _push_one(rows, item)
        if pushed is None:
            left.append(item)
        else:
            rows = pushed
    return rows, [item for item in left if not _is_implied(rows, item)]


def _is_implied(rows: RowFilter, item: Filter) -> bool:
    """True if the pushed filters imply this one: a column that has passed a filter is not null."""
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if not isinstance(item, IsNotNull) or len(path) != 1:
        return False
    name = path[0]
    return rows.tags is not None if name == "tags" else name in rows.intervals or name in rows.values


def _push_one(rows: RowFilter, item: Filter) -> RowFilter | None:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    if len(path) != 1:
        return None
    name = path[0]
    if isinstance(item, IsNotNull):
        return rows if name in NEVER_NULL else None
    if name in TEXTS:
        texts = _texts(item)
        return None if texts is None else rows.with_topics(texts) if name == "topic" else rows.with_tags(texts)
    if name in WHOLE_NUMBERS:
        return _push_number(rows, name, item, 1)
    return _push_number(rows, name, item, 1000) if name in TIMESTAMPS else None


def _texts(item: Filter) -> frozenset[str] | None:
    """The values that a filter lets through."""
    match item:
        case EqualTo(value=str(text)):
            return frozenset([text])
        case In(value=texts) if all(isinstance(text, str) for text in texts):
            return frozenset(texts)
    return None


def _push_number(rows: RowFilter, name: str, item: Filter, per_unit: int) -> RowFilter | None:
    """The row filter with a comparison of a numeric column; None if it cannot be pushed. `per_unit`: number of the
    literal's units in one of the column's."""
    if isinstance(item, In):
        numbers = [_number(value, per_unit) for value in item.value]
        if any(number is None for number in numbers):
            return None
        exact = frozenset(number // per_unit for number in numbers if number is not None and number % per_unit == 0)
        return rows.with_values(name, exact)
    number = _number(getattr(item, "value", None), per_unit)
    if number is None:
        return None
    floor, ceiling = number // per_unit, -(-number // per_unit)
    match item:
        case EqualTo():
            return rows.with_interval(name, Interval(ceiling, floor))
        case GreaterThan():
            return rows.with_interval(name, Interval(low=floor + 1))
        case GreaterThanOrEqual():
            return rows.with_interval(name, Interval(low=ceiling))
        case LessThan():
            return rows.with_interval(name, Interval(high=ceiling - 1))
        case LessThanOrEqual():
            return rows.with_interval(name, Interval(high=floor))
    return None


def _number(value: Any, per_unit: int) -> int | None:
    """A literal as a whole number: itself, or microseconds of a timestamp. None for anything else."""
    if per_unit == 1:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return None
