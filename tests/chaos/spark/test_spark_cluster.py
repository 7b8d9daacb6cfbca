"""The same job on a standalone cluster: a master and two workers on loopback, the code shipped as a wheel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from rmqha.cli.generate.spark import JOB, submit_script
from rmqha.ops.local.preflight import free_ports
from rmqha.spark import session
from rmqha.spark.java import java_home
from tests.store.log_writer import LogWriter, Message
from tests.support.command import output_of
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


def environment() -> dict[str, str]:
    """Variables that Spark's own scripts would set; the workers' python3 is this one."""
    home = Path(pyspark.__file__).parent
    scala = next((home / "jars").glob("scala-library-*.jar")).stem.removeprefix("scala-library-")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": scala.rpartition(".")[0],
    }


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"spark://127.0.0.1:{free_ports(1)}"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        port = self.address.rpartition(":")[2]
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        self._wait("master", "I have been elected leader")
        self.add_workers("worker-1", "worker-2")

    def add_workers(self, *names: str) -> None:
        for name in names:
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / name))
            self._start(name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", *sizes, self.address)
        for name in names:
            self._wait(name, "Successfully registered with master")

    def kill(self, name: str) -> None:
        self._started[name].kill()
        self._started[name].wait(HANG_S)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        java = [str(java_home() / "bin" / "java"), "-Xmx256m", "-Dspark.master.rest.enabled=false"]
        command = [*java, "-cp", str(home / "jars" / "*"), f"org.apache.spark.deploy.{main}"]
        with (self.directory / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                [*command, *arguments], env={**os.environ, **environment()}, stdout=log, stderr=log
            )

    def _wait(self, name: str, words: str) -> None:
        log, end = self.directory / f"{name}.log", time.monotonic() + START_S
        while words not in log.read_text("utf-8", "replace"):
            assert time.monotonic() < end, f"{name} did not start: {log.read_text('utf-8', 'replace')[-2000:]}"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            process.wait(30)


def await_executors(spark: SparkSession, count: int) -> None:
    """Else the first to come may do all that there is to do."""
    end = time.monotonic() + START_S
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() != count + 1:  # the driver is one of them
        assert time.monotonic() < end, f"there are not {count} executors"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[SparkSession]:
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.submit.pyFiles": str(wheel(cluster.directory / "wheel")),
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "false",
    }
    started = session("cluster", master=cluster.address, settings=settings)
    await_executors(started, 2)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> str:
    writer = LogWriter(cluster.directory / "store", 4 * 1024 * 1024)
    for index in range(COUNT):
        writer.append(Message(topic=b"t%d" % (index % 2), queue_offset=index // 2, body=b"x" * 800))
    return str(writer.write(confirm_offset=writer.end))


def test_the_script_that_is_generated_submits_its_job(cluster: Cluster, store: str, tmp_path: Path) -> None:
    """Before there is a session, which takes all cores."""
    (tmp_path / "job.py").write_text(JOB)
    script = submit_script("standalone", str(tmp_path / "job.py"), "", "")
    script = script.replace(":7077", f":{cluster.address.rpartition(':')[2]}")
    lines = output_of(["sh", "-s", store], tmp_path, {**environment(), "SPARK_MASTER": "127.0.0.1"}, stdin=script)
    rows = [line.replace("|", " ").split() for line in lines if line.startswith("|t")]
    assert [(topic, int(messages)) for topic, day, messages, size in rows if day == "2023-11-14"] == [
        ("t0", COUNT // 2),
        ("t1", COUNT // 2),
    ]


def test_two_workers_read_one_store(spark: SparkSession, store: str) -> None:
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


def test_a_worker_that_is_killed_costs_no_row(
    cluster: Cluster, spark: SparkSession, store: str, tmp_path: Path
) -> None:
    """A worker of its own, so that the cluster is as before; killed with its executor while that reads, and holds what
    its task has read."""
    name, told = "worker-3", tmp_path / "executor"
    cluster.add_workers(name)
    await_executors(spark, 3)
    log = spark.read.format("commitlog").option("minPartitions", "24").option("columns", "physicalOffset").load(store)

    def held(rows: Iterable[Any]) -> Iterator[int]:
        for number, row in enumerate(rows):
            if number == 100 and Path.cwd().parts[-3] == name:
                # the executor is the parent of the daemon that has forked this process
                status = Path(f"/proc/{os.getppid()}/status").read_text()
                Path(f"{told}.new").write_text(status.partition("PPid:")[2].split()[0])
                Path(f"{told}.new").rename(told)
                signal.pause()
            yield row[0]

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: log.rdd.mapPartitions(held).collect())
        end = time.monotonic() + HANG_S
        while not told.exists():
            assert time.monotonic() < end, "the third worker has read nothing"
            assert not found.done(), "the third worker had nothing to read"
            time.sleep(0.05)
        executor = int(told.read_text())
        assert str(cluster.directory / name) in str(Path(f"/proc/{executor}/cwd").readlink())
        cluster.kill(name)
        with suppress(ProcessLookupError):
            os.kill(executor, signal.SIGKILL)
        offsets = found.result(HANG_S)
    await_executors(spark, 2)
    assert sorted(offsets) == sorted(row[0] for row in log.collect()) and len(offsets) == COUNT
