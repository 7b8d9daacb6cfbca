"""Planted bugs of what is made of a disk that has failed (ruling 29), or hangs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from rmqha.store import store
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.recovery import Recovery
from tests.simulation.processes.hung_writes import HungWrites


def _only_synced(
    log: CommitLog, start: int, end: int, recovery: Recovery, last_stop: LastStop, *, recorded: bool, failed: bool
) -> None:
    log.sync(start, end)


def _at_once(self: HungWrites, work: Callable[[], None]) -> bool:
    work()
    return True


DISK_MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a change of the log holds the event loop": lambda: patch.object(HungWrites, "write", _at_once),
    "what a sync failed on is only synced (ruling 29)": lambda: patch.object(store, "make_durable", _only_synced),
}
