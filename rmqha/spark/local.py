"""A local, quiet Spark session that has the data source "commitlog"."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from rmqha.model.error import UsageError
from rmqha.scan.storage import S3A
from rmqha.spark.java import LOG_VARIABLE, java_home
from rmqha.spark.partition import UNKNOWN, TaskSizing
from rmqha.spark.sink.cluster import RocketmqSink
from rmqha.spark.source import CommitLogRanges, CommitLogSource

LOG_NAME = "spark.log"
PY_FILES = "spark.submit.pyFiles"
MAX_SOCKET_DIRECTORY_BYTES = 107 - len("/.123e4567-e89b-12d3-a456-426614174000.sock")
"""Longest directory for Spark's sockets: the address of a Unix socket has at most 107 bytes."""


def register(spark: SparkSession) -> SparkSession:
    """Make `format("commitlog")` and the sink `format("rocketmq")` known to a session, and return the session.

    Its Python workers must be able to import rmqha: they run this interpreter unless PYSPARK_PYTHON says otherwise.
    A read's tasks are sized for the cores that the session has now, with room for more if it is on a cluster.
    """
    # a Spark Connect client has none: neither interpreter nor cores are its own
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is not None and "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        context.pythonExec = sys.executable
    sizing = UNKNOWN if context is None else TaskSizing(context.defaultParallelism, not _is_local(str(context.master)))
    # classes of its own, which Spark pickles whole: it plans in other processes
    known = {"sizing": sizing, "storage": s3a_settings(context)}
    for source in (CommitLogSource, CommitLogRanges):
        spark.dataSource.register(type(source.__name__, (source,), known))
    spark.dataSource.register(RocketmqSink)
    return spark


def s3a_settings(context: SparkContext | None) -> dict[str, str]:
    """The settings spark.hadoop.fs.s3a.… of a session, without spark.hadoop."""
    if context is None:
        return {}
    # getConf() asks for all settings one by one, which takes 20 ms
    found = context._jsc.sc().conf().getAllWithPrefix(f"spark.hadoop.{S3A}")
    return {S3A + str(pair._1()): str(pair._2()) for pair in found}


def _is_local(master: str) -> bool:
    """True if the tasks run in the driver's process, whose cores stay as many as they are."""
    return re.fullmatch(r"local(\[[^]]*])?", master) is not None


def session(
    app_name: str = "rmqha",
    *,
    cores: str = "*",
    master: str | None = None,
    home: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a local Spark session: all cores, loopback only, no web page, no output (takes 7 to 12 s).

    `master` is a cluster to use instead of this machine's cores, such as spark://host:7077; one on other machines also
    needs rmqha on its workers, and `settings` for spark.driver.host and spark.driver.bindAddress. `home` is the
    JAVA_HOME to use, by default the one that `java_home()` finds; `settings` are added to Spark's configuration. What
    Spark would print goes to a file in a temporary directory that lives as long as the process.
    UsageError if there is no Java or it does not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="rmqha-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    log = directory / LOG_NAME
    builder = SparkSession.builder.appName(app_name).master(master or f"local[{cores}]")
    quiet = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(directory),
        # its default, 15 s, is short for a worker that starts on a busy machine
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        **worker_sockets(directory),
    }
    for name, value in (quiet | dict(settings or {})).items():
        builder = builder.config(name, value)
    variables = {"JAVA_HOME": str(home or java_home()), LOG_VARIABLE: str(log), "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # what pyspark logs here it also raises
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    try:
        with _environment(variables), warnings.catch_warnings():
            # Spark says that it has not been tested with the newest pandas, which nothing here uses
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
            spark = register(builder.getOrCreate())
            # Spark sends these to the workers only where they were known when its JVM started
            for path in filter(None, (settings or {}).get(PY_FILES, "").split(",")):
                spark.sparkContext.addPyFile(path)
            return spark
    except PySparkException as error:
        said = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        raise UsageError(f"Spark did not start: {said[-1] if said else error}") from None


def worker_sockets(directory: Path) -> dict[str, str]:
    """Sockets by which Spark talks with its Python workers: by Unix sockets in `directory`, by loopback if its name is
    too long."""
    if len(os.fsencode(directory)) > MAX_SOCKET_DIRECTORY_BYTES:
        return {"spark.python.unix.domain.socket.enabled": "false"}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the child that is started inside, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
