"""Errors of Spark, as the one sentence that a user needs."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, ParseException, PySparkException

from rmqha.model.error import RmqhaError, StoreError, UsageError

_OURS = re.compile(r"rmqha\.model\.error\.(\w+): ([^\n]+)")
_CODE = re.compile(r"^\[[\w.]+\]\s*")


def translate(error: PySparkException) -> RmqhaError:
    """UsageError for SQL that cannot run and for wrong options or paths; StoreError for damaged files."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, sentence = ours[-1]
        return StoreError(sentence) if kind == "StoreError" else UsageError(sentence)
    sentence = " ".join(_CODE.sub("", text).split(" SQLSTATE:")[0].split("\n\n")[0].split())
    if isinstance(error, ParseException):
        place = re.search(r"line (\d+), pos (\d+)", text)
        return UsageError(f"SQL: {sentence}" + (f" (line {place[1]}, column {int(place[2]) + 1})" if place else ""))
    if isinstance(error, AnalysisException):
        return UsageError(f"SQL: {sentence}")
    return RmqhaError(f"Spark: {sentence}")
