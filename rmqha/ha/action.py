"""Actions that a Replica asks its shell to do. Control plane; the shell performs actions in list order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from rmqha.model.identity import Role
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.command import Command

Token = Hashable
"""Name of a waiting send; the shell chooses it."""


class AckStatus(Enum):
    """Outcome of a send that waited for acknowledgement. The send processor makes a response code of it (ruling 13)."""

    OK = "ok"
    FLUSH_DISK_TIMEOUT = "flush disk timeout"
    FLUSH_SLAVE_TIMEOUT = "flush slave timeout"
    SLAVE_NOT_AVAILABLE = "no slave to wait for"
    """Outcome only of a static group's SYNC_MASTER: the record is written, but too few slaves are close enough to copy
    it in time."""
    SERVICE_NOT_AVAILABLE = "no longer master"


@dataclass(frozen=True, slots=True)
class CallController:
    """Send `command` to the controllers' leader; answer with `Replica.controller_replied(call_id, ...)` exactly once,
    with None after `timeout_ms` or when no controller can be reached."""

    call_id: int
    command: Command
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class OpenHa:
    """Slave: dial the master's HA port; answer with ha_opened or ha_closed."""

    conn_id: int
    address: str


@dataclass(frozen=True, slots=True)
class SendHa:
    """Send `data` to the peer. `may_wait`: it may be dropped when something else is sent on this connection, because
    that contains all that `data` says."""

    conn_id: int
    data: bytes
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class SendLog:
    """Master: send `header`, then `size_bytes` of the log from `phy_offset`; answer with ha_sent when both left."""

    conn_id: int
    header: bytes
    phy_offset: PhyOffset
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CloseHa:
    """Close the connection; no ha_closed is expected for it, one that comes is ignored."""

    conn_id: int
    reason: str
    is_breach: bool = False
    """The peer's bytes broke the protocol, or met a bug in reading them."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Answer the send named `token`: its wait is over."""

    token: Token
    status: AckStatus


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Register with the name servers at once under the new role. MASTER: accept clients. SLAVE: stop accepting sends.
    `master_address` is the master's broker address ("" if unknown)."""

    role: Role
    epoch: Epoch
    master_id: BrokerId | None
    master_address: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Answer the request to hand over (52012) that came with `token`. `refusal` "": the target holds everything below
    `max_offset`, and this master accepts no more sends. Else the reason why not, and this master continues."""

    token: Token
    refusal: str
    max_offset: PhyOffset = field(default=PhyOffset(0))


@dataclass(frozen=True, slots=True)
class ResolveHosts:
    """Look up the addresses that `names` stand for; answer with ha_resolved exactly once."""

    names: tuple[str, ...]


Action = CallController | OpenHa | SendHa | SendLog | CloseHa | Complete | RoleChanged | HandedOver | ResolveHosts
