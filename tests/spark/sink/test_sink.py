"""Rows sent to a live cluster: every one, at least once, under a key of its own that comes again when the row does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmqha.client.sync import Admin, Consumer
from rmqha.host.clock import local_month_ms
from rmqha.model.error import UnreachableError, UsageError
from rmqha.spark.errors import translate
from rmqha.spark.sink.cluster import OPTIONS, RowKeys, SendOptions, check_columns, message_of, send
from tests.process.cluster import LocalCluster
from tests.support.patience import HANG_MS, HANG_S

NOW_MS = 1_790_000_000_000
DOCS = Path(__file__).parents[3] / "docs/use/spark.md"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "rocketmq needs the option namesrv"),
        ({"namesrv": "a:1", "windows": "1"}, "unknown option windows of rocketmq; the nearest known one is window"),
        ({"namesrv": "a:1", "window": "0"}, "option window = '0' must be a whole number from 1 to 65536"),
        ({"namesrv": "a:1", "batch": "9999"}, "option batch = '9999' must be a whole number from 1 to 1024"),
        ({"namesrv": "a:1", "window": "8"}, "option window = 8 must be at least batch = 32"),
        ({"namesrv": "a:1", "timeout": "soon"}, "option timeout = 'soon' must be a time such as 30s, 5m or 1h"),
        ({"namesrv": "a:1", "compression": "rar"}, "option compression = 'rar' must be zlib, lz4, zstd or none"),
    ],
)
def test_wrong_options_are_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        SendOptions.parse(given)
    assert sentence in str(caught.value)


def test_options_are_read_and_explained() -> None:
    given = {"NameSrv": "a:1;b:2", "timeout": "5m", "window": "64", "batch": "1", "compression": "none", "group": "g"}
    given["checkpointLocation"] = given["queryName"] = "Spark's own"
    assert SendOptions.parse(given) == SendOptions("a:1;b:2", "g", 300_000, 64, 1, None)
    text = DOCS.read_text()
    assert all(f"`{name}`" in text for name in OPTIONS)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": "string"}, "rocketmq needs a column body to send"),
        ({"topic": "string", "body": "int"}, "rocketmq's column body is sent from binary or string, not from int"),
        ({"topic": "string", "body": "binary", "tag": "string"}, "cannot send a column tag; the nearest one is tags"),
    ],
)
def test_columns_that_cannot_be_sent(columns: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_columns(columns)
    assert sentence in str(caught.value)


def test_a_row_is_a_message() -> None:
    stored = {"a": "1", "b": None, "KEYS": "old", "UNIQ_KEY": "U", "WAIT": "true", "CLUSTER": "c", "TAGS": "t"}
    row: dict[str, Any] = {"topic": "T", "body": "é", "properties": json.dumps(stored), "keys": ["k", "l"]}
    made = message_of(row, "K")
    assert (made.body, made.keys, made.tags, made.unique_key) == ("é".encode(), "k l", "t", "U")
    assert made.properties == {"a": "1"} and made.queue_id is None
    made = message_of({"topic": "T", "body": b"x", "queueId": 3, "uniqKey": None, "properties": [("a", "b")]}, "K")
    assert (made.queue_id, made.unique_key, made.properties) == (3, "K", {"a": "b"})
    for wrong, sentence in (
        ({"topic": None, "body": b""}, "topic or body is null"),
        ({"topic": "T", "body": b"x", "flag": 7}, "a row of topic T has 7: leave the column out"),
        ({"topic": "T", "body": b"x", "properties": "[1"}, "cannot send the properties of a row of topic T"),
    ):
        with pytest.raises(UsageError, match=sentence):
            message_of(wrong, "K")


def test_keys_of_rows_differ_and_come_again() -> None:
    rows = [0, 1, 65535, 65536, 70000, 2**20]
    keys = [RowKeys(task, NOW_MS).of(row) for task in ("w/0", "w/1", "v/0") for row in rows]
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {32}
    assert keys[: len(rows)] == [RowKeys("w/0", NOW_MS).of(row) for row in rows]
    start_ms = int(keys[0][20:28], 16) + local_month_ms(NOW_MS)[0]
    assert start_ms == NOW_MS, "tools take the time of a message from its key"


def test_a_cluster_that_does_not_answer_is_told() -> None:
    rows = pa.RecordBatch.from_pylist([{"topic": "T", "body": b"x"}] * 3)
    options = SendOptions("127.0.0.1:1", timeout_ms=200)
    with pytest.raises(UnreachableError):
        trio.run(send, options, iter([rows]), RowKeys("w", NOW_MS))


# --- a real cluster ---------------------------------------------------------------------------------------------------


def held(namesrv: str, topic: str, count: int) -> list[tuple[bytes, str]]:
    """Body and UNIQ_KEY of so many messages."""
    with Consumer(namesrv, f"readers-of-{topic}", topic, start="first") as consumer:
        found: list[tuple[bytes, str]] = []
        while len(found) < count:
            message = consumer.receive(timeout_ms=HANG_MS)
            assert message is not None, f"{len(found)} of {count} came"
            found.append((message.body, message.properties["UNIQ_KEY"]))
        assert consumer.receive(timeout_ms=1000) is None
        return found


def rows_of(spark: SparkSession, topic: str, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 2).selectExpr(f"'{topic}' topic", "cast(id as string) body", "array('k') keys")


@pytest.mark.spark
@pytest.mark.chaos
def test_batches_and_streams_reach_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    cluster = LocalCluster(tmp_path / "c", replicas=1)
    assert cluster.up().returncode == 0
    try:
        with Admin(cluster.namesrv) as admin:
            for topic in ("Batch", "Stream", "Mine"):
                admin.create_topic(topic, queue_count=4)
        _batch(spark, cluster.namesrv)
        _stream(spark, cluster.namesrv, tmp_path)
    finally:
        cluster.down()


def _batch(spark: SparkSession, namesrv: str) -> None:
    rows_of(spark, "Batch", 0, 5000).write.format("rocketmq").option("namesrv", namesrv).mode("append").save()
    found = held(namesrv, "Batch", 5000)
    assert sorted(int(body) for body, _ in found) == list(range(5000))
    assert len({key for _, key in found}) == 5000
    own = spark.sql("select 'Mine' topic, 'x' body, 'MY-KEY' uniqKey, 2 queueId, 't' tags")
    own.write.format("rocketmq").option("namesrv", namesrv).mode("append").save()
    assert held(namesrv, "Mine", 1) == [(b"x", "MY-KEY")]
    with pytest.raises(PySparkException) as caught:
        spark.sql("select 'Batch' topic, '' body").write.format("rocketmq").option("namesrv", namesrv).mode(
            "append"
        ).save()
    assert str(translate(caught.value)) == "a message for topic Batch has an empty body"


def started(spark: SparkSession, source: str, checkpoint: str, namesrv: str) -> Any:
    frame = spark.readStream.schema("topic string, body string").json(source)
    writer = frame.writeStream.format("rocketmq").option("namesrv", namesrv)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _stream(spark: SparkSession, namesrv: str, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "check"
    source.mkdir()

    def put(name: str, first: int, end: int) -> None:
        lines = (json.dumps({"topic": "Stream", "body": str(number)}) for number in range(first, end))
        (source / name).write_text("\n".join(lines))

    put("1.json", 0, 100)
    query = started(spark, str(source), str(checkpoint), namesrv)
    assert query.awaitTermination(HANG_S)
    # a batch whose end was not noted, as after a kill of the driver, is sent again
    (checkpoint / "commits/0").unlink()
    (checkpoint / "commits/.0.crc").unlink(missing_ok=True)
    put("2.json", 100, 150)
    query = started(spark, str(source), str(checkpoint), namesrv)
    assert query.awaitTermination(HANG_S) and query.exception() is None
    found = held(namesrv, "Stream", 250)
    bodies = Counter(int(body) for body, _ in found)
    assert bodies == Counter({number: 2 if number < 100 else 1 for number in range(150)})
    assert len({key for _, key in found}) == 150, "a row that comes again has its key"
