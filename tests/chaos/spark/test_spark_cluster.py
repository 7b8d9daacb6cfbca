"""The same job on a standalone cluster: a master and two workers on loopback, the code shipped as a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from rmqha.ops.local.preflight import free_ports
from rmqha.spark import session
from rmqha.spark.java import java_home
from tests.store.log_writer import LogWriter, Message
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

ROOT = Path(__file__).parents[3]
START_S = HANG_S
COUNT = 20_000


def wheel(directory: Path) -> Path:
    """rmqha's wheel, made and named as docs/use/spark.md says: Spark takes .zip, not .whl, which is the same thing."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("rmqha-*.whl")
    return Path(shutil.copy(built, directory / "rmqha.zip"))


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"spark://127.0.0.1:{free_ports(1)}"
        self._started: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        self._wait("master", "I have been elected leader")
        for name in ("worker-1", "worker-2"):
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / name))
            self._start(name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *sizes, self.address)
        for name in ("worker-1", "worker-2"):
            self._wait(name, "Successfully registered with master")

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        # what Spark's own scripts would set
        scala = next((home / "jars").glob("scala-library-*.jar")).stem.removeprefix("scala-library-")
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala.rpartition(".")[0],
        }
        java = [str(java_home() / "bin" / "java"), "-Xmx256m", "-Dspark.master.rest.enabled=false"]
        command = [*java, "-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{main}"]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._started.append(subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log))

    def _wait(self, name: str, words: str) -> None:
        log, end = self.directory / f"{name}.log", time.monotonic() + START_S
        while words not in log.read_text("utf-8", "replace"):
            assert time.monotonic() < end, f"{name} did not start: {log.read_text('utf-8', 'replace')[-2000:]}"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            process.wait(30)


def await_executors(spark: SparkSession, count: int) -> None:
    """Else the first to come may do all that there is to do."""
    end = time.monotonic() + START_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < count + 1:  # the driver is one of them
        assert time.monotonic() < end, "the executors did not start"
        time.sleep(0.1)


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    cluster = Cluster(tmp_path)
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.submit.pyFiles": str(wheel(tmp_path / "wheel")),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "false",
    }
    try:
        started = session("cluster", master=cluster.address, settings=settings)
        await_executors(started, 2)
        yield started
        started.stop()
    finally:
        cluster.stop()


def test_two_workers_read_one_store(spark: SparkSession, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "store", 4 * 1024 * 1024)
    for index in range(COUNT):
        writer.append(Message(topic=b"t%d" % (index % 2), queue_offset=index // 2, body=b"x" * 800))
    store = str(writer.write(confirm_offset=writer.end))
    log = spark.read.format("commitlog").load(store)
    assert log.rdd.getNumPartitions() >= 4, "two for each core"
    readers = log.rdd.mapPartitions(lambda rows: [(str(Path.cwd()), sum(1 for _ in rows))]).collect()
    assert sum(count for _, count in readers) == COUNT
    assert {Path(directory).parts[-3] for directory, count in readers if count} == {"worker-1", "worker-2"}
    log.createOrReplaceTempView("log")
    found = spark.sql("select topic, count(*) n, sum(length(body)) bytes from log group by topic").collect()
    assert {row.topic: (row.n, row.bytes) for row in found} == {
        "t0": (COUNT // 2, COUNT // 2 * 800),
        "t1": (COUNT // 2, COUNT // 2 * 800),
    }

    def where(_: object) -> Iterator[tuple[str, str]]:
        import rmqha

        yield str(Path.cwd()), str(rmqha.__file__)

    places = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect()
    assert {Path(directory).parts[-3] for directory, _ in places} <= {"worker-1", "worker-2"}
    assert all("rmqha.zip" in code for _, code in places), f"{sys.executable} has its own rmqha: {places}"
