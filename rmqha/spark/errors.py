"""Errors of ours in Spark's Python processes: they reach the JVM without Python's traceback, and the user as one
sentence. Loaded modules stay loaded."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException, PySparkException

from rmqha.model import error as errors
from rmqha.model.error import RmqhaError, StoreError, UnreachableError, UsageError

RUNTIME, HIDDEN = "SPARK_PYTHON_RUNTIME", "SPARK_HIDE_TRACEBACK"
"""Variables of Spark's Python processes: what such a process is, and that errors go to the JVM as one line, as they do
with spark.sql.execution.pyspark.udf.hideTraceback.enabled."""
WORKER = "PYTHON_WORKER"
"""The value of RUNTIME in a process that plans, reads or writes."""
_OURS = re.compile(r"rmqha\.model\.error\.(\w+): ([^\n]+)")
_KNOWN = (UsageError, StoreError, UnreachableError)
_CODE = re.compile(r"^\[[\w.]+\]\s*")


@contextmanager
def sentences() -> Iterator[None]:
    """Context manager for a Python process of Spark's, which ends with its first error: an error of ours goes to the
    JVM as its sentence. All others, an application's among them, keep their traceback. What the first call has loaded
    stays loaded."""
    is_worker = os.environ.get(RUNTIME) == WORKER
    try:
        yield
    except RmqhaError:
        if is_worker:
            os.environ[HIDDEN] = "1"
        raise
    finally:
        if is_worker:
            _keep_loaded()


_keeps = False


def _keep_loaded() -> None:
    """Exempt the present objects from later collections of garbage; once, for those of later calls are garbage.

    Spark collects after each task, which took 50 ms of CPU, nearly all of it for the objects of modules."""
    global _keeps
    if not _keeps:
        _keeps = True
        gc.freeze()


def translate(error: PySparkException) -> RmqhaError:
    """The error of ours that an exception of Spark's stands for: UsageError for SQL that cannot run and for wrong
    options or paths, StoreError for damaged files, UnreachableError for a cluster that does not answer."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        name, sentence = ours[-1]
        kind = getattr(errors, name, RmqhaError)
        return next((known for known in _KNOWN if issubclass(kind, known)), RmqhaError)(sentence)
    sentence = " ".join(_CODE.sub("", text).split(" SQLSTATE:")[0].split("\n\n")[0].split())
    if isinstance(error, ParseException):
        place = re.search(r"line (\d+), pos (\d+)", text)
        return UsageError(f"SQL: {sentence}" + (f" (line {place[1]}, column {int(place[2]) + 1})" if place else ""))
    if isinstance(error, AnalysisException):
        return UsageError(f"SQL: {sentence}")
    return RmqhaError(f"Spark: {sentence}")
