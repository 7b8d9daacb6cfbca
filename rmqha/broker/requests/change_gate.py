"""Refusal of a change of a table before any part of it is made. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.broker.requests.request import AdmittingState, RequestError
from rmqha.model.code import ResponseCode


@dataclass(frozen=True, slots=True)
class ChangeGate:
    """`is_strict`: metadataSync waits for the replicas of the set."""

    standing: AdmittingState
    is_strict: bool

    def check(self) -> None:
        """Raise RequestError if this broker is not the master, or enough replicas could not hold a strict change."""
        if not self.standing.is_serving:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master; ask the master of its group")
        if self.is_strict:
            code, remark = self.standing.admission()
            if code is not ResponseCode.SUCCESS:
                raise RequestError(code, remark)
