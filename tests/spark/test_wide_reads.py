"""Wide reads go through mapInArrow: what comes out must be what the data source gives, task by task."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import rmqha.spark
from rmqha.model.error import RmqhaError
from rmqha.scan.api import CORRUPT, TYPES
from rmqha.spark import queries, translate
from rmqha.spark.ranges import is_wide
from tests.scan.test_proof import Made
from tests.spark.lake import test_s3
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack

pytestmark = pytest.mark.spark
endpoint, sent = test_s3.endpoint, test_s3.sent
NARROW = [name for name in TYPES if name not in ("body", "properties")]


def is_mapped(frame: DataFrame) -> bool:
    return "MapInArrow read_ranges(" in frame._jdf.queryExecution().toString()


class Ways:
    """The same read in both ways."""

    def __init__(self, spark: SparkSession, patch: pytest.MonkeyPatch) -> None:
        self.spark, self.patch = spark, patch

    def frames(self, paths: Any, how: dict[str, Any]) -> tuple[DataFrame, DataFrame]:
        wide = rmqha.spark.read(self.spark, paths, **how)
        with self.patch.context() as patch:
            patch.setattr(queries, "is_wide", lambda columns: False)
            plain = rmqha.spark.read(self.spark, paths, **how)
        assert (is_mapped(wide), is_mapped(plain)) == (True, False)
        return wide, plain

    def rows(self, paths: Any, **how: Any) -> Any:
        """The table, for which all is compared: types, nullability, comments, tasks, rows and their order."""
        wide, plain = self.frames(paths, how)
        assert wide.schema == plain.schema and wide.schema.fields[0].metadata
        assert wide.rdd.getNumPartitions() == plain.rdd.getNumPartitions()
        found, expected = wide.toArrow(), plain.toArrow()
        assert found.schema.equals(expected.schema, check_metadata=True) and found.equals(expected)
        return found

    def told(self, paths: Any, **how: Any) -> RmqhaError:
        """The error, which must be one sentence, and the same in both ways."""
        errors = []
        for frame in self.frames(paths, how):
            with pytest.raises(PySparkException) as raised:
                frame.collect()
            assert "Traceback" not in str(raised.value)
            errors.append(translate(raised.value))
        assert type(errors[0]) is type(errors[1]) and str(errors[0]) == str(errors[1])
        assert "\n" not in str(errors[0])
        return errors[0]


@pytest.fixture
def ways(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Ways:
    return Ways(spark, monkeypatch)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("n0", tmp_path_factory.mktemp("golden")) / "n0"


def message(number: int, **fields: Any) -> Message:
    values = {"queue_id": number % 2, "queue_offset": number // 2, "stored_at_ms": 1_700_000_000_000 + number * 1000}
    return Message(**{**values, **fields})


def written(root: Path, count: int = 40, *, file_bytes: int = 4096, identity: str = "c#a#1") -> LogWriter:
    writer = LogWriter(root, file_bytes)
    writer.append_all([message(number, body=b"%d " % number * 50) for number in range(count)])
    writer.write(confirm_offset=writer.end, identity=identity)
    return writer


@pytest.mark.parametrize("seed", range(3))
def test_random_stores_and_conditions(ways: Ways, tmp_path: Path, seed: int) -> None:
    made = Made(tmp_path / "s", seed)
    assert ways.rows(made.root, minPartitions=3).num_rows == len(made.rows)
    for number in range(2):
        rows, passes = made.filter()
        where = " and ".join(in_sql(*item) for item in rows.conditions()) or None
        options = {"columns": ["physicalOffset", "body"], "timestampSlackMs": 10, "minPartitions": 1 + number}
        assert ways.rows(made.root, where=where, **options).num_rows == sum(map(passes, made.rows))


def in_sql(name: str, operator: str, value: Any) -> str:
    """A condition of a row filter."""

    def literal(one: Any) -> str:
        return f"timestamp_millis({one})" if name.endswith("Timestamp") else repr(one)

    if operator != "in":
        return f"{name} {operator} {literal(value)}"
    several = ", ".join(map(literal, value))
    return f"arrays_overlap(keys, array({several}))" if name == "keys" else f"{name} in ({several})"


OPTIONS: dict[str, dict[str, Any]] = {
    "all columns": {},
    "columns in another order": {"columns": ["body", "topic", "queueId"]},
    "a condition": {"where": "topic = 'GoldOrder' and queueId in (0, 1)", "columns": ["body"]},
    "a condition that nothing meets": {"where": "topic = 'none'", "columns": ["body"]},
    "times": {"where": "storeTimestamp >= timestamp'2026-11-21 01:47:21.25'"},
    "topics and queues": {"topic": "GoldOrder", "useQueues": False},
    "an index that is trusted": {"tags": "TagA", "trustIndex": True},
    "keys": {"keys": "order-1,none", "trustIndex": True},
    "inner batches": {"innerBatches": "raw"},
    "compressed bodies": {"decompress": False, "verifyCrc": False},
    "maps": {"propertiesAs": "map", "columns": ["properties", "keys"]},
    "without properties": {"includeProperties": False},
    "columns by option": {"Columns": "BODY,msgId"},
    "damage as rows": {"onCorrupt": "row", "columns": ["body", CORRUPT]},
    "damage left out": {"onCorrupt": "skip"},
    "all of the log": {"readUncommitted": True, "epochPolicy": "all"},
    "small tasks": {"maxRecordsPerPartition": 100},
    "more tasks": {"minPartitions": 5},
    "offsets": {"assign": '{"GoldOrder": [0]}', "startingOffsets": '{"GoldOrder": {"0": 3}}'},
    "bytes": {"startingPhysicalOffset": 5000, "endingPhysicalOffset": 20000},
    "paths of the rows": {"Columns": "storePath,brokerName,body"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(ways: Ways, golden: Path, name: str) -> None:
    ways.rows(golden, **OPTIONS[name])


def test_a_session_elsewhere_in_time(ways: Ways, golden: Path) -> None:
    zone = "spark.sql.session.timeZone"
    ways.spark.conf.set(zone, "Pacific/Apia")
    try:
        ways.rows(golden, columns=["bornTimestamp", "body"])
    finally:
        ways.spark.conf.set(zone, "UTC")


def test_several_stores_replicas_and_none(ways: Ways, tmp_path: Path) -> None:
    for name, count in (("a1", 40), ("a2", 30), ("b1", 20)):
        written(tmp_path / name, count, identity=f"c#{name[0]}#{name[1]}")
    both = [tmp_path / name for name in ("a1", "a2", "b1")]
    assert ways.rows(both).num_rows == 60
    assert ways.rows(both, replicas="verify", Columns="storePath,body").num_rows == 60
    assert ways.rows(tmp_path / "?1", columns=["brokerName", "body"]).num_rows == 60
    LogWriter(tmp_path / "empty").write(identity="c#e#1")
    assert ways.rows(tmp_path / "empty").num_rows == 0
    assert ways.rows([tmp_path / "empty", tmp_path / "b1"]).num_rows == 20
    assert ways.rows(tmp_path / "b1", startingTimestamp="2033-01-01", timestampSlackMs=1).num_rows == 0


def test_stores_elsewhere(ways: Ways, golden: Path, endpoint: str) -> None:
    """Whose keys every task is given."""
    address = test_s3.upload(endpoint, golden, "wide", "gold/broker-a")
    assert ways.rows(address, **test_s3.hadoop(endpoint)).num_rows == 746
    keys = {"key": "k", "secret": "s", "endpoint_url": f"http://{endpoint}"}
    given = {"columns": ["body"], "where": "topic = 'GoldOrder'", "storageOptions": json.dumps(keys)}
    assert ways.rows("s3://wide/gold/broker-*", **given).num_rows == 100


def test_inner_batches(ways: Ways, tmp_path: Path) -> None:
    inner = b"".join(struct.pack(">iiiii", 24, 0, 0, n, 2) + b"m%d" % n + b"\0\0" for n in range(3))
    writer = LogWriter(tmp_path)
    packed = zlib.compress(b"plain")
    writer.append_all([message(0, body=packed, sys_flag=1), message(2, body=inner, sys_flag=0xC0)])
    writer.write()
    assert ways.rows(tmp_path)["body"].to_pylist() == [b"plain", b"m0", b"m1", b"m2"]
    assert ways.rows(tmp_path, innerBatches="raw")["body"].to_pylist() == [b"plain", inner]


def test_damage(ways: Ways, tmp_path: Path) -> None:
    writer = written(tmp_path / "s")
    base = max(writer.pieces)
    writer.put(base + 100, b"J")
    writer.write(confirm_offset=writer.end)
    assert "expected body CRC" in str(ways.told(tmp_path / "s"))
    assert ways.rows(tmp_path / "s", onCorrupt="skip").num_rows == 39
    marked = ways.rows(tmp_path / "s", onCorrupt="row").to_pylist()
    assert [row["body"] is None for row in marked if row[CORRUPT]] == [True]
    writer.put(base + 4, b"zzzz")
    writer.write(confirm_offset=writer.end)
    assert "at physical offset" in str(ways.told(tmp_path / "s"))
    assert ways.rows(tmp_path / "s", onCorrupt="skip").num_rows == 39
    (tmp_path / "s/commitlog" / f"{4096:020}").unlink()
    assert 0 < ways.rows(tmp_path / "s", onCorrupt="skip", failOnDataLoss="false").num_rows < 39


PLANS: list[tuple[str, dict[str, Any]]] = [
    ("startingOffsets = 'latest' is for a streaming query", {"startingOffsets": "latest"}),
    ("less than endingPhysicalOffset = 99999999", {"endingPhysicalOffset": 99999999}),
    ("queue 0 of orders can be read up to 20", {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 99}}'}),
    ("readReport = /dev/null/x cannot be written", {"readReport": "/dev/null/x"}),
]


@pytest.mark.parametrize(("sentence", "options"), PLANS)
def test_what_a_plan_refuses(ways: Ways, tmp_path: Path, sentence: str, options: dict[str, Any]) -> None:
    written(tmp_path / "s")
    assert sentence in str(ways.told(tmp_path / "s", **options))


def test_replicas_that_differ(ways: Ways, tmp_path: Path) -> None:
    for number in (1, 2):
        writer = written(tmp_path / f"a{number}", identity=f"c#a#{number}")
    writer.put(95, b"J")
    writer.write(confirm_offset=writer.end, identity="c#a#2")
    paths = [tmp_path / "a1", tmp_path / "a2"]
    assert "are replicas of one group and differ" in str(ways.told(paths, replicas="verify"))


def test_what_a_task_tells(ways: Ways, golden: Path, tmp_path: Path) -> None:
    reports = []
    for way in (0, 1):
        report = tmp_path / str(way)
        ways.frames(golden, {"where": "topic = 'GoldOrder'", "readReport": report})[way].collect()
        reports.append(sorted((json.loads(path.read_text()) for path in report.iterdir()), key=str))
    assert reports[0] == reports[1] and sum(item["rows"] for item in reports[0]) == 100


def test_a_frame_stays_as_it_was_at_its_first_action(ways: Ways, tmp_path: Path) -> None:
    writer = written(tmp_path / "s", 6)
    wide, _ = ways.frames(tmp_path / "s", {})

    def grow(count: int) -> None:
        writer.append_all([message(number) for number in range(count, count + 4)])
        writer.write(confirm_offset=writer.end)

    grow(6)
    assert wide.count() == 10, "it is planned when it is first run, not when it is made"
    grow(10)
    assert wide.count() == 10 and ways.rows(tmp_path / "s").num_rows == 14


def test_it_may_be_scanned_twice_cut_short_and_joined(ways: Ways, golden: Path) -> None:
    wide, plain = ways.frames(golden, {"where": "topic = 'GoldNormal'", "columns": ["msgId", "queueId", "body"]})

    def same(question: Callable[[DataFrame], DataFrame]) -> int:
        found = [question(frame).collect() for frame in (wide, plain)]
        assert sorted(found[0], key=str) == sorted(found[1], key=str)
        return len(found[0])

    assert same(lambda log: log.where("queueId = 0").union(log)) > 360
    assert same(lambda log: log.limit(3)) == 3
    assert same(lambda log: log.join(log.select("msgId").distinct(), "msgId")) == 360
    assert same(lambda log: log.groupBy("queueId").count()) > 1
    plan = wide.join(wide.select("msgId"), "msgId")._jdf.queryExecution().toString()
    assert "Broadcast" not in plan, "Spark must not take the log for a small table"
    assert is_mapped(wide.cache()) and wide.count() == 360
    wide.unpersist()


def test_by_sql_beside_a_view_that_was_read_so(ways: Ways, golden: Path, tmp_path: Path) -> None:
    orders = rmqha.spark.read(ways.spark, golden, columns=["msgId", "body"], where="topic = 'GoldOrder'")
    orders.createOrReplaceTempView("orders")
    text = "select o.body, log.properties from log join orders o using (msgId) where log.topic = 'GoldOrder'"
    found = rmqha.spark.sql(ways.spark, text, golden, readReport=str(tmp_path))
    assert is_mapped(found) and found.count() == 100
    filters = [json.loads(path.read_text())["filter"] for path in tmp_path.glob("task-*.json")]
    assert filters and all(told == {"topic": ["GoldOrder"]} for told in filters)
    ways.spark.catalog.dropTempView("orders")


def test_which_reads_are_wide(ways: Ways, golden: Path) -> None:
    assert is_wide(["topic", "body"]) and is_wide(["properties"]) and not is_wide(NARROW)
    assert not is_mapped(rmqha.spark.read(ways.spark, golden, columns=NARROW))
    assert not is_mapped(rmqha.spark.sql(ways.spark, "select count(*) from log", golden))
    assert is_mapped(rmqha.spark.sql(ways.spark, "select max(length(body)) from log", golden))
    assert not is_mapped(ways.spark.table("log")), "the view itself stays a data source, whose columns can be seen"


def test_columns_are_read_in_the_order_of_the_query(ways: Ways, golden: Path) -> None:
    """Else Spark would make each row anew, which is what `mapInArrow` spares."""
    for names in (["body", "topic", "queueId"], ["queueId", "topic", "body"]):
        wide, _ = ways.frames(golden, {"columns": names, "where": "topic > 'A'"})
        plan = wide._jdf.queryExecution().executedPlan().toString()
        assert "Project" not in plan[: plan.index("MapInArrow")]


def test_it_needs_no_pandas(ways: Ways, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("pandas is no dependency")

    monkeypatch.setattr("pyspark.sql.pandas.functions.require_minimum_pandas_version", missing)
    assert rmqha.spark.read(ways.spark, golden, columns=["body"]).count() == 746
