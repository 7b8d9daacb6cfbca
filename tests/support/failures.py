"""Failing tests in a few lines each: the end of `.ci/run`, of whose output only the end is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

VARIABLE = "RMQHA_FAILURES"
"""Name of the file that FailureLog appends to."""
MAX_LINES = 15
"""For one test, its name included."""
MAX_LINE_CHARS = 200
_FRAME = re.compile(r'File ".*?/(tests|rmqha|controller|nameserver)/')


class FailureLog:
    """A pytest plugin: appends a few lines for each test that fails, and each module that cannot be collected."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._add(f"{report.nodeid} ({report.when})", report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._add(f"{report.nodeid} (collected)", report.longreprtext)

    def _add(self, name: str, text: str) -> None:
        lines = [name, *(f"    {line}" for line in gist(text))]
        with self._path.open("a") as file:
            file.writelines(f"{line[:MAX_LINE_CHARS]}\n" for line in lines)


def gist(text: str) -> list[str]:
    """The lines of a traceback that say where and why: pytest's marks if it has any, else the frames in our code."""
    lines = text.splitlines()
    marked = [line for line in lines if line.startswith((">", "E"))]
    found = marked or list(chain(_frames(lines), [line.strip(" |") for line in lines if line.strip(" |+-")][-1:]))
    room = MAX_LINES - 2
    kept = found if len(found) <= room else [*found[: room - 4], "…", *found[-3:]]
    last = [line for line in lines if re.match(r"\S+\.py:\d+: ", line)][-1:]
    return [*kept, *last]


def _frames(lines: list[str]) -> Iterable[str]:
    """Of a traceback as Python prints it: each place in our code, and the error that ends its part."""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _FRAME.search(line):
            yield line.strip(" |")
            yield following.strip(" |")
        elif re.match(r"[ |]*[A-Za-z_.]+(Error|Exception|Failed)\b", line):
            yield line.strip(" |")
