"""Options are checked before Spark starts: one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqha.model.error import UsageError
from rmqha.spark.options import OPTIONS, ReadOptions
from rmqha.spark.sql import referenced_columns
from rmqha.store.scan import TYPES, Interval, RowFilter
from tests.store.log_writer import LogWriter, Message


def test_names_are_case_insensitive_and_values_are_read() -> None:
    options = ReadOptions.parse(
        {
            "PATH": "/a",
            "paths": '["/b", "/a", "file:///c"]',
            "subscribe": "x, y",
            "Columns": "TOPIC,body",
            "readuncommitted": "TRUE",
            "propertiesAs": "map",
            "verifyCrc": "false",
            "minPartitions": "7",
        }
    )
    assert options.paths == ("/a", "/b", "/c")
    assert options.rows == RowFilter(frozenset(["x", "y"]))
    assert options.columns == ("topic", "body")
    assert (options.uncommitted, options.properties_as, options.verify_crc) == (True, "map", False)
    assert (options.decompress, options.min_partitions) == (True, 7)
    assert options.ddl == "`topic` string, `body` binary"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"readUncommited": "true"},
            "unknown option readUncommited of commitlog; the nearest known one is readUncommitted",
        ),
        ({"topics": "a"}, "unknown option topics of commitlog; the nearest known one is topic"),
        ({"columns": "topik"}, "commitlog has no column topik; the nearest one is topic"),
        ({"columns": " , "}, "option columns is empty: leave it out to read all"),
        ({"verifyCrc": "yes"}, "option verifyCrc = 'yes' must be true or false"),
        ({"propertiesAs": "xml"}, "option propertiesAs = 'xml' must be json or map"),
        ({"onCorrupt": "row"}, "option onCorrupt = 'row' must be fail"),
        ({"queueId": "a"}, "option queueId = 'a' must be whole numbers parted by commas"),
        ({"minPartitions": "0"}, "option minPartitions = '0' must be a whole number from 1 to 100000"),
        ({"topic": "a", "subscribe": "b"}, "the options topic and subscribe mean the same: give one of them"),
        ({"paths": "{}"}, "option paths = '{}' must be a JSON array of directories"),
    ],
)
def test_a_wrong_option_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        ReadOptions.parse({"path": "/a"} | given)
    assert str(raised.value) == sentence


def test_options_that_leave_rows_out() -> None:
    options = {"queueId": "0, 2", "startingPhysicalOffset": "5", "endingPhysicalOffset": "9", "endingTimestamp": "77"}
    rows = ReadOptions.parse({"path": "/a"} | options).rows
    assert rows.values == {"queueId": frozenset([0, 2])}
    assert rows.intervals == {"physicalOffset": Interval(5, 8), "storeTimestamp": Interval(high=76)}


def test_no_path() -> None:
    with pytest.raises(UsageError, match="commitlog needs a path"):
        ReadOptions.parse({})


def test_every_option_is_explained() -> None:
    assert all(OPTIONS.values()) and len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def store(root: Path, identity: str) -> str:
    writer = LogWriter(root)
    writer.append(Message())
    return str(writer.write(identity=identity))


def test_stores_that_do_not_belong_together(tmp_path: Path) -> None:
    a1, a2 = store(tmp_path / "a1", "c#a#1"), store(tmp_path / "a2", "c#a#2")
    b1, other = store(tmp_path / "b1", "c#b#1"), store(tmp_path / "o", "d#a#1")
    assert [view.broker_name for view in ReadOptions((a1, b1)).open()] == ["a", "b"]
    with pytest.raises(UsageError, match="are replicas of one group, a: every message would come twice"):
        ReadOptions((a1, a2)).open()
    with pytest.raises(UsageError, match=r"is of the cluster d and .* of c: read them apart"):
        ReadOptions((a1, other)).open()


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("select topic, count(*) from log group by topic", ("topic",)),
        ("SELECT Count( * ) FROM log", ("queueId",)),
        ("with t as (select QUEUEID q, body from log) select * from t", None),
        ("with t as (select QUEUEID q, body from log) select q from t", ("body", "queueId")),
        ("select l.tags from log l where l.queueOffset > 3", ("queueOffset", "tags")),
        ("select * from log", None),
        ("table log", None),
        ("from log |> where topic = 'a'", None),
        ("select queueId from log pivot (count(1) for tags in ('a'))", None),
        ("describe log", None),
    ],
)
def test_columns_that_a_statement_can_mean(sql: str, columns: tuple[str, ...] | None) -> None:
    assert referenced_columns(sql) == columns
    assert columns is None or set(columns) <= set(TYPES)
