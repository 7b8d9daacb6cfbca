"""Urgent connections: those between servers of the cluster, which never wait behind clients. Shell.

A connection becomes urgent by its first allowed request with one of URGENT_CODES. `rmqha.host.net.poller` serves urgent
connections first in every turn, for half of the turn at most. docs/internals/adr/0015-no-thread-for-heartbeats.md says
why that is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.net.session import Session

URGENT_CODES: Final = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.RMQHA_HAND_OVER,
        RequestCode.RMQHA_FOLLOW_TABLES,
    }
)
"""Requests of brokers to controllers, of controllers to brokers, and of slaves to their master."""


def prioritize(session: Session, command: Command) -> None:
    """Make the session urgent if `command`, which was allowed, has one of URGENT_CODES."""
    if command.code in URGENT_CODES:
        session.is_urgent = True
