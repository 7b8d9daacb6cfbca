"""A store as a `pyarrow.dataset.Dataset`: DuckDB and polars ask it for the columns and rows that a query needs.

    log = LogDataset("/data/broker-a")
    duckdb.sql("select topic, count(*) from log where storeTimestamp > '2026-11-01' group by topic")

Both give an Arrow expression, which can only be read as its text. Comparisons of columns with literals, joined by and,
narrow the read; the expression itself is applied to what is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from rmqha.model.error import UsageError
from rmqha.scan.api import (
    ALL_ROWS,
    TYPES,
    Decoding,
    Interval,
    RowFilter,
    StoreView,
    by_group,
    check_no_copies,
    open_store,
    read_store,
)
from rmqha.scan.filter import NUMBERS

Paths = str | Path | Sequence[str | Path]


class LogDataset(ds.Dataset):  # type: ignore[misc]
    """The messages of one or more stores that were committed when this was made; of several replicas of a group the one
    with the most."""

    def __init__(self, paths: Paths, *, columns: Sequence[str] = tuple(TYPES), verify_crc: bool = True) -> None:
        """Open the stores at `paths`. Raises UsageError for what is no store and for an unknown column, StoreError for
        damaged files."""
        for name in columns:
            if name not in TYPES:
                raise UsageError(f"the log has no column {name}; it has {', '.join(TYPES)}")
        several = [paths] if isinstance(paths, (str, Path)) else paths
        views = [open_store(str(path)) for path in several]
        check_no_copies(views)
        self._views: list[StoreView] = [group[0] for group in by_group(views)]
        self._columns, self._verify_crc = tuple(columns), verify_crc

    @property
    def schema(self) -> Any:
        """Arrow schema of the columns."""
        return Decoding(self._columns).schema

    def scanner(self, columns: Any = None, filter: Any = None, **ignored: Any) -> Any:
        """A scanner that reads these columns (names, or a mapping of names to expressions) of the rows that pass."""
        decoding = Decoding(self._needed(columns, filter), verify_crc=self._verify_crc)
        rows = ALL_ROWS if filter is None else rows_of(str(filter))
        return ds.Scanner.from_batches(
            self._batches(decoding, rows), schema=decoding.schema, columns=columns, filter=filter
        )

    def _needed(self, columns: Any, condition: Any) -> tuple[str, ...]:
        if columns is None:
            return self._columns
        texts = [str(item) for item in columns.values()] if isinstance(columns, Mapping) else list(columns)
        words = set(re.findall(r"\w+", " ".join([*texts, str(condition)])))
        return tuple(name for name in self._columns if name in words) or ("queueId",)

    def _batches(self, decoding: Decoding, rows: RowFilter) -> Iterator[Any]:
        for view in self._views:
            yield from read_store(view, decoding, rows)

    def to_batches(self, **options: Any) -> Iterator[Any]:
        """Record batches of a scan."""
        yield from self.scanner(**options).to_batches()

    def to_table(self, **options: Any) -> Any:
        """A table of a scan."""
        return self.scanner(**options).to_table()

    def head(self, num_rows: int, **options: Any) -> Any:
        """The first rows; no more of the log is read than has them."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, **options: Any) -> int:
        """Number of rows."""
        options.setdefault("columns", ["queueId"])
        return int(self.scanner(**options).count_rows())


# --- text of an expression as a row filter: all that passes the expression passes it ----------------------------------

_STRING = r'"(?:[^"\\]|\\["\\])*"'
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?Z"
_TOKEN = re.compile(rf"\(|\)|==|>=|<=|!=|>|<|{_STRING}|{_TIME}|-?\d+(?![\d.-])|[A-Za-z_]\w*")


def rows_of(text: str) -> RowFilter:
    """The part of an expression that a row filter can say, by its text; all rows if the text is not understood."""
    tokens, at = list[str](), 0
    while at < len(text):
        if text[at] == " ":
            at += 1
            continue
        found = _TOKEN.match(text, at)
        if found is None:
            return ALL_ROWS
        tokens.append(found[0])
        at = found.end()
    conditions = _conjuncts(tokens)
    rows = ALL_ROWS
    for condition in conditions:
        rows = _with(rows, condition)
    return rows


def _conjuncts(tokens: list[str]) -> list[list[str]]:
    """The parts that are joined by `and`, without their parentheses."""
    if len(tokens) < 2 or tokens[0] != "(" or _closing(tokens, 0) != len(tokens) - 1:
        return [tokens]
    inner, parts, start, at = tokens[1:-1], list[list[str]](), 0, 0
    while at < len(inner):
        if inner[at] == "(":
            at = _closing(inner, at)
        elif inner[at] == "or":
            return []
        elif inner[at] == "and":
            parts.append(inner[start:at])
            start = at + 1
        at += 1
    if not parts:
        return [inner]
    return [found for part in [*parts, inner[start:]] for found in _conjuncts(part)]


def _closing(tokens: list[str], at: int) -> int:
    """Index of the parenthesis that closes the one at `at`; behind the end if there is none."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += (tokens[index] == "(") - (tokens[index] == ")")
        if not depth:
            return index
    return len(tokens)


def _with(rows: RowFilter, condition: list[str]) -> RowFilter:
    if len(condition) != 3 or condition[1] not in ("==", ">", ">=", "<", "<="):
        return rows
    name, operator, literal = condition
    if name in ("topic", "tags") and operator == "==" and literal.startswith('"'):
        texts = frozenset([json.loads(literal)])
        return rows.with_topics(texts) if name == "topic" else rows.with_tags(texts)
    if name not in NUMBERS:
        return rows
    bounds = _millis(literal) if name.endswith("Timestamp") else _number(literal)
    if bounds is None:
        return rows
    low, high = bounds
    match operator:
        case "==":
            return rows.with_interval(name, Interval(low, high))
        case ">" | ">=":
            return rows.with_interval(name, Interval(low=low))
        case _:
            return rows.with_interval(name, Interval(high=high))


def _number(literal: str) -> tuple[int, int] | None:
    return (int(literal), int(literal)) if re.fullmatch(r"-?\d+", literal) else None


def _millis(literal: str) -> tuple[int, int] | None:
    """A time's millisecond, and the one at or after it."""
    if not re.fullmatch(_TIME, literal):
        return None
    seconds = int(np.datetime64(literal[:19].replace(" ", "T"), "s").astype(np.int64))
    fraction = int(literal[19:-1].removeprefix(".").ljust(9, "0")[:9])
    low = seconds * 1000 + fraction // 1_000_000
    return low, low + 1 if fraction % 1_000_000 else low
