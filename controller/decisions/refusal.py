"""An expected refusal: a value with a response code and a sentence, not an exception. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.code import ResponseCode


@dataclass(frozen=True, slots=True)
class Refusal:
    code: ResponseCode
    remark: str
