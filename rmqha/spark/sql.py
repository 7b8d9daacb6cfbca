"""One SQL question to one or more stores: the view `log` over CommitLog files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmqha.model.error import RmqhaError, StoreError, UsageError
from rmqha.scan.api import TYPES
from rmqha.spark.local import session
from rmqha.spark.options import ReadOptions

VIEW = "log"

_COUNT_STAR = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_WHOLE_ROWS = re.compile(r"\*|\|>|\b(?:pivot|unpivot|natural|table)\b", re.IGNORECASE)
_SELECT = re.compile(r"\s*(?:select|with)\b", re.IGNORECASE)


def query(
    sql: str,
    paths: Sequence[str],
    options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Any:
    """The answer as a pyarrow Table. Paths and options are checked before Spark is started.

    UsageError for SQL, options or paths that are wrong, StoreError for damaged files, each one sentence.
    """
    given = dict(options or {})
    parsed = ReadOptions.parse(given | {"paths": json.dumps(list(paths))})
    parsed.open()
    say = progress or (lambda text: None)
    say("starting Spark, which takes about 8 s")
    spark = session("rmqha spark query")
    try:
        say("reading the log")
        return _answer(spark, sql, paths, given)
    except PySparkException as error:
        raise translate(error) from None
    finally:
        spark.stop()


def log_view(spark: SparkSession, paths: Sequence[str], options: Mapping[str, str], name: str = VIEW) -> DataFrame:
    """The DataFrame of the stores, also registered as a temporary view."""
    frame = spark.read.format("commitlog").options(**options).load(list(paths))
    frame.createOrReplaceTempView(name)
    return frame


def _answer(spark: SparkSession, sql: str, paths: Sequence[str], options: Mapping[str, str]) -> Any:
    given = {name.lower(): value.lower() for name, value in options.items()}
    columns = None if "columns" in given else referenced_columns(sql)
    chosen = {**options, "columns": ",".join(columns)} if columns is not None else dict(options)
    log_view(spark, paths, chosen)
    if columns is not None and not _resolves(spark, sql):
        # with all columns Spark can name the one that was meant
        chosen = dict(options)
        log_view(spark, paths, chosen)
    if "pushfilters" not in given and given.get("oncorrupt") != "row" and scan_count(spark.sql(sql)) == 1:
        keys = set() if "keys" in given else wanted_keys(spark.sql(sql))
        pushed = {"pushFilters": "true"} | ({"keys": ",".join(sorted(keys))} if keys else {})
        log_view(spark, paths, {**chosen, **pushed})
    return spark.sql(sql).toArrow()


def scan_count(frame: DataFrame) -> int:
    """Number of times that the optimised plan reads a data source, subqueries included; never too few."""
    plan: str = frame._jdf.queryExecution().optimizedPlan().toString()
    return plan.count("RelationV2[")


def wanted_keys(frame: DataFrame) -> set[str]:
    """Keys of which every row of the one scan must have one, by array_contains(keys, …) or arrays_overlap(keys, …).

    Spark hands its sources no such condition. Empty if there is none, or one that the option `keys` cannot say.

    Spark still applies the condition itself.
    """
    found: list[set[str]] = []
    plans = [frame._jdf.queryExecution().optimizedPlan()]
    while plans:
        node = plans.pop()
        children = node.children()
        plans += [children.apply(index) for index in range(children.size())]
        if node.nodeName() == "Filter" and str(node.child().toString()).startswith("RelationV2["):
            found += filter(None, map(_keys_of, _conjuncts(node.condition())))
    return min(found, key=len, default=set())


def _conjuncts(condition: Any) -> list[Any]:
    if condition.nodeName() != "And":
        return [condition]
    return _conjuncts(condition.left()) + _conjuncts(condition.right())


def _keys_of(condition: Any) -> set[str]:
    name = condition.nodeName()
    if name not in ("ArrayContains", "ArraysOverlap"):
        return set()
    sides = {side.nodeName(): side for side in (condition.left(), condition.right())}
    column, literal = sides.get("AttributeReference"), sides.get("Literal")
    if column is None or literal is None or column.name() != "keys" or literal.value() is None:
        return set()
    value = literal.value()
    keys = [str(value)] if name == "ArrayContains" else [str(item) for item in value.array() if item is not None]
    return set(keys) if all(key and key == key.strip() and "," not in key for key in keys) else set()


def _resolves(spark: SparkSession, sql: str) -> bool:
    try:
        spark.sql(sql)
    except AnalysisException:
        return False
    return True


def referenced_columns(sql: str) -> tuple[str, ...] | None:
    """Columns that the statement can refer to: those whose names it spells. None if it may mean whole rows.

    Spark reads every column that the source offers, so offering fewer makes a query up to three times faster.
    """
    text = _COUNT_STAR.sub("", sql)
    if not _SELECT.match(sql) or _WHOLE_ROWS.search(text):
        return None
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return tuple(name for name in TYPES if name.lower() in words) or ("queueId",)


# --- errors of Spark, as the one sentence that a user needs -----------------------------------------------------------

_OURS = re.compile(r"rmqha\.model\.error\.(\w+): ([^\n]+)")
_CODE = re.compile(r"^\[[\w.]+\]\s*")


def translate(error: PySparkException) -> RmqhaError:
    """UsageError for SQL that cannot run and for wrong options or paths; StoreError for damaged files."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, sentence = ours[-1]
        return StoreError(sentence) if kind == "StoreError" else UsageError(sentence)
    sentence = " ".join(_CODE.sub("", text).split(" SQLSTATE:")[0].split("\n\n")[0].split())
    if isinstance(error, ParseException):
        place = re.search(r"line (\d+), pos (\d+)", text)
        return UsageError(f"SQL: {sentence}" + (f" (line {place[1]}, column {int(place[2]) + 1})" if place else ""))
    if isinstance(error, AnalysisException):
        return UsageError(f"SQL: {sentence}")
    return RmqhaError(f"Spark: {sentence}")
