"""Columns and rows that a query needs of the log, found in the query's plan.

Spark 4 gives its Python data sources no column pruning, and its filter pushdown mixes up the scans of one DataFrame
(`source.py`). So a query is planned once over the plain view; what every scan of the log needs becomes the options
`columns` and `where` of a second view, and the query is asked of that one. Spark applies all conditions again, so these
options only ever leave out what no scan of the query wants.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rmqha.scan.api import ALL_ROWS, CORRUPT, TYPES, Interval, RowFilter
from rmqha.spark.ranges import RANGES
from rmqha.spark.source import push

SCAN = "DataSourceV2ScanRelation"
PASSES_THROUGH = frozenset(
    (
        "Aggregate",
        "Expand",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "Offset",
        "Project",
        "Sample",
        "Sort",
        "Window",
    )
)
"""Nodes of a plan that need of their input only the columns that they name and those wanted of them. Others need
all."""
COLUMNS = (*TYPES, CORRUPT)
COMPARISONS = {
    "EqualTo": (EqualTo, EqualTo),
    "GreaterThan": (GreaterThan, LessThan),
    "GreaterThanOrEqual": (GreaterThanOrEqual, LessThanOrEqual),
    "LessThan": (LessThan, GreaterThan),
    "LessThanOrEqual": (LessThanOrEqual, GreaterThanOrEqual),
}
"""Filter of `column ∘ literal`, and that of `literal ∘ column`, by Spark's name of the comparison."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER, _NAMED = re.compile(r"#(\d+)"), re.compile(r"(\w+)#(\d+)")
"""An attribute as Spark writes it: topic#4, or queueOffset#7L."""


@dataclass(frozen=True, slots=True)
class ScanNeed:
    """Columns and rows of the log that a query needs; `rows` passes whatever any of its scans wants."""

    columns: tuple[str, ...]
    rows: RowFilter = ALL_ROWS

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Options of a reader for this need; what the user has given counts first."""
        named = {name.lower() for name in given}
        found = dict(given)
        if "columns" not in named:
            found["columns"] = ",".join(self.columns or ("queueId",))
        conditions = [item for item in self.rows.conditions() if item[0] != "keys" or "keys" not in named]
        if conditions and "where" not in named and found_value(given, "onCorrupt") != "row":
            found["where"] = json.dumps(conditions)
        return found


def found_value(given: Mapping[str, str], name: str) -> str | None:
    """The value of an option, in small letters; names are case-insensitive."""
    return next((value.lower() for known, value in given.items() if known.lower() == name.lower()), None)


def need_of(frame: DataFrame) -> ScanNeed | None:
    """Need of all commitlog scans of a query together; None where its plan cannot be read, as with Spark Connect, whose
    plans stay on the server."""
    execution = getattr(getattr(frame, "_jdf", None), "queryExecution", None)
    if execution is None:
        return None
    plan = execution().optimizedPlan()
    plans = [plan, *_items(plan.subqueriesAll())]
    seen = _Seen()
    for item in plans:
        seen.visit(item, None)
        seen.wanted |= _ids(item.output())
    text: str = plan.toString()
    if not seen.scans or text.count("RelationV2[") != len(seen.scans) + seen.others:
        return None
    return seen.need([number for _, number in _numbered(plan.output())])


class _Seen:
    """The scans of a plan, and the attributes that anything above them names."""

    def __init__(self) -> None:
        self.scans: list[tuple[Any, RowFilter]] = []
        self.others = 0
        """Scans of ranges: reads that are narrowed already, in another view."""
        self.wanted: set[int] = set()

    def visit(self, node: Any, above: Any) -> None:
        if node.getClass().getSimpleName() == SCAN:
            if [name for name, _ in _numbered(node.output())] == [RANGES]:
                self.others += 1
                return
            is_filtered = above is not None and above.nodeName() == "Filter"
            self.scans.append((node, _rows_of(above.condition()) if is_filtered else ALL_ROWS))
            return
        self.wanted |= _ids(node.references().toSeq())
        for child in _items(node.children()):
            if node.nodeName() not in PASSES_THROUGH:
                self.wanted |= _ids(child.output())
            self.visit(child, node)

    def need(self, output: Sequence[int]) -> ScanNeed:
        """The need of all scans that were seen. Columns stand in the order of the query's `output`, if possible: then
        Spark need not reorder rows."""
        found: dict[str, int] = {}
        for scan, _ in self.scans:
            for name, number in _numbered(scan.output()):
                if number in self.wanted and name in COLUMNS:
                    place = output.index(number) if number in output else len(output)
                    found[name] = min(place, found.get(name, place))
        columns = sorted(found, key=lambda name: (found[name], COLUMNS.index(name)))
        return ScanNeed(tuple(columns), union_of([rows for _, rows in self.scans]))


def _numbered(attributes: Any) -> list[tuple[str, int]]:
    return [(name, int(number)) for name, number in _NAMED.findall(attributes.mkString(" "))]


def _items(seq: Any) -> Iterator[Any]:
    return (seq.apply(index) for index in range(seq.size()))


def _ids(attributes: Any) -> set[int]:
    """Numbers of the attributes, or more, since a name may contain one. The JVM is asked once for all, as each call
    takes a fifth of a millisecond."""
    return set(map(int, _NUMBER.findall(attributes.mkString(" "))))


def _rows_of(condition: Any) -> RowFilter:
    """A row filter for a part of the condition; it passes every row that the condition passes."""
    rows = ALL_ROWS
    for part in _conjuncts(condition):
        keys = _keys_of(part)
        if keys and rows.keys is None:
            rows = replace(rows, keys=frozenset(keys))
        made = _filter_of(part)
        if made is not None:
            rows, _ = push(rows, [made])
    return rows


def _conjuncts(condition: Any) -> list[Any]:
    if condition.nodeName() != "And":
        return [condition]
    return _conjuncts(condition.left()) + _conjuncts(condition.right())


def _filter_of(condition: Any) -> Filter | None:
    name = condition.nodeName()
    if name in COMPARISONS:
        sides = (condition.left(), condition.right())
        kinds = tuple(side.nodeName() for side in sides)
        if kinds == ("AttributeReference", "Literal"):
            return _comparison(COMPARISONS[name][0], sides[0], _value(sides[1]))
        if kinds == ("Literal", "AttributeReference"):
            return _comparison(COMPARISONS[name][1], sides[1], _value(sides[0]))
    elif name == "In" and condition.value().nodeName() == "AttributeReference":
        items = list(_items(condition.list()))
        if all(item.nodeName() == "Literal" for item in items):
            values = tuple(_value(item) for item in items)
            return None if None in values else In((condition.value().name(),), values)
    elif name == "InSet" and condition.child().nodeName() == "AttributeReference":
        kind = condition.child().dataType().simpleString()
        values = tuple(_plain(item, kind) for item in _items(condition.hset().toSeq()))
        return None if None in values else In((condition.child().name(),), values)
    return None


def _comparison(kind: Any, column: Any, value: Any) -> Filter | None:
    if value is None:
        return None
    made: Filter = kind((column.name(),), value)
    return made


def _value(literal: Any) -> Any:
    return _plain(literal.value(), literal.dataType().simpleString())


def _plain(value: Any, kind: str) -> Any:
    """A literal of Spark's in the form that a data source gets; None for one that no filter here can use."""
    if value is None:
        return None
    if kind == "string":
        return str(value)
    if kind in ("int", "bigint"):
        return int(value)
    return _EPOCH + timedelta(microseconds=int(value)) if kind == "timestamp" else None


def _keys_of(condition: Any) -> set[str]:
    """Keys of which every row that passes must have one, by array_contains(keys, …) or arrays_overlap(keys, …)."""
    name = condition.nodeName()
    if name not in ("ArrayContains", "ArraysOverlap"):
        return set()
    sides = {side.nodeName(): side for side in (condition.left(), condition.right())}
    column, literal = sides.get("AttributeReference"), sides.get("Literal")
    if column is None or literal is None or column.name() != "keys" or literal.value() is None:
        return set()
    value = literal.value()
    keys = [str(value)] if name == "ArrayContains" else [str(item) for item in value.array() if item is not None]
    return set(keys) if all(key and " " not in key for key in keys) else set()


def union_of(filters: Sequence[RowFilter]) -> RowFilter:
    """A filter that passes what any of these passes, and not much more. Only keys and the parts that `push` makes are
    considered."""

    def union(name: str) -> frozenset[str] | None:
        sets = [getattr(rows, name) for rows in filters]
        return None if None in sets else frozenset().union(*sets)

    found = RowFilter(topics=union("topics"), tags=union("tags"), keys=union("keys"))
    for name in sorted(set.intersection(*({*rows.intervals, *rows.values} for rows in filters))):
        if all(name in rows.values for rows in filters):
            found = found.with_values(name, frozenset().union(*(rows.values[name] for rows in filters)))
        bounds = [_bounds(rows, name) for rows in filters]
        low, high = min(limit.low for limit in bounds), max(limit.high for limit in bounds)
        found = found.with_interval(name, Interval(low, high))
    return found


def _bounds(rows: RowFilter, name: str) -> Interval:
    values = rows.values.get(name)
    bounds = rows.intervals.get(name, Interval())
    return bounds if values is None else bounds.meet(Interval(min(values, default=0), max(values, default=-1)))
