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

    @property
    def phy_offset(self) -> int:
        """Place in the log that the offset message id of its acknowledgement names."""
        return int(self.offset_id[-16:], 16)


@dataclass(slots=True)
class Proposal:
    """Of a topic, a group or an offset, named by `key`. `value` None: removed. `acked_at_ms` None: no good answer
    (yet); it may have been made or not."""

    key: str
    value: int | None
    is_reset: bool = False
    """An operator's order to a group's members."""
    begun_at_ms: int = 0
    acked_at_ms: int | None = None
    broker: str = ""


@dataclass(slots=True)
class Transaction:
    """A transactional message and what its producers know of it, as in a database that all of a group share."""

    key: str
    queue_id: int
    body: bytes
    half: Send
    plan: int
    """What the application's part will come to, as commitOrRollback says it; 0: nobody ever decides."""
    is_last: bool = False
    """Begun after all faults, and left to a master's question."""
    decision: int | None = None
    """None while the application's part is under way."""
    doubts: int = 0
    """Questions that are not answered though it is decided."""
    forgets: bool = False
    """Once a master has confirmed the end nobody knows of the transaction any more."""
    commit_count: int = 0
    rollback_count: int = 0
    """Requests 37 that said so, answers to questions included."""
    ended_at_ms: int | None = None
    """When an end was answered SUCCESS."""


@dataclass(slots=True)
class TakenBack:
    """Of a timer message, by the second in which its slot lies. `is_acked`: a master has answered SUCCESS."""

    key: str
    slot_ms: int
    is_acked: bool = False


@dataclass
class History:
    sends: list[Send] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    """Every try of every send."""
    taken: set[str] = field(default_factory=set)
    """Keys of messages that a master has taken, for which nobody waits: a kill may lose them."""
    taken_back: list[TakenBack] = field(default_factory=list)
    changes: list[Proposal] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """By key, in the order in which they were begun."""

    @property
    def acked(self) -> list[Send]:
        return [send for send in self.sends if send.acked_at_ms is not None]


class InvariantError(AssertionError):
    """A checker's verdict: one sentence that names nodes, offsets and epochs."""
