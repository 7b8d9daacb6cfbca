"""Planted bugs of service and growth: a group stands still for seconds that no fault explains; what nobody needs is
kept, in memory and on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from controller.elections.heartbeat import BrokerLive, HeartbeatTable
from rmqha.broker.requests.pull import PullProcessor
from rmqha.store.trimmer import Trimmer

_TIMEOUT = PullProcessor.timeout


class _Kept(dict[Any, Any]):
    def pop(self, key: Any, *default: Any) -> Any:
        return self.get(key, *default)


def _every_due_time_is_kept(self: PullProcessor) -> None:
    if not isinstance(self._due, _Kept):
        self._due = _Kept(self._due)
    _TIMEOUT(self)


def _late(self: HeartbeatTable, broker: BrokerLive, now_ms: int) -> bool:
    return self.silent_ms(broker, now_ms) >= 4 * broker.timeout_ms


GROWTH_MUTATIONS: dict[str, Callable[[], Any]] = {
    "who dies is missed after eight seconds": lambda: patch.multiple(
        HeartbeatTable, is_timed_out=_late, session_closed=lambda self, session_id: []
    ),
    "the due times of answered pulls stay": lambda: patch.object(PullProcessor, "timeout", _every_due_time_is_kept),
    "queue files of removed records stay": lambda: patch.object(Trimmer, "trim_derived", lambda self: None),
    "old log files are left on the disk": lambda: patch.object(Trimmer, "schedule_unlink", lambda self, *args: False),
}
