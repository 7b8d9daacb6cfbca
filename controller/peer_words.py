"""Requests that only servers of the cluster have a reason to send to a controller. Pure.

Where there is a secret (haSecretFile) and no accounts, they are refused without its proof. What operators ask, request
1002 for a designated master among them, is an account's matter.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.config import ControllerConfig
from controller.state.answers import flag
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

REPLICA_CODES = frozenset(
    {
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
    }
)


def is_replicas(command: Command) -> bool:
    """True if a broker says it of itself."""
    return command.code in REPLICA_CODES or (
        command.code == RequestCode.CONTROLLER_ELECT_MASTER and not flag(command.ext, "designateElect")
    )


def peer_words(config: ControllerConfig) -> Callable[[Command], bool]:
    """Requests that this controller takes of servers with the secret alone."""
    accepts_unproven_peers = config.accepts_unproven_peers

    def refuses(command: Command) -> bool:
        return command.code == RequestCode.RMQHA_RAFT_MESSAGE or (not accepts_unproven_peers and is_replicas(command))

    return refuses
