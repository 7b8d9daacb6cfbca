"""Planted bugs of what a start makes of a disk that has failed (ruling 29)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from rmqha.store import store
from rmqha.store.log.commit_log import CommitLog
from rmqha.store.meta.boot_file import LastStop
from rmqha.store.recovery import Recovery


def _only_synced(
    log: CommitLog, start: int, end: int, recovery: Recovery, last_stop: LastStop, *, recorded: bool, failed: bool
) -> None:
    log.sync(start, end)


DISK_MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "what a sync failed on is only synced (ruling 29)": lambda: patch.object(store, "make_durable", _only_synced),
}
