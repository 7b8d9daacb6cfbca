"""A DataFrame written as a store: read back, opened by our store, checked by fsck, refused where it must be."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rmqha.cli.storage.fsck import fsck
from rmqha.host.disk import HostDisk
from rmqha.model.error import UsageError
from rmqha.scan.api import Decoding, ViewOptions, open_store, read_store
from rmqha.spark.errors import translate
from rmqha.spark.write_rows import check_schema, parse_write_options
from rmqha.spark.writer import CommitLogWriter
from rmqha.store.config import StoreConfig
from rmqha.store.store import Store
from tests.store.support import unpack
from tests.support.patience import HANG_S
from tests.support.tracer import RecordingTracer

SIZES = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1048576,
    mapped_file_size_consume_queue=20000,
    max_hash_slot_num=500,
    max_index_num=2000,
)


def save(frame: DataFrame, root: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("commitlog").options(**(SIZES | options)).mode(mode).save(str(root))


def load(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.read.format("commitlog").options(**options).load(str(root))


KEPT = ["topic", "queueId", "body", "keys", "tags", "uniqKey", "flag", "reconsumeTimes", "bornTimestamp"]


@pytest.mark.spark
def test_a_copy_of_a_real_store_holds_the_same_messages(spark: SparkSession, tmp_path: Path) -> None:
    golden = unpack("n0", tmp_path) / "n0"
    source = load(spark, golden, topic="GoldNormal,GoldMixed,GoldOrder").orderBy("physicalOffset")
    copy = tmp_path / "copy"
    save(source, copy)
    found = load(spark, copy)

    def rows(frame: DataFrame) -> list[Any]:
        return [tuple(row) for row in frame.orderBy("physicalOffset").select(*KEPT, "properties").collect()]

    assert rows(found) == rows(source) and found.count() > 500
    done = CliRunner().invoke(fsck, [str(copy)])
    assert done.exit_code == 0, done.output
    store = Store.open(HostDisk(copy), CONFIG, RecordingTracer(), process_id=1)
    try:
        (line,) = store.recovery.lines
        assert line.startswith("After a clean stop the log was checked from ")
        for topic, queues in store.queues().items():
            counted = found.where(f"topic = '{topic}'").groupBy("queueId").count().collect()
            assert {row["queueId"]: row["count"] for row in counted} == {
                queue: store.queue_range(topic, queue)[1] for queue in queues
            }
        key = source.where("topic = 'GoldNormal'").first()
        assert key is not None and store.index.query("GoldNormal", key["keys"][0]).records
    finally:
        store.close()
    assert '"GoldOrder"' in (copy / "config/topics.json").read_text()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.spark
def test_a_second_write_goes_on_where_the_first_ended(spark: SparkSession, tmp_path: Path) -> None:
    columns = "'T' topic", "cast(id as string) body", "cast(id % 2 as int) queueId", "array('k') keys"
    first = spark.range(0, 30, 1, 3).selectExpr(*columns)
    save(first, tmp_path / "s")
    save(spark.sql("select 'U' topic, 'x' body, map('a', '1', 'b', null) properties"), tmp_path / "s")
    rows = load(spark, tmp_path / "s").orderBy("physicalOffset").collect()
    assert [int(bytes(row.body)) for row in rows[:30]] == list(range(30)), "in the order of the partitions"
    assert (rows[30].topic, rows[30].properties) == ("U", '{"a":"1"}')


@pytest.mark.spark
def test_a_write_that_fails_leaves_the_store_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "s"
    good = spark.sql("select 'T' topic, 'x' body")
    bad = spark.sql("select 'T' topic, 'y' body union all select null topic, 'z' body").coalesce(1)
    with pytest.raises(PySparkException):
        save(bad, root)
    assert not root.exists()
    save(good, root)

    def told(frame: DataFrame, **options: str) -> str:
        with pytest.raises(PySparkException) as caught:
            save(frame, root, **options)
        return str(translate(caught.value))

    assert told(bad) == "commitlog cannot write a row whose topic or body is null"
    assert load(spark, root).count() == 1
    with (root / "lock").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        assert "is in use by another process" in told(good)
    assert "does not overwrite" in told(good, mode="overwrite")
    save(good, root)
    assert load(spark, root).count() == 2
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": "string"}, "commitlog needs a column body to write"),
        ({"topic": "string", "boddy": "binary"}, "commitlog cannot write a column boddy; the nearest one is body"),
        ({"topic": "int", "body": "binary"}, "commitlog's column topic is written from string, not from int"),
    ],
)
def test_columns_that_cannot_be_written(columns: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_schema(columns)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "commitlog needs a path to write to"),
        ({"path": "p", "topics": "T"}, "unknown option topics of a commitlog write; the nearest known one is"),
        ({"path": "s3://b/x"}, "commitlog writes to a directory of this machine only, not to s3://b/x"),
        ({"path": "p", "maxIndexNum": "0"}, "option maxIndexNum = '0' must be a whole number above 0"),
    ],
)
def test_options_that_are_wrong(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_write_options(options)
    assert sentence in str(caught.value)


def commit(root: Path, *rows: dict[str, Any]) -> None:
    """A write of one part, without Spark."""
    CommitLogWriter(str(root), CONFIG, overwrite=False).write_table(pa.Table.from_pylist(list(rows)))


ROW = {"topic": "T", "body": b"x"}
KILLED = """
import os, signal, sys
from pathlib import Path
import rmqha.spark.sink.records as records
import rmqha.spark.writer as writer
from rmqha.store.store import Store
from tests.spark.test_writer import commit

root, place, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
left = [count]

def dying(called):
    def call(*args, **named):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*args, **named)
    return call

records.PIECE_ROWS = 10
owner = writer if place.startswith("_") else Store
setattr(owner, place, dying(getattr(owner, place)))
commit(root, *[{"topic": "T", "body": b"new %d" % n} for n in range(100)])
"""


def killed(root: Path, place: str, count: int) -> None:
    """A write whose driver is killed when it calls `place` after `count` calls."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), place, str(count)],
        timeout=HANG_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == -signal.SIGKILL


def bodies(root: Path) -> list[bytes]:
    batches = read_store(open_store(str(root), ViewOptions(uncommitted=True)), Decoding(("body",)))
    return [body for batch in batches for body in batch["body"].to_pylist()]


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("begin_write", 0),
        ("append_made", 0),
        ("append_made", 5),
        ("dispatch", 0),
        ("dispatch", 9),
        ("_add_topics", 0),
        ("end_write", 0),
    ],
)
def test_a_driver_that_is_killed_in_its_commit_leaves_the_store_as_it_was(
    tmp_path: Path, place: str, count: int, before: int
) -> None:
    root = tmp_path / "s"
    for _ in range(before):
        commit(root, ROW)
    killed(root, place, count)
    if (root / "commitlog").exists():
        assert bodies(root) == [b"x"] * before, "a reader does not see half a write"
    commit(root, {"topic": "T", "body": b"later"})
    assert bodies(root) == [*[b"x"] * before, b"later"]
    assert not (root / "rmqha.write").exists()
    done = CliRunner().invoke(fsck, [str(root)])
    assert done.exit_code == 0, done.output


def test_a_driver_that_is_killed_after_its_commit_has_written_all(tmp_path: Path) -> None:
    killed(tmp_path / "s", "close", 0)
    assert len(bodies(tmp_path / "s")) == 100


def test_rows_that_a_killed_driver_left_aside_are_removed_later(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".s.rmqha-write-1", ".s.rmqha-write-2", ".t.rmqha-write-1"))
    for directory in (old, new, other):
        directory.mkdir()
    for directory in (old, other):
        os.utime(directory, (1, 1))
    commit(tmp_path / "s", ROW)
    assert not old.exists() and new.exists() and other.exists()


def test_rows_left_aside_that_another_write_removes_meanwhile_fail_no_write(tmp_path: Path) -> None:
    (tmp_path / ".s.rmqha-write-1").symlink_to(tmp_path / "gone")
    commit(tmp_path / "s", ROW)
    assert bodies(tmp_path / "s") == [b"x"]


def test_a_path_with_the_scheme_file_is_a_directory(tmp_path: Path) -> None:
    assert parse_write_options({"path": f"file://{tmp_path}"})[0] == str(tmp_path)


@pytest.mark.parametrize("mark", ["brokerIdentity", "brokerIdentity-temp", "epochFileCheckpoint"])
def test_the_store_of_a_group_member_is_not_written_to(tmp_path: Path, mark: str) -> None:
    root = tmp_path / "s"
    commit(root, ROW)
    before = sorted(root.rglob("*"))
    (root / mark).write_text("c#group-a#1" if mark == "brokerIdentity" else "1\n0\n1-0\n")
    with pytest.raises(UsageError, match=f"{root} belongs to a member of a broker group .{mark}."):
        commit(root, ROW)
    (root / mark).unlink()
    assert sorted(root.rglob("*")) == before
    commit(root, ROW)


@pytest.mark.parametrize(
    "fields",
    [{"sysFlag": 0x80}, {"properties": '{"INNER_NUM":"3"}'}, {"sysFlag": 0x84, "properties": '{"INNER_NUM":"3"}'}],
)
def test_an_inner_batch_is_not_written_as_a_message(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot write an inner batch of topic T, one row that holds many messages"):
        commit(tmp_path / "s", ROW | fields)
    commit(tmp_path / "s", ROW | {"sysFlag": 0x1, "properties": '{"INNER":"3"}'})


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_write_leaves_an_empty_directory_empty(tmp_path: Path, exists: bool) -> None:
    root = tmp_path / "s"
    if exists:
        root.mkdir()
    with pytest.raises(UsageError, match="topic or body is null"):
        commit(root, ROW, {"topic": None, "body": b"y"})
    assert root.exists() == exists and not list(root.rglob("*"))


@pytest.mark.parametrize("exists", [False, True])
def test_a_write_that_loses_to_another_one_leaves_that_ones_files(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    if exists:
        root.mkdir()
    opening = Store.open

    def second(*args: Any, **options: Any) -> Store:
        opening(
            HostDisk(root), CONFIG, RecordingTracer(), process_id=2
        )  # between the look at the directory and its lock
        return opening(*args, **options)

    monkeypatch.setattr(Store, "open", second)
    with pytest.raises(UsageError, match="in use by another process"):
        commit(root, ROW)
    assert (root / "abort").exists()


def test_keys_of_any_arrow_list_are_written(tmp_path: Path) -> None:
    """The name of a list's elements, and whether they may be null, say nothing."""
    lists = pa.list_(pa.string()), pa.list_(pa.field("element", pa.string(), nullable=False))
    for number, kind in enumerate(lists):
        root = tmp_path / str(number)
        row = {"topic": ["T"], "body": [b"b"], "keys": pa.array([["k1", "k2"]], kind)}
        CommitLogWriter(str(root), CONFIG, overwrite=False).write_table(pa.table(row))
        (batch,) = read_store(open_store(str(root)))
        assert batch["keys"].to_pylist() == [["k1", "k2"]]
