"""Counts and durations of a controller's operations, under RocketMQ's names, for /metrics. No trio.

Only a controller with httpPort counts them. As in RocketMQ every answered request counts as a success, whatever the
answer says, and its duration ends with the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from rmqha.model.code import RequestCode
from rmqha.model.offset import RaftIndex
from rmqha.model.series import Histogram
from rmqha.wire.command import Command

LATENCY_BOUNDS_US = (*(float(part * 10**power) for power in range(7) for part in (1, 3, 5)), 1e7)
"""Bounds of RocketMQ's histograms."""
MAX_BEGUN_COUNT = 20_000
"""Requests that are tracked until their answer; more are not counted."""
REQUEST_TYPES = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: "CONTROLLER_ALTER_SYNC_STATE_SET",
    RequestCode.CONTROLLER_ELECT_MASTER: "CONTROLLER_ELECT_MASTER",
    RequestCode.CONTROLLER_REGISTER_BROKER: "CONTROLLER_REGISTER_BROKER",
    RequestCode.CONTROLLER_GET_REPLICA_INFO: "CONTROLLER_GET_REPLICA_INFO",
    RequestCode.CONTROLLER_GET_METADATA_INFO: "CONTROLLER_GET_METADATA_INFO",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: "CONTROLLER_GET_SYNC_STATE_DATA",
    RequestCode.BROKER_HEARTBEAT: "CONTROLLER_BROKER_HEARTBEAT",
    RequestCode.CONTROLLER_UPDATE_CONFIG: "CONTROLLER_UPDATE_CONTROLLER_CONFIG",
    RequestCode.CONTROLLER_GET_CONFIG: "CONTROLLER_GET_CONTROLLER_CONFIG",
    RequestCode.CONTROLLER_CLEAN_BROKER_METADATA: "CONTROLLER_CLEAN_BROKER_DATA",
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: "CONTROLLER_GET_NEXT_BROKER_ID",
    RequestCode.CONTROLLER_APPLY_BROKER_ID: "CONTROLLER_APPLY_BROKER_ID",
}
"""RocketMQ's names of its requests, by code; other requests are not counted."""


class OperationResult(Enum):
    """Outcome of a request or of an entry. TIMEOUT: the outcome is unknown."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"


class EntryObserver(Protocol):
    """Port that observes entries from their proposal to their end."""

    def proposed(self, index: RaftIndex) -> None:
        """Begin the duration of an entry; `ended` follows."""
        ...

    def ended(self, index: RaftIndex, result: OperationResult) -> None: ...

    def refused(self) -> None:
        """Count an entry that the log did not accept."""
        ...


class NoEntryObserver:
    """Observer of a controller without httpPort."""

    def proposed(self, index: RaftIndex) -> None:
        """Ignore it."""

    def ended(self, index: RaftIndex, result: OperationResult) -> None:
        """Ignore it."""

    def refused(self) -> None:
        """Ignore it."""


class OperationCounts:
    """Counts of a controller's operations: `requests` by (type, result), `request_times` by type, `entries` by result.
    Times are microseconds."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.requests: Counter[tuple[str, OperationResult]] = Counter()
        self.request_times: dict[str, Histogram] = {}
        self.entries: Counter[OperationResult] = Counter()
        self.entry_times = Histogram(LATENCY_BOUNDS_US)
        self._begun: dict[int, dict[int, tuple[str, int]]] = {}
        """Type and begin (µs) of requests without an answer, by session and opaque."""
        self._begun_count = 0
        self._entries_begun: dict[RaftIndex, int] = {}

    # --- requests ---------------------------------------------------------------------------------------------------
    def received(self, session_id: int, command: Command) -> None:
        kind = REQUEST_TYPES.get(command.code)  # type: ignore[call-overload]
        if kind is not None and self._begun_count < MAX_BEGUN_COUNT:
            begun = self._begun.setdefault(session_id, {})
            self._begun_count += command.opaque not in begun
            begun[command.opaque] = kind, self._now_us()

    def answered(self, session_id: int, opaque: int) -> None:
        if (found := self._take(session_id, opaque)) is not None:
            kind, began_us = found
            self.requests[kind, OperationResult.SUCCESS] += 1
            times = self.request_times.get(kind)
            if times is None:
                times = self.request_times[kind] = Histogram(LATENCY_BOUNDS_US)
            times.add(self._now_us() - began_us)

    def failed(self, session_id: int, opaque: int) -> None:
        """Count a request that ended with an unexpected exception."""
        if (found := self._take(session_id, opaque)) is not None:
            self.requests[found[0], OperationResult.FAILED] += 1

    def closed(self, session_id: int) -> None:
        """Forget the requests of a closed session."""
        for kind, _ in self._begun.pop(session_id, {}).values():
            self._begun_count -= 1
            self.requests[kind, OperationResult.TIMEOUT] += 1

    def _take(self, session_id: int, opaque: int) -> tuple[str, int] | None:
        begun = self._begun.get(session_id)
        found = None if begun is None else begun.pop(opaque, None)
        if found is not None:
            self._begun_count -= 1
            if not begun:
                del self._begun[session_id]
        return found

    # --- the machine's ------------------------------------------------------------------------------------------------
    def proposed(self, index: RaftIndex) -> None:
        """Begin the duration of an entry. An earlier entry at this index was replaced by another leader's."""
        if index in self._entries_begun:
            self.entries[OperationResult.FAILED] += 1
        self._entries_begun[index] = self._now_us()

    def ended(self, index: RaftIndex, result: OperationResult) -> None:
        began_us = self._entries_begun.pop(index)
        self.entries[result] += 1
        if result is OperationResult.SUCCESS:
            self.entry_times.add(self._now_us() - began_us)

    def refused(self) -> None:
        self.entries[OperationResult.FAILED] += 1
