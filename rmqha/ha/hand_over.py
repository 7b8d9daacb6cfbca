"""Master's side of a directed switch (ruling 18): refuse sends until the target holds the whole log, then answer. Pure.

    idle ──request 52012──▶ waiting ──the target holds all──▶ answered ──elected, or RESUME_AFTER_MS──▶ idle
                               └──time-out, cancelled, another request, demoted──▶ idle

In every state but idle, sends are refused with SERVICE_NOT_AVAILABLE. Each way back to idle is bounded in time, so a
controller that dies meanwhile stops the sends for at most that time.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.ha.action import HandedOver, Token
from rmqha.model.offset import BrokerId, PhyOffset

RESUME_AFTER_MS = 1000
"""Time (ms) for which a master that has answered waits to be replaced; then it accepts sends again."""
MAX_TIMEOUT_MS = 10_000


@dataclass(slots=True)
class _Waiting:
    target: BrokerId
    begun_ms: int
    until_ms: int
    token: Token
    is_answered: bool = False
    is_urgent: bool = False
    """True once `urgent_at_ms` has passed."""

    @property
    def urgent_at_ms(self) -> int:
        """Time (ms) after which sends without the other members' acknowledgements are not waited for any more: the role
        change answers them, and the target holds their records."""
        return self.begun_ms + (self.until_ms - self.begun_ms) // 2


class HandOver:
    """The hand-over that is under way, at most one; a new request replaces it."""

    def __init__(self) -> None:
        self._waiting: _Waiting | None = None

    @property
    def target(self) -> BrokerId | None:
        """Id of the replica that the mastership goes to; None while idle."""
        return None if self._waiting is None else self._waiting.target

    def begin(self, now_ms: int, target: BrokerId, timeout_ms: int, token: Token) -> list[HandedOver]:
        """Begin a hand-over to `target`; `timeout_ms` is cut to MAX_TIMEOUT_MS."""
        actions = self.end("another hand-over took its place")
        self._waiting = _Waiting(target, now_ms, now_ms + min(timeout_ms, MAX_TIMEOUT_MS), token)
        return actions

    def end(self, why: str) -> list[HandedOver]:
        """Go back to idle; a request that is not answered yet is refused for the reason `why`."""
        waiting, self._waiting = self._waiting, None
        return [] if waiting is None or waiting.is_answered else [HandedOver(waiting.token, why)]

    def advance(
        self, now_ms: int, own_max: PhyOffset, target_ack: PhyOffset | None, waiting_count: int
    ) -> list[HandedOver]:
        """Answer the request if the target holds the whole log, or if the time-out is over. `target_ack`: offset that
        the target has acknowledged in this epoch, None if it is not connected. `waiting_count`: number of sends that
        wait for acknowledgement; a role change would fail them, and their clients would send again."""
        waiting = self._waiting
        if waiting is None:
            return []
        if waiting.is_answered:
            return self.end("") if now_ms >= waiting.until_ms else []
        waiting.is_urgent = now_ms >= waiting.urgent_at_ms
        has_all = target_ack is not None and target_ack >= own_max
        if has_all and (not waiting_count or waiting.is_urgent):
            waiting.is_answered, waiting.until_ms = True, now_ms + RESUME_AFTER_MS
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
        return waiting.until_ms if waiting.is_answered or waiting.is_urgent else waiting.urgent_at_ms
