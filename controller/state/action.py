"""Actions that a ControllerMachine asks of its shell. Pure; the shell performs actions in list order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from rmqha.wire.command import Command
from rmqha.wire.raft_message import Snapshot

Token = Hashable
"""Identifies the sender of a request; chosen by the shell."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that came with `token`."""

    token: Token
    command: Command


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a oneway request to a broker; a failure is not reported, since heartbeats carry the same content."""

    address: str
    command: Command


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a request to a broker, then call `probe_replied(probe_id, …)` exactly once: with None after the time-out."""

    probe_id: int
    address: str
    command: Command
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SendRaft:
    """Send `data` to controller `peer`, which listens at `address`, as the body of a oneway request 52002 with the
    field `address` = `sender_address`. It may get lost."""

    peer: str
    address: str
    sender_address: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SaveConfig:
    """Store these changed keys, then answer the operator with `reply` (None: oneway)."""

    properties: dict[str, str]
    token: Token
    reply: Command | None


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Make the snapshot durable beside the log, which stays in use, then call `snapshot_written`. A later Ready with a
    snapshot of its own waits for that."""

    snapshot: Snapshot


Action = Reply | Notify | Probe | SendRaft | SaveConfig | WriteSnapshot
