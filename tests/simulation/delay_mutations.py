"""Planted bugs of delayed messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from rmqha.broker.tables.delay_offsets import DelayOffsetTable

_get, _add = DelayOffsetTable.get, DelayOffsetTable._add


def _end_if_unknown(self: DelayOffsetTable, level: int) -> int:
    return _get(self, level) or 1 << 40


def _add_for_any_log(self: DelayOffsetTable, state: Any) -> None:
    _add(self, state._replace(log_end=0))


DELAY_MUTATIONS: dict[str, Callable[[], Any]] = {
    "a master that knows no delay offset begins behind what waits": lambda: patch.object(
        DelayOffsetTable, "get", _end_if_unknown
    ),
    "delay offsets count without the copies": lambda: patch.object(DelayOffsetTable, "_add", _add_for_any_log),
}
