"""What the clients and the checkers know of a run: sends with their outcomes, and every byte that was visible."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqha.drill.history import Attempt


@dataclass(slots=True)
class Send:
    """`acked_at_ms` None: no SEND_OK (yet); the message may be stored or not."""

    key: str
    begun_at_ms: int
    acked_at_ms: int | None = None
    offset_id: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    broker: str = ""


@dataclass(slots=True)
class Change:
    """Of a topic, a group or an offset, named by `key`. `value` None: removed. `acked_at_ms` None: no good answer
    (yet); it may have been made or not."""

    key: str
    value: int | None
    begun_at_ms: int = 0
    acked_at_ms: int | None = None
    broker: str = ""


@dataclass
class History:
    sends: list[Send] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    """Every try of every send."""
    changes: list[Change] = field(default_factory=list)

    @property
    def acked(self) -> list[Send]:
        return [send for send in self.sends if send.acked_at_ms is not None]


class InvariantError(AssertionError):
    """A checker's verdict: one sentence that names nodes, offsets and epochs."""
