"""Actions that a ControllerMachine asks of its shell. Pure; the shell performs actions in list order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rmqha.wire.command import Command
from rmqha.wire.raft_message import Snapshot

Token = Hashable
"""Names the asker of a request; the shell chooses it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with `token`."""

    token: Token
    command: Command


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a oneway request to a broker; a failure needs no report, since heartbeats carry the same."""

    address: str
    command: Command


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a broker; answer with `probe_replied(probe_id, …)` exactly once, with None when no answer came in time."""

    probe_id: int
    address: str
    command: Command
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SendRaft:
    """Send `data` to controller `peer`, who listens at `address`, as the body of a oneway request 52002 with the field
    `address` = `sender_address`; it may get lost."""

    peer: str
    address: str
    sender_address: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SaveConfig:
    """Keep these changed keys over a restart, then answer the operator with `reply` (None: oneway)."""

    properties: dict[str, str]
    token: Token
    reply: Command | None


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Make the snapshot durable beside the log, which goes on meanwhile; then call `snapshot_written`. A later Ready
    with a snapshot of its own waits for the end of this."""

    snapshot: Snapshot


Action = Reply | Notify | Probe | SendRaft | SaveConfig | WriteSnapshot
