"""The demo's input: which records go to which topic, and the aggregates that Spark must find again."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = """\
  seattle-temps  hourly temperatures in Seattle in 2010        NOAA, public domain
  sf-temps       hourly temperatures in San Francisco in 2010  NOAA, public domain
  airports       airports of the United States                 ourairports.com, public domain
  all three from the PyPI package vega_datasets (BSD-3-Clause), https://github.com/altair-viz/vega_datasets"""

LANES = 8
"""Lanes of one's own file: each keeps its order."""
MAX_FIELDS = 5
"""Numeric fields of one's own file that are averaged."""

Aggregates = dict[tuple[str, str], tuple[int, float | None]]
"""(topic, bucket) → (count, mean or None). Buckets: months of temperatures, states of airports, fields of one's own."""


@dataclass(frozen=True)
class Topic:
    """One topic's input file: JSON lines, each with a field `id` that is the message's key.

    Records with the same `lane` keep their order: they go to one queue, one after the other."""

    name: str
    file: Path
    count: int
    lanes: list[str]
    """The lane of each line."""


@dataclass(frozen=True)
class Input:
    topics: list[Topic]
    expected: Aggregates
    sql: str
    """Gives the columns topic, bucket, count, mean over `log`, each message counted once."""
    described: str

    @property
    def count(self) -> int:
        return sum(topic.count for topic in self.topics)


ONCE = """\
with once as (
  select topic, cast(body as string) as body,
         row_number() over (partition by topic, msgId order by physicalOffset) as copy
  from log where topic in ({topics})
)"""

REAL_SQL = (
    ONCE.format(topics="'seattle-temps', 'sf-temps', 'airports'")
    + """
select topic, coalesce(substr(get_json_object(body, '$.date'), 1, 7), get_json_object(body, '$.state')) as bucket,
       count(*) as count, avg(cast(get_json_object(body, '$.temp') as double)) as mean
from once where copy = 1 group by 1, 2 order by 1, 2"""
)


def real_input(directory: Path) -> Input:
    """Write the three real data sets as JSON lines into `directory`."""
    from vega_datasets import local_data

    records = {
        "seattle-temps": list(_temperatures(Path(local_data.seattle_temps.filepath))),
        "sf-temps": list(_temperatures(Path(local_data.sf_temps.filepath))),
        "airports": list(_rows(Path(local_data.airports.filepath))),
    }
    topics = [_write(directory, topic, ((lane(row), row) for row in rows)) for topic, rows in records.items()]
    groups: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for topic, rows in records.items():
        for row in rows:
            groups[topic, bucket(row)].append(row.get("temp"))
    expected = {key: (len(values), _mean(values)) for key, values in groups.items()}
    return Input(topics, expected, REAL_SQL, SOURCES)


def bucket(row: dict[str, Any]) -> str:
    """The month of a temperature, the state of an airport."""
    return str(row["date"][:7] if "date" in row else row["state"])


def lane(row: dict[str, Any]) -> str:
    """The hour of the day of a temperature, the state of an airport."""
    return str(row["date"][11:13] if "date" in row else row["state"])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _temperatures(path: Path) -> Iterator[dict[str, Any]]:
    for row in _rows(path):
        yield {"date": row["date"].replace("/", "-"), "temp": float(row["temp"])}


def _write(directory: Path, topic: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> Topic:
    """`rows` are (lane, record)."""
    path = directory / f"{topic}.jsonl"
    lanes = []
    with path.open("w", encoding="utf-8") as file:
        for number, (lane, row) in enumerate(rows, 1):
            lanes.append(lane)
            file.write(json.dumps({"id": f"{topic}-{number:06}", "lane": lane, **row}, ensure_ascii=False) + "\n")
    return Topic(topic, path, len(lanes), lanes)


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def own_input(source: Path, directory: Path) -> Input:
    """Check a user's JSON lines and write them with an `id` each. SystemExit with a sentence if something is wrong."""
    rows = []
    try:
        with source.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_own_row(source, number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"demo: cannot read {source}: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise SystemExit(f"demo: {source} has no records; give a file with one JSON object per line")
    fields = _numeric_fields(rows)
    expected: Aggregates = {("input", "(records)"): (len(rows), None)}
    selects = ["'(records)' as bucket, count(*) as count, cast(null as double) as mean"]
    for name in fields:
        numbers = [row[name] for row in rows if row.get(name) is not None]
        expected["input", name] = (len(numbers), _mean(numbers))
        value = f"cast(get_json_object(body, '$.record.{name}') as double)"
        selects.append(f"'{name}' as bucket, count({value}) as count, avg({value}) as mean")
    counted = (f"select topic, {select} from once where copy = 1 group by 1" for select in selects)
    sql = ONCE.format(topics="'input'") + "\n" + "\nunion all ".join(counted)
    lanes = (str(number % LANES) for number in range(len(rows)))
    topic = _write(directory, "input", zip(lanes, ({"record": row} for row in rows), strict=True))
    return Input([topic], expected, sql, f"  input  your file {source}, {len(rows):,} records")


def _numeric_fields(rows: list[dict[str, Any]]) -> list[str]:
    """Top-level fields that hold numbers wherever they hold anything; at most MAX_FIELDS."""
    values: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None and re.fullmatch(r"[A-Za-z_]\w*", name):
                values[name] = values.get(name, True) and isinstance(value, int | float) and not isinstance(value, bool)
    return sorted(name for name, numeric in values.items() if numeric)[:MAX_FIELDS]


def _own_row(source: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SystemExit(f"demo: {source}:{number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise SystemExit(f"demo: {source}:{number} is not a JSON object: {line.strip()[:60]}")
    return row
