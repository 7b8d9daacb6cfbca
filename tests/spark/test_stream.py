"""Streaming over a store that grows, is cut, loses old files; restarts from Spark's checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmqha.spark import session
from rmqha.spark.errors import translate
from tests.store.log_writer import LogWriter, Message

pytestmark = pytest.mark.spark

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    started = session("streams", cores="2", settings={"spark.sql.shuffle.partitions": "2"})
    yield started
    started.stop()


class Job:
    """A query from one store into Parquet files, run until it has all that is there (`availableNow`)."""

    def __init__(self, spark: SparkSession, directory: Path, **options: str) -> None:
        self.spark = spark
        self.writer = LogWriter(directory / "store", file_bytes=16 * 1024)
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
        self.writer.write(confirm_offset=self.writer.end, epochs=self.epochs)

    def run(self) -> int:
        """How many batches it took."""
        frame = self.spark.readStream.format("commitlog").options(**self.options).load(str(self.writer.root))
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(self.directory / "sink"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(TIMEOUT_S), "the query did not end"
        return len(query.recentProgress)

    def fails(self) -> str:
        with pytest.raises(PySparkException) as caught:
            self.run()
        return str(translate(caught.value))

    def sink(self) -> list[int]:
        rows: list[Any] = self.spark.read.parquet(str(self.directory / "sink")).select("body").collect()
        return sorted(int(bytes(row.body).rstrip(b".")) for row in rows)


def test_every_record_comes_once_through_restarts_and_limits(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, maxBytesPerTrigger="9000")
    job.write(60)
    assert job.run() >= 3, "about 20 records to a batch"
    assert job.sink() == list(range(60))
    job.write(50)
    job.run()
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
    assert sentence.startswith(f"{job.writer.root} ends at {kept}, and ") and "was cut" in sentence
    # grown again beyond it, by another master
    job.epochs = f"2\n0\n1-0\n2-{kept}\n"
    job.write(30)
    assert "the log was cut and written anew" in job.fails()
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
