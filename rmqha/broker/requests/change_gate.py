"""Refusal of a change of a table before any part of it is made. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rmqha.broker.requests.request import AdmittingState, RequestError
from rmqha.model.code import ResponseCode

MAX_WAITING_COUNT = 256
"""Changes that wait to be held: what one write of a table, and one answer to a slave, has more of than it had before
would stop the broker for as long as it takes."""


@dataclass(frozen=True, slots=True)
class ChangeGate:
    """`is_strict`: metadataSync waits for the replicas of the set. `waiting_count` tells how many changes of topics and
    groups wait until they are held."""

    serving: AdmittingState
    is_strict: bool
    waiting_count: Callable[[], int]

    def admit(self) -> None:
        """Check the same, and raise RequestError too if very many wait: for a change that begins."""
        self.check()
        if self.waiting_count() >= MAX_WAITING_COUNT:
            remark = f"{MAX_WAITING_COUNT} changes of topics and groups wait until they are held; ask again"
            raise RequestError(ResponseCode.SYSTEM_BUSY, remark)

    def check(self) -> None:
        """Raise RequestError if this broker is not the master, or enough replicas could not hold a strict change."""
        if not self.serving.is_serving:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master; ask the master of its group")
        if self.is_strict:
            code, remark = self.serving.admission()
            if code is not ResponseCode.SUCCESS:
                raise RequestError(code, remark)
