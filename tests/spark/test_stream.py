"""Streaming over a store that grows, is cut, loses old files; restarts from Spark's checkpoint."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from rmqha.host.disk import HostDisk
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.spark.errors import translate
from tests.spark.test_stream_reader import append, fill
from tests.store.log_writer import LogWriter, Message
from tests.store.support import commit_all, open_store
from tests.support.patience import HANG_S

SLOW_START, STARTS = "Python worker failed to connect back", 10
"""Spark gives a streaming query's own Python process 10 s to start, whatever else the machine does; no setting changes
it. A query that has read nothing yet is started again, so often at most."""

pytestmark = pytest.mark.spark


def started(stream: DataStreamWriter) -> StreamingQuery:
    """A query that has got beyond the start of its process, or has ended for another reason."""
    for _ in range(STARTS):
        query = stream.start()
        while query.isActive and query.lastProgress is None:
            time.sleep(0.05)
        error = query.exception()
        if error is None or SLOW_START not in str(error):
            break
    return query


def numbers_of(frame: DataFrame) -> list[int]:
    return [int(bytes(row.body).rstrip(b".")) for row in frame.select("body").collect()]


class Job:
    """A query from one store into Parquet files, run until it has all that is there (`availableNow`)."""

    def __init__(self, spark: SparkSession, directory: Path, **options: str) -> None:
        self.spark = spark
        self.writer = LogWriter(directory / "store", file_bytes=16 * 1024)
        self.identity = "c#group-a#1"
        self.numbers = 0
        self.epochs = "1\n0\n1-0\n"
        self.options = {"columns": "topic,body,physicalOffset", **options}
        self.directory = directory

    def write(self, count: int) -> None:
        for number in range(self.numbers, self.numbers + count):
            self.writer.append(Message(body=f"{number}".encode().ljust(400, b"."), queue_offset=number))
        self.numbers += count
        self.store()

    def store(self) -> None:
        self.writer.write(confirm_offset=self.writer.end, epochs=self.epochs, identity=self.identity)

    def run(self, sink: Callable[[DataFrame, int], None] | None = None) -> int:
        """How many batches it took. `sink` takes each with its id, by default they are Parquet files."""
        frame = self.spark.readStream.format("commitlog").options(**self.options).load(str(self.writer.root))
        stream = frame.writeStream.option("checkpointLocation", str(self.directory / "checkpoint"))
        if sink is None:
            stream = stream.format("parquet").option("path", str(self.directory / "sink"))
        else:
            stream = stream.foreachBatch(sink)
        query = started(stream.trigger(availableNow=True))
        assert query.awaitTermination(HANG_S), "the query did not end"
        return len(query.recentProgress)

    def fails(self, sink: Callable[[DataFrame, int], None] | None = None) -> str:
        with pytest.raises(PySparkException) as caught:
            self.run(sink)
        return str(translate(caught.value))

    def sink(self) -> list[int]:
        return sorted(numbers_of(self.spark.read.parquet(str(self.directory / "sink"))))


def test_every_record_comes_once_through_restarts_and_limits(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, maxBytesPerTrigger="9000")
    job.write(60)
    assert job.run() >= 3, "about 20 records to a batch"
    assert job.sink() == list(range(60))
    # the files of the last batch were written, and the query died before it said so
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    job.write(50)
    job.run()
    assert job.sink() == list(range(110))


def test_a_cut_below_a_batch_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    job.write(20)
    kept = job.writer.end
    job.write(10)
    job.run()
    shutil.rmtree(job.writer.root)
    job.writer = LogWriter(job.writer.root, file_bytes=16 * 1024)
    job.numbers = 0
    job.write(20)
    assert job.writer.end == kept
    sentence = job.fails()
    assert sentence.startswith(f"{job.writer.root} ends at {kept}, and ") and f"behind {kept} was cut" in sentence
    # grown again beyond it, by another master
    job.epochs = f"2\n0\n1-0\n2-{kept}\n"
    job.write(30)
    assert f"now epoch 2 from {kept} wrote those bytes: the log was cut at {kept} and written anew" in job.fails()
    assert job.sink() == list(range(30))


def test_files_that_went_too_early_end_the_query_or_are_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    job.write(20)
    job.run()
    job.write(100)
    for name in sorted((job.writer.root / "commitlog").iterdir())[:2]:
        name.unlink()
    assert "bytes were removed before they were read; failOnDataLoss=false goes on without them" in job.fails()
    job.options["failOnDataLoss"] = "false"
    job.run()
    found = job.sink()
    assert found[:20] == list(range(20)) and found[-1] == 119 and len(found) == len(set(found)) < 120


def test_a_new_query_may_begin_at_the_end(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, startingOffsets="latest")
    job.write(10)
    job.run()
    job.write(5)
    job.run()
    assert job.sink() == [10, 11, 12, 13, 14]


def test_an_uncommitted_tail_is_cut_while_a_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    """CP: the store of a slave, by the code of a broker. Each committed record comes once."""
    root, sink = tmp_path / "store", tmp_path / "sink"
    root.mkdir()
    (root / "brokerIdentity").write_text("c#a#1")
    store = open_store(HostDisk(root))
    store.append_epoch(Epoch(1), PhyOffset(0))
    confirmed = fill(store, range(40))
    frame = spark.readStream.format("commitlog").option("columns", "body").load(str(root))
    stream = frame.writeStream.format("parquet").option("path", str(sink))
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(stream.trigger(processingTime="100 milliseconds"))

    def rows() -> list[int]:
        query.processAllAvailable()
        return sorted(numbers_of(spark.read.parquet(str(sink))))

    try:
        assert rows() == list(range(40))
        append(store, range(40, 70))
        assert rows() == list(range(40)), "the tail is not committed"
        store.truncate(PhyOffset(confirmed))
        store.append_epoch(Epoch(2), PhyOffset(confirmed))
        append(store, range(100, 120))
        assert rows() == list(range(40))
        commit_all(store)
        assert rows() == [*range(40), *range(100, 120)]
    finally:
        query.stop()
        store.close()


class KeyedSink:
    """Keeps each batch under its id, once. `crash`: the next batch of this id fails before or after it is kept."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}
        self.again: list[int] = []
        self.crash: dict[int, str] = {}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        crash = self.crash.pop(batch_id, "")
        if crash == "before":
            raise OSError("the sink is away")
        found = numbers_of(frame)
        if batch_id in self.batches:
            self.again.append(batch_id)
            assert self.batches[batch_id] == found, "a batch is the same rows when it is asked for again"
        self.batches[batch_id] = found
        if crash == "after":
            raise OSError("the query dies before it commits")

    @property
    def numbers(self) -> list[int]:
        return [number for batch_id in sorted(self.batches) for number in self.batches[batch_id]]


def test_a_batch_that_was_begun_is_the_same_batch_after_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    """Its offsets are in the checkpoint, the commit is not; the sink has it or not. Meanwhile the log has grown, the
    limit is another one, and the query reads another replica."""
    job, sink = Job(spark, tmp_path, maxBytesPerTrigger="9000"), KeyedSink()
    job.write(60)
    sink.crash = {1: "before"}
    assert "the sink is away" in job.fails(sink)
    assert list(sink.batches) == [0]
    job.write(20)
    job.options["maxBytesPerTrigger"] = "12000"
    sink.crash = {2: "after"}
    assert "the query dies before it commits" in job.fails(sink)
    assert list(sink.batches) == [0, 1, 2] and len(sink.batches[1]) < 18 < len(sink.batches[2])
    job.writer.root = tmp_path / "replica-2"
    job.identity = "c#group-a#2"
    job.write(20)
    shutil.rmtree(tmp_path / "store")
    job.run(sink)
    assert sink.again == [2]
    assert sink.numbers == list(range(100))
