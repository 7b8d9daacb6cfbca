"""Check of a change of tables before any part of it is made. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.broker.requests.request import AdmittingState, RequestError
from rmqha.model.code import ResponseCode

MAX_WAITING_COUNT = 256
"""Bound on pending changes: one write of a table, or one answer to a slave, with more of them would block the broker
for its duration."""


@dataclass(frozen=True, slots=True)
class ChangeGate:
    """Admission of changes to topics and groups. `is_strict`: metadataSync waits for the replicas of the set.
    `waiting_count` returns the number of pending changes."""

    serving: AdmittingState
    is_strict: bool
    waiting_count: Callable[[], int]

    def admit(self) -> None:
        """Check as `check` does, and the bound too, before a change begins. Raises RequestError."""
        self.check()
        if self.waiting_count() >= MAX_WAITING_COUNT:
            remark = f"{MAX_WAITING_COUNT} changes of topics and groups wait until they are held; ask again"
            raise RequestError(ResponseCode.SYSTEM_BUSY, remark)

    def check(self) -> None:
        """Raises RequestError if this broker is not the master, or too few replicas could take a strict change."""
        if not self.serving.is_serving:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master; ask the master of its group")
        if self.is_strict:
            code, remark = self.serving.admission()
            if code is not ResponseCode.SUCCESS:
                raise RequestError(code, remark)
