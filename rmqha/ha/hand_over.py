"""The master's side of a directed switch (ruling 18): refuse messages until the target holds all, then say so. Pure.

    idle ──request 52012──▶ waiting ──the target holds all──▶ told ──elected, or RESUME_AFTER_MS──▶ idle
                               └──time-out, cancelled, another request, demoted──▶ idle

Every state but idle refuses messages with SERVICE_NOT_AVAILABLE. Each way back to idle is bounded in time, so a
controller that dies in between costs at most that.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.ha.action import HandedOver, Token
from rmqha.model.offset import BrokerId, PhyOffset

RESUME_AFTER_MS = 1000
"""Time (ms) that a master which has told its readiness waits to be replaced."""
MAX_TIMEOUT_MS = 10_000


@dataclass(slots=True)
class _Waiting:
    target: BrokerId
    begun_ms: int
    until_ms: int
    token: Token
    told: bool = False
    was_late: bool = False
    """It has been looked at after `impatient_ms`."""

    @property
    def impatient_ms(self) -> int:
        """From here on producers that wait for other members are not waited for: they get their answer from the role
        change, and the target holds what they sent."""
        return self.begun_ms + (self.until_ms - self.begun_ms) // 2


class HandOver:
    """At most one is under way; a new request replaces it."""

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None

    @property
    def target(self) -> BrokerId | None:
        """Id of the replica that the mastership goes to; None while idle."""
        return None if self._waiting is None else self._waiting.target

    def begin(self, now_ms: int, target: BrokerId, timeout_ms: int, token: Token) -> list[HandedOver]:
        """`timeout_ms` is cut to MAX_TIMEOUT_MS."""
        actions = self.end("another hand-over took its place")
        self._waiting = _Waiting(target, now_ms, now_ms + min(timeout_ms, MAX_TIMEOUT_MS), token)
        return actions

    def end(self, why: str) -> list[HandedOver]:
        """Back to idle; whoever still waits for an answer is told why."""
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None or waiting.told else [HandedOver(waiting.token, why)]

    def advance(
        self, now_ms: int, own_max: PhyOffset, target_ack: PhyOffset | None, waiting_count: int
    ) -> list[HandedOver]:
        """`target_ack`: what the target has acknowledged under this epoch, None if it is not connected.
        `waiting_count`: answers that wait for an acknowledgement; the role change would end them as open, and their
        clients would send again."""
        waiting = self._waiting
        if waiting is None:
            return []
        if waiting.told:
            return self.end("") if now_ms >= waiting.until_ms else []
        waiting.was_late = now_ms >= waiting.impatient_ms
        level = target_ack is not None and target_ack >= own_max
        if level and (not waiting_count or waiting.was_late):
            waiting.told, waiting.until_ms = True, now_ms + RESUME_AFTER_MS
            return [HandedOver(waiting.token, "", own_max)]
        if now_ms < waiting.until_ms:
            return []
        lack = "is not connected" if target_ack is None else f"lacks {own_max - target_ack} bytes"
        return self.end(
            f"replica {waiting.target} {lack} after {now_ms - waiting.begun_ms} ms; the master goes on, try again when "
            "it has caught up"
        )

    def deadline_ms(self) -> int | None:
        waiting = self._waiting
        if waiting is None:
            return None
        return waiting.until_ms if waiting.told or waiting.was_late else waiting.impatient_ms
