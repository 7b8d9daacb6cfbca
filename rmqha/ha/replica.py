"""One replica of a broker group: the machine that composes role, replication, SyncStateSet and ack rules.

Inputs are methods that take `now_ms` first; outputs are taken by `actions()`. The machine changes the log directly
(it is synchronous, `rmqha.port.ReplicaLog`) and asks the shell for everything else (`rmqha.ha.action`).
"""

from __future__ import annotations

from typing import Any

from rmqha.ha.action import Action, Token
from rmqha.model.code import ResponseCode
from rmqha.model.config import BrokerConfig
from rmqha.model.identity import Role
from rmqha.model.offset import PhyOffset
from rmqha.port import IdentityStore, Prng, ReplicaLog, Tracer
from rmqha.wire.command import Command


class Replica:
    """One per broker. Connection numbers: the shell's accepted ones from 1 up, those of OpenHa below 0."""

    def __init__(
        self, config: BrokerConfig, log: ReplicaLog, identity: IdentityStore, prng: Prng, tracer: Tracer
    ) -> None:
        raise AssertionError("skeleton")

    # --- time -------------------------------------------------------------------------------------------------------
    def start(self, now_ms: int) -> None: ...
    def deadline_ms(self) -> int | None: ...
    def timeout(self, now_ms: int) -> None:
        """Call at or after deadline_ms, and whenever in doubt: it is idempotent."""

    def actions(self) -> list[Action]:
        """Take what has accumulated; call after every input and perform in order."""
        raise AssertionError("skeleton")

    # --- controller -------------------------------------------------------------------------------------------------
    def controller_replied(self, now_ms: int, call_id: int, reply: Command | None) -> None: ...
    def role_notified(self, now_ms: int, command: Command) -> None:
        """Request 1008 arrived."""

    # --- HA connections ---------------------------------------------------------------------------------------------
    def ha_accepted(self, now_ms: int, conn_id: int, peer: str) -> None: ...
    def ha_opened(self, now_ms: int, conn_id: int) -> None: ...
    def ha_received(self, now_ms: int, conn_id: int, data: bytes) -> None: ...
    def ha_sent(self, now_ms: int, conn_id: int) -> None: ...
    def ha_closed(self, now_ms: int, conn_id: int) -> None: ...

    # --- log --------------------------------------------------------------------------------------------------------
    def appended(self, now_ms: int) -> None:
        """The master's send path has appended to the log."""

    def synced(self, now_ms: int) -> None:
        """log.synced_offset has moved."""

    def dispatched(self, now_ms: int) -> None:
        """log.dispatched_offset has moved. The driver calls log.dispatch while confirm_offset is ahead of it."""

    # --- sends ------------------------------------------------------------------------------------------------------
    def admission(self, now_ms: int) -> tuple[ResponseCode, str]:
        """(SUCCESS, "") or the refusal to give before anything is written (rulings 1 and 13)."""
        raise AssertionError("skeleton")

    def wait(self, now_ms: int, end_offset: PhyOffset, token: Token) -> None:
        """The record ending at `end_offset` has been appended; Complete(token, …) follows, perhaps at once."""

    # --- look -------------------------------------------------------------------------------------------------------
    @property
    def role(self) -> Role:
        raise AssertionError("skeleton")

    def state(self, now_ms: int) -> dict[str, Any]:
        """JSON-ready view of everything, for request 52000 and `rmqha status`."""
        raise AssertionError("skeleton")

    def stopping(self, now_ms: int) -> None:
        """SIGTERM: refuse new sends, answer all waiters, tell the controller with the next heartbeat (B5)."""
