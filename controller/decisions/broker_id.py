"""Issue of broker ids: look at the next one (1012), then apply for it (1013). Pure.

Two brokers may look at the same id; the register check code decides which one has it and lets that one, and only that
one, repeat a request whose answer was lost. Matches RocketMQ's two-phase application, except that a group unknown to
the controllers accepts any id: the brokers of a group whose controllers lost their disks keep theirs (ruling 8).
"""

from __future__ import annotations

from controller.decisions.refusal import Refusal
from controller.state.event import BrokerIdApplied
from controller.state.replicas_info import FIRST_BROKER_ID, BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId

MAX_BROKER_ID = 2**31 - 1
MAX_NAME_CHARS = 255


def next_broker_id(group: BrokerGroup | None) -> BrokerId:
    """`group` also counts when all its replicas have been cleaned: an id is never issued twice."""
    return FIRST_BROKER_ID if group is None else group.next_broker_id


def apply_broker_id(
    group: BrokerGroup | None, cluster_name: str, broker_name: str, broker_id: int, check_code: str
) -> BrokerIdApplied | Refusal | None:
    """None: the asker has the id already."""
    if not 0 < len(cluster_name) <= MAX_NAME_CHARS or not 0 < len(broker_name) <= MAX_NAME_CHARS:
        return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, "clusterName and brokerName must not be empty or long")
    if not FIRST_BROKER_ID <= broker_id <= MAX_BROKER_ID or not 0 < len(check_code) <= MAX_NAME_CHARS:
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {broker_id} of {broker_name} must be positive and come with a register check code",
        )
    if group is not None and group.replicas and group.cluster_name != cluster_name:
        return Refusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{broker_name} belongs to cluster {group.cluster_name}, not {cluster_name}; choose another brokerName",
        )
    owner = group.replicas.get(BrokerId(broker_id)) if group is not None else None
    if owner is None:
        address = check_code.partition(";")[0]
        return BrokerIdApplied(cluster_name, broker_name, BrokerId(broker_id), address, check_code)
    if owner.check_code == check_code:
        return None
    return Refusal(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID, f"id {broker_id} of {broker_name} is taken; ask for the next one"
    )
