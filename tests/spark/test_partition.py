"""What the tasks read, and what they tell of it; no session is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError

from rmqha.model.error import UsageError
from rmqha.scan import plan as scan_plan
from rmqha.scan.api import ALL_ROWS, RowFilter, open_store
from rmqha.scan.storage import LocalStorage, StorageFile
from rmqha.spark.local import _is_local, register
from rmqha.spark.options import ReadOptions
from rmqha.spark.partition import (
    CUT_TASKS,
    JOINED_BYTES,
    JOINED_COUNT,
    REMOTE_CUT_TASKS,
    UNKNOWN,
    TaskSizing,
    joined,
    partitions,
)
from rmqha.spark.source import CommitLogReader, CommitLogSource
from tests.store.log_writer import LogWriter, Message

MIB, GIB = 1 << 20, 1 << 30
COUNT = 2000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = LogWriter(tmp_path_factory.mktemp("store"), 1024 * 1024)
    for index in range(COUNT):
        writer.append(Message(topic=b"t%d" % (index % 8), queue_offset=index // 8, body=b"x" * 900))
    return writer.write()


def read(store: Path, **given: str) -> int:
    options = ReadOptions.parse({"path": str(store), **given})
    reader = CommitLogReader(options, list(options.columns), options.properties_as)
    return sum(batch.num_rows for item in reader.partitions() for batch in reader.read(item))


def test_every_task_tells_what_it_has_read(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store", 4 * MIB)
    for index in range(2 * COUNT):
        writer.append(Message(topic=b"t%d" % (index % 8), queue_offset=index // 8, body=bytes(2900)))
    store, told = writer.write(), {}
    for use in ("true", "false"):
        report = tmp_path / use
        assert read(store, topic="t3", useQueues=use, readReport=str(report)) == COUNT // 4
        told[use] = [json.loads(path.read_text()) for path in report.glob("task-*.json")]
        assert sum(item["rows"] for item in told[use]) == COUNT // 4
        assert all(item["rangeBytes"] == sum(end - start for _, start, end in item["ranges"]) for item in told[use])
    size = sum(item["rangeBytes"] for item in told["true"])
    assert sum(item["logBytes"] for item in told["true"]) < size / 7
    assert sum(item["queueBytes"] for item in told["true"]) > 20 * 2 * COUNT
    assert all(item["walkedBytes"] == {} for item in told["true"])
    assert sum(item["logBytes"] for item in told["false"]) >= size * 0.99
    assert sum(item["queueBytes"] for item in told["false"]) == 0


@pytest.mark.parametrize("runtime", ["PYTHON_WORKER", None])
def test_a_worker_keeps_what_its_first_call_has_loaded(
    store: Path, monkeypatch: pytest.MonkeyPatch, runtime: str | None
) -> None:
    """Once, so that the garbage of later tasks is collected."""
    frozen: list[int] = []
    monkeypatch.setattr("rmqha.spark.errors._keeps", False)
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(1))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # put back, for a session of this process hands it to its workers
    if runtime is not None:
        monkeypatch.setenv("SPARK_PYTHON_RUNTIME", runtime)
    assert read(store, topic="t3") == COUNT // 8
    with pytest.raises(UsageError):
        CommitLogSource({"path": str(store), "topik": "t"}).schema()
    assert len(frozen) == (runtime is not None)


@pytest.mark.parametrize(
    "given", [{"startingTimestamp": "1000", "endingTimestamp": "1040", "timestampSlackMs": "0"}, {"tags": "rare"}]
)
def test_a_filter_on_time_or_tags_reads_only_what_it_must(tmp_path: Path, given: dict[str, str]) -> None:
    """40 of 4,000 records each; a bound of time is found to 256 KiB."""
    writer = LogWriter(tmp_path / "store", 8 * 1024 * 1024)
    for index in range(4000):
        properties = b"TAGS\x01%s\x02" % (b"rare" if index % 100 == 7 else b"usual")
        writer.append(Message(queue_offset=index, body=bytes(900), stored_at_ms=index, properties=properties))
    report = tmp_path / "report"
    assert read(writer.write(confirm_offset=writer.end), readReport=str(report), minPartitions="1", **given) == 40
    told = [json.loads(path.read_text()) for path in report.glob("task-*.json")]
    needed, most = 40 * 1000, 2 * 256 * 1024 if "tags" not in given else 40 * 4096
    assert needed < sum(item["logBytes"] for item in told) < needed + most


def test_a_report_that_cannot_be_written_is_one_sentence(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"readReport = .*file cannot be written"):
        read(store, readReport=str(tmp_path / "file"))


def test_how_large_tasks_are() -> None:
    """The table of docs/use/spark.md."""
    local, cluster = TaskSizing(2, may_grow=False), TaskSizing(100)
    assert local.task_bytes(10 * GIB, CUT_TASKS) == GIB, "its cores stay as many"
    for sizing in (cluster, UNKNOWN):
        assert [sizing.task_bytes(size * GIB, CUT_TASKS) // MIB for size in (1, 1024, 2048, 4096, 9313)] == [
            256,
            256,
            512,
            1024,
            1024,
        ]
        assert [sizing.task_bytes(size * GIB, REMOTE_CUT_TASKS) // MIB for size in (32, 64, 128)] == [256, 512, 1024]
    assert (local.least_tasks, cluster.least_tasks) == (4, 200) and UNKNOWN.least_tasks >= 2
    assert [_is_local(name) for name in ("local", "local[*]", "local[4,2]", "local-cluster[2,1,1024]", "yarn")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_tasks_fit_the_cores(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_plan, "RANGE_MIN_BYTES", 64 * 1024)
    view = open_store(str(store))

    def count(sizing: TaskSizing, rows: RowFilter = ALL_ROWS, **given: str) -> int:
        options = ReadOptions.parse({"path": str(store), **given})
        return len(partitions(options, [[view]], rows, sizing))

    assert 8 <= count(TaskSizing(5)) <= 12 and 18 <= count(TaskSizing(10)) <= 22
    assert count(TaskSizing(1)) == 2 and count(TaskSizing(10), minPartitions="4") in (4, 5)
    monkeypatch.setattr("rmqha.spark.partition.TASK_BYTES", 100 * 1024)
    assert 18 <= count(TaskSizing(1)) <= 22, "by bytes where cores may come"
    assert count(TaskSizing(1, may_grow=False)) == 2
    assert count(TaskSizing(1), RowFilter(frozenset(["t3"]))) == 2, "every task looks into all queues"


class ConnectSession:
    """What a Spark Connect client has of a session; its package is not installed here."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.sources: list[type[CommitLogSource]] = []
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.dataSource = SimpleNamespace(register=self.sources.append)

    @property
    def sparkContext(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})


def test_a_session_without_a_context_is_registered_with_unknown_cores() -> None:
    given = ConnectSession()
    register(cast(Any, given))
    *sources, sink = given.sources
    assert sink.name() == "rocketmq"
    assert [source.name() for source in sources] == ["commitlog", "commitlog_ranges"]
    assert all(source.sizing is UNKNOWN for source in sources)
    assert given.settings == {}, "filters are not pushed"


def test_a_queue_that_may_not_be_read_is_one_sentence(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalStorage.open

    def refusing(self: LocalStorage, path: str) -> StorageFile:
        if "consumequeue" in path:
            raise PermissionError(13, "Permission denied", path)
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "open", refusing)
    monkeypatch.setattr(scan_plan, "RANGE_MIN_BYTES", 64 * 1024)
    options = ReadOptions.parse({"path": str(store), "minPartitions": "9"})
    with pytest.raises(UsageError, match=r"consumequeue/t\d/0/0{20} cannot be read: permission denied"):
        CommitLogReader(options, list(options.columns), options.properties_as).partitions()


def test_small_batches_are_sent_together() -> None:
    small, large = pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": list(range(JOINED_BYTES // 8))})
    taken: list[int] = []

    def given(*batches: Any) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            taken.append(number)
            yield batch

    found = list(joined(given(small, small, large, large, *[small] * (JOINED_COUNT + 1))))
    sizes = [batch.num_rows for batch in found]
    assert sizes == [4 + large.num_rows, large.num_rows, 2 * JOINED_COUNT, 2]
    assert found[0]["n"].to_pylist()[:5] == [1, 2, 1, 2, 0] and found[3].equals(small)
    taken.clear()
    next(joined(given(*[small] * 99)))
    assert len(taken) == JOINED_COUNT
