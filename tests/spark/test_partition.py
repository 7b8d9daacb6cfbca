"""What the tasks read, and what they tell of it; no session is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqha.model.error import UsageError
from rmqha.spark.options import ReadOptions
from rmqha.spark.source import CommitLogReader
from tests.store.log_writer import LogWriter, Message

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


def test_every_task_tells_what_it_has_read(store: Path, tmp_path: Path) -> None:
    told = {}
    for use in ("true", "false"):
        report = tmp_path / use
        assert read(store, topic="t3", useQueues=use, readReport=str(report)) == COUNT // 8
        told[use] = [json.loads(path.read_text()) for path in report.glob("task-*.json")]
        assert sum(item["rows"] for item in told[use]) == COUNT // 8
        assert all(item["rangeBytes"] == sum(end - start for _, start, end in item["ranges"]) for item in told[use])
    size = sum(item["rangeBytes"] for item in told["true"])
    assert sum(item["logBytes"] for item in told["true"]) < size / 7
    assert sum(item["queueBytes"] for item in told["true"]) > 20 * COUNT
    assert all(item["walkedBytes"] == {} for item in told["true"])
    assert sum(item["logBytes"] for item in told["false"]) >= size * 0.99
    assert sum(item["queueBytes"] for item in told["false"]) == 0


def test_a_report_that_cannot_be_written_is_one_sentence(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"readReport = .*file cannot be written"):
        read(store, readReport=str(tmp_path / "file"))
