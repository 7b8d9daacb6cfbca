"""Requests about waiting timer messages: RocketMQ's counts by topic (61), its engines (5001), counts by minute
(52036)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rmqha.broker.requests.request import Channel, Handler, RequestError, Work, require_version
from rmqha.broker.tables.config_table import DataVersion
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.port import Clock
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

VERSION = 1
MINUTE_MS = 60_000
MAX_TOPICS = 1000
"""Topics in an answer to 52036, those with the highest counts."""
MAX_MINUTES = 10_000
FILE_ENGINE, ROCKSDB_ENGINE = "F", "R"


class WaitingCounts(Protocol):
    """Counts of waiting messages; `TimerService` is one."""

    @property
    def waiting_count(self) -> int: ...

    @property
    def unread_count(self) -> int: ...

    def overdue_ms(self) -> int: ...

    def topic_counts(self) -> dict[str, int]: ...

    def counts_by(self, step_ms: int, topic: str | None, counts: dict[int, int]) -> Iterator[None]: ...


class TimerRequests:
    """Processor of the requests about timer messages. `version` returns that of the progress; `may_deliver` is true of
    a serving master; `told` returns the followed master's answer to 61, None without one."""

    def __init__(
        self,
        timers: WaitingCounts,
        clock: Clock,
        version: Callable[[], DataVersion],
        may_deliver: Callable[[], bool],
        told: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._version = version
        self._may_deliver = may_deliver
        self._told = told

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TIMER_METRICS: self._metrics,
            RequestCode.SWITCH_TIMER_ENGINE: self._engine,
            RequestCode.RMQHA_GET_TIMERS: self._waiting,
        }

    def metrics(self) -> dict[str, Any]:
        """Content of config/timermetrics, and of the answer to 61 without a followed master's answer."""
        now_ms = self._clock.wall_ms()
        counts = {name: {"count": count, "timeStamp": now_ms} for name, count in self._timers.topic_counts().items()}
        return {"dataVersion": self._version().to_json(), "timingCount": counts}

    def _metrics(self, channel: Channel, command: Command) -> Command:
        return command.reply(body=lenient_json.dumps(self._told() or self.metrics()))

    def _engine(self, channel: Channel, command: Command) -> Command:
        """Answer success for the engine in use only."""
        wanted = command.ext.get("E_T", "")
        if wanted == FILE_ENGINE:
            return command.reply()
        if wanted != ROCKSDB_ENGINE:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"engine type {wanted[:20]!r} is not F (the files)")
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            "timer messages wait in the log of this broker, which has no engine with RocksDB: stay with F",
        )

    def _waiting(self, channel: Channel, command: Command) -> Work:
        """Count waiting messages; entries that were not read yet (`unread`) are missing."""
        require_version(command, VERSION)
        topic = command.ext.get("topic") or None
        counts: dict[int, int] = {}
        yield from self._timers.counts_by(MINUTE_MS, topic, counts)
        topics = self._timers.topic_counts()
        if topic is not None:
            topics = {topic: topics.get(topic, 0)}
        most = sorted(topics.items(), key=lambda item: (-item[1], item[0]))[:MAX_TOPICS]
        body = {
            "version": VERSION,
            "nowMs": self._clock.wall_ms(),
            "delivers": self._may_deliver(),
            "waiting": self._timers.waiting_count,
            "unread": self._timers.unread_count,
            "overdueMs": self._timers.overdue_ms(),
            "topicCount": len(topics),
            "topics": [list(item) for item in most],
            "minutes": [list(item) for item in sorted(counts.items())[:MAX_MINUTES]],
        }
        return command.reply(body=lenient_json.dumps(body))
