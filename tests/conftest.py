"""What holds for all tests."""

from __future__ import annotations

import gc
import inspect
import os
import signal
from collections.abc import Generator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from rmqha.host.process import raise_file_limit
from tests.support import failures

if TYPE_CHECKING:
    from _typeshed import HasFileno

# a law is not broken by a machine that is busy
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("fresh" if os.environ.get("RMQHA_FRESH") else "same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a script that runs `make test &` passes this on, and what tests start and interrupt would hear nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
WAITING = (
    "spark",
    "chaos/spark",
    "process/commands/test_tutorial.py",
    "process",
    "test_lanes.py",
    "interop/groups/test_timers_swapped.py",
    "interop/proxy",
    "interop/tools/test_mqadmin_same.py",
    "interop/clients/test_consumers.py",
    "interop/tools/test_every_command.py",
    "interop/clients/test_java_client.py",
    "interop/clients/test_pop.py",
    "interop/tools/test_security.py",
    "interop/groups",
    "interop/pair",
)
COMPUTING = ("broker/bounds", "spark/lake", "inspect", "test_tidy.py", "raft", "simulation", "store")
"""Where the longest modules are: those that wait for servers and for Spark, and those that keep a core busy. That of
Spark, which one worker takes, is the longest of all."""

TOGETHER = ("tests/spark/", "tests/interop/pair/")
"""Folders whose modules go to one worker, which starts once what all of them use: Spark, two clusters."""
APART = "tests/spark/lake/"
"""Those that need no Spark."""

SINGLY = ("tests/interop/groups/", "tests/chaos/test_", "tests/chaos/disks/")
"""Where each test starts all that it needs, and takes long."""


class Modules(LoadFileScheduling):  # type: ignore[misc]
    """A module's tests go to one worker, and so do all of a folder that shares what is dear to start."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SINGLY):
            return nodeid
        if nodeid.startswith(TOGETHER) and not nodeid.startswith(APART):
            return next(folder for folder in TOGETHER if nodeid.startswith(folder))
        return str(super()._split_scope(nodeid))


SYNCS = {"fsync": os.fsync, "fdatasync": os.fdatasync}


def _left_to_the_system(file: int | HasFileno) -> None:
    """In place of a sync: no test's files have to outlive a loss of power, and a busy disk takes milliseconds for each.
    Servers in processes of their own sync as ever."""
    os.fstat(file if isinstance(file, int) else file.fileno())


@pytest.fixture
def real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, sync in SYNCS.items():
        monkeypatch.setattr(os, name, sync)


def pytest_configure(config: pytest.Config) -> None:
    for name in SYNCS:
        setattr(os, name, _left_to_the_system)
    raise_file_limit()  # as our servers do: tests run them in this process
    for name in ("no_proxy", "NO_PROXY"):  # what tests start listens on loopback
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))
    os.environ["TERM"] = "xterm"
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)
    _in_turn(config)
    path = os.environ.pop(failures.VARIABLE, None)  # a pytest that a test starts may fail as it should
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(failures.FailureLog(path))


def _in_turn(config: pytest.Config) -> None:
    """Let each worker begin to collect at another folder: a module that nobody has imported yet is rewritten and
    compiled, which is three quarters of the work on a new machine, and only the first to come has to do it."""
    worker = getattr(config, "workerinput", None)
    if worker is not None and [Path(name).resolve() for name in config.args] == [TESTS]:
        parts = sorted({path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")})
        first = len(parts) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args[:] = [str(TESTS / part) for part in (*parts[first:], *parts[:first])]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Fourteen thousand tests stay until the end: no collection of garbage has to look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Modules | None:
    return Modules(config, log) if config.getvalue("dist") == "loadfile" else None


def _runs_by_the_real_clock(item: pytest.Function) -> bool:
    """True if a fixture of the test asks for a clock that the test does not name."""
    clocks = {"autojump_clock", "mock_clock"}.intersection(item.fixturenames)
    return bool(clocks) and not clocks <= inspect.signature(item.function).parameters.keys()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give workers, which take whole modules, the long ones first, one that waits and one that computes in turn."""
    real_time = [item.nodeid for item in items if isinstance(item, pytest.Function) and _runs_by_the_real_clock(item)]
    if real_time:
        raise pytest.UsageError(f"pytest-trio takes a clock only as an argument of the test itself: {real_time}")
    if hasattr(config, "workerinput"):
        modules = dict.fromkeys(sorted({item.path for item in items}))  # in one order, wherever a worker began
        computing = [path for place in COMPUTING for path in modules if path.is_relative_to(TESTS / place)]
        waiting = [path for place in WAITING for path in modules if path.is_relative_to(TESTS / place)]
        waiting = [path for path in waiting if path not in computing]
        long = [path for pair in zip_longest(waiting, computing) for path in pair if path is not None]
        order = {path: place for place, path in enumerate(dict.fromkeys([*long, *modules]))}
        items.sort(key=lambda item: order[item.path])
