"""Queries of one or more stores: the view `log` over CommitLog files, of which a query reads no more than it needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmqha.model.error import UsageError
from rmqha.scan.access.tables import SCHEMAS, table
from rmqha.scan.api import TYPES
from rmqha.spark.errors import translate
from rmqha.spark.local import s3a_settings, session
from rmqha.spark.options import ReadOptions
from rmqha.spark.pruning import ScanNeed, found_value, need_of
from rmqha.spark.ranges import is_wide, messages

VIEW = "log"
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_COUNT_STAR = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_WHOLE_ROWS = re.compile(r"\*|\|>|\b(?:pivot|unpivot|natural|table)\b", re.IGNORECASE)
_SELECT = re.compile(r"\s*(?:select|with)\b", re.IGNORECASE)
_CHANGES = re.compile(r"\b(?:insert|create|delete|merge|update|replace)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogSource:
    """Stores, and the options with which they are read."""

    paths: tuple[str, ...]
    options: Mapping[str, str]
    parsed: ReadOptions

    @classmethod
    def of(cls, spark: SparkSession, paths: Paths, options: Mapping[str, Any]) -> LogSource:
        """Check paths and options. Raises UsageError for wrong ones, before Spark does anything."""
        several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
        named = tuple(os.fspath(path) for path in several)
        given = {name: _text(value) for name, value in options.items()}
        parsed = ReadOptions.parse(given | {"paths": json.dumps(named)}, _settings(spark))
        parsed.check_paths()
        return cls(named, given, parsed)

    def frame(self, spark: SparkSession, options: Mapping[str, str] | None = None) -> DataFrame:
        """The DataFrame of the stores, by these options instead of the log's own."""
        return self._load(spark, "commitlog", self.options if options is None else options)

    def narrowed(self, spark: SparkSession, need: ScanNeed) -> DataFrame:
        """The DataFrame of what a query needs of the stores, by the quicker of two ways of reading."""
        given = need.options(self.options)
        chosen = self.parsed
        if found_value(self.options, "columns") is None:
            chosen = replace(chosen, columns=tuple(given["columns"].split(",")))
        if _is_remote(spark) or not is_wide(chosen.columns):
            return self._load(spark, "commitlog", given)
        return messages(self._load(spark, "commitlog_ranges", given), chosen.ddl)

    def _load(self, spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
        return spark.read.format(source).options(**options).load(list(self.paths))


def _settings(spark: SparkSession) -> dict[str, str]:
    return s3a_settings(getattr(spark, "sparkContext", None))


def _is_remote(spark: SparkSession) -> bool:
    """True if the session only asks a server, by Spark Connect."""
    return getattr(spark, "_jsparkSession", None) is None


_LOGS: WeakKeyDictionary[SparkSession, LogSource] = WeakKeyDictionary()
"""The log of each session's view, as `use_log` has set it."""


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else str(value)


def use_log(spark: SparkSession, log: LogSource) -> DataFrame:
    """Make these stores the view `log` of a session, for `sql` too, and return its DataFrame."""
    frame = log.frame(spark)
    frame.createOrReplaceTempView(VIEW)
    _LOGS[spark] = log
    return frame


TIMERS = """
    select brokerName, get_json_object(properties, '$.REAL_TOPIC') topic,
           cast(get_json_object(properties, '$.REAL_QID') as int) queueId,
           timestamp_millis(cast(get_json_object(properties, '$.TIMER_OUT_MS') as bigint)) deliverTimestamp,
           storeTimestamp, msgId, keys, tags, physicalOffset
    from {timers} where get_json_object(properties, '$.TIMER_OUT_MS') is not null
"""
"""Timer messages that the log holds, delivered or not: one whose deliverTimestamp is in the future waits, unless it was
recalled."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
TABLES = (VIEW, *SCHEMAS, "timers")


def tables(spark: SparkSession, paths: Paths, *, names: Sequence[str] = TABLES, **options: Any) -> list[str]:
    """Make temporary views of a session: `log`, and beside it offsets, topics, queues, groups, epochs, replicas and
    timers. All but `log` and `timers` show the files as they are now: call again to renew them.

    Returns the names of the views. Raises UsageError for wrong options or paths, StoreError for damaged files.
    """
    log = LogSource.of(spark, paths, options)
    for name in names:
        if name not in TABLES:
            raise UsageError(f"there is no table {name}: they are {', '.join(TABLES)}")
    if VIEW in names:
        use_log(spark, log)
    if "timers" in names:
        given = {**log.options, "topic": TIMER_TOPIC, "propertiesAs": "json"}
        spark.sql(TIMERS, timers=log.frame(spark, given)).createOrReplaceTempView("timers")
    small = [name for name in names if name in SCHEMAS]
    if small:
        given = {**log.options, "paths": json.dumps(log.paths)}
        views = ReadOptions.parse(given, _settings(spark)).open()
        for name in small:
            spark.createDataFrame(table(name, views)).createOrReplaceTempView(name)
    return list(names)


def behind(query: Any) -> dict[str, int]:
    """Lag of a streaming query (or of a dictionary of its progress): bytes of each log that it has still to read, as of
    its last progress; {} before the first."""
    progress = (
        query if isinstance(query, Mapping) else json.loads(query.lastProgress.json) if query.lastProgress else {}
    )
    found: dict[str, int] = {}
    for source in progress.get("sources", ()):
        ends = [_offsets_in(source.get(name)) for name in ("endOffset", "latestOffset")]
        for log, latest in ends[1].items():
            read_to = ends[0].get(log, {}).get("physicalOffset", 0)
            found[log] = found.get(log, 0) + max(latest.get("physicalOffset", 0) - read_to, 0)
    return found


def _offsets_in(value: Any) -> dict[str, dict[str, int]]:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) and all(isinstance(place, dict) for place in found.values()) else {}


def read(
    spark: SparkSession, paths: Paths, *, columns: Sequence[str] | None = None, where: str | None = None, **options: Any
) -> DataFrame:
    """The rows for which the SQL condition `where` holds, with these columns (all by default), as a DataFrame that
    reads no more of the log than these need. `options` are those of the data source.

    UsageError for wrong options or paths, Spark's AnalysisException for a wrong condition or column.
    """

    def question(frame: DataFrame) -> DataFrame:
        kept = frame if where is None else frame.where(where)
        return kept if columns is None else kept.select(*columns)

    return derive(spark, paths, question, **options)


def derive(spark: SparkSession, paths: Paths, question: Callable[[DataFrame], DataFrame], **options: Any) -> DataFrame:
    """The DataFrame that `question` makes of the stores' rows, reading only what that needs: `question` is called once
    with all columns, to find out which ones it uses, and once more. Errors as of `read`."""
    log = LogSource.of(spark, paths, options)
    plain = question(log.frame(spark))
    need = need_of(plain)
    return plain if need is None else _narrowed(plain, lambda: question(log.narrowed(spark, need)))


def sql(spark: SparkSession, text: str, paths: Paths | None = None, **options: Any) -> DataFrame:
    """The answer to a statement about the view `log`, as a DataFrame that reads no more than it needs.

    `paths` are the stores; without them those of `rmqha.spark.tables`. UsageError without either, and for wrong options
    or paths; Spark's own errors for wrong SQL.
    """
    known = _LOGS.get(spark)
    log = known if paths is None else LogSource.of(spark, paths, options)
    if log is None:
        raise UsageError("no log to ask: give paths, or call rmqha.spark.tables(spark, paths) first")
    whole = use_log(spark, log)
    try:
        return _asked(spark, text, log)
    finally:
        if known is None or known == log:
            whole.createOrReplaceTempView(VIEW)  # Spark asks Python for another DataFrame, which takes it 20 ms
        else:
            use_log(spark, known)


def _asked(spark: SparkSession, text: str, log: LogSource) -> DataFrame:
    plain = spark.sql(text)
    if not _SELECT.match(text) or _CHANGES.search(text):
        return plain  # it may have done something already
    need = need_of(plain) or _need_by_names(text)
    if need is None:
        return plain

    def narrow() -> DataFrame:
        log.narrowed(spark, need).createOrReplaceTempView(VIEW)
        return spark.sql(text)

    return _narrowed(plain, narrow)


def _need_by_names(text: str) -> ScanNeed | None:
    columns = referenced_columns(text)
    return None if columns is None else ScanNeed(columns)


def _narrowed(plain: DataFrame, make: Callable[[], DataFrame]) -> DataFrame:
    """The DataFrame that `make` gives over fewer columns, if its meaning stays: with all columns Spark can name the one
    that was meant, and a name may stand for a column only as long as that is there."""
    try:
        found = make()
    except AnalysisException:
        return plain
    return found if found.schema == plain.schema else plain


def query(
    text: str,
    paths: Sequence[str],
    options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """The answer to the SQL `text` as a pyarrow Table. Paths and options are checked before Spark is started.

    UsageError for SQL, options or paths that are wrong, StoreError for damaged files, each one sentence.
    """
    given = dict(options or {})
    ReadOptions.parse(given | {"paths": json.dumps(list(paths))}).open()
    say = progress or (lambda text: None)
    say("starting Spark, which takes about 8 s")
    spark = session("rmqha spark query")
    try:
        say("reading the log")
        words = {word.lower() for word in re.findall(r"\w+", text)}
        beside = [name for name in TABLES if name != VIEW and name in words]
        if beside:
            tables(spark, paths, names=beside, **given)
        return sql(spark, text, paths, **given).toArrow()
    except PySparkException as error:
        raise translate(error) from None
    finally:
        spark.stop()


def referenced_columns(sql: str) -> tuple[str, ...] | None:
    """Columns that the statement can refer to: those whose names it spells. None if it may mean whole rows.

    Spark reads every column that the source offers, so offering fewer makes a query up to three times faster.
    """
    text = _COUNT_STAR.sub("", sql)
    if not _SELECT.match(sql) or _WHOLE_ROWS.search(text):
        return None
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return tuple(name for name in TYPES if name.lower() in words) or ("queueId",)
