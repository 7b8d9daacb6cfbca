"""Requests to a controller that only servers of the cluster send. Pure.

With a secret (haSecretFile) and no accounts, they are refused without proof of the secret. Operators' requests, such as
1002 for a designated master, need an account instead.
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


def is_sent_by_replica(command: Command) -> bool:
    """True if the request is sent by a replica about itself."""
    return command.code in REPLICA_CODES or (
        command.code == RequestCode.CONTROLLER_ELECT_MASTER and not flag(command.ext, "designateElect")
    )


def needs_cluster_secret(config: ControllerConfig) -> Callable[[Command], bool]:
    """Predicate of the requests that this controller accepts only from servers with the secret."""
    accepts_unproven_peers = config.accepts_unproven_peers

    def refuses(command: Command) -> bool:
        return command.code == RequestCode.RMQHA_RAFT_MESSAGE or (
            not accepts_unproven_peers and is_sent_by_replica(command)
        )

    return refuses
