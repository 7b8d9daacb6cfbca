"""totalReplicas of a group changes (ruling 15). Pure.

One change at a time. While it is under way the larger of both numbers is what brokers are told, so the larger majority
is needed for an acknowledgement. A larger number becomes the group's once its master goes by it; a smaller one at once,
since the master goes on with the larger until it hears of it.
"""

from __future__ import annotations

from controller.decisions.refusal import Refusal
from controller.decisions.register import MAX_TOTAL_REPLICAS
from controller.state.event import GroupResizing, GroupSized
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import ResponseCode


def resize(group: BrokerGroup | None, broker_name: str, total_replicas: int) -> GroupResizing | Refusal | None:
    """None: the group has that number already."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if not 1 <= total_replicas <= MAX_TOTAL_REPLICAS:
        return _refused(f"totalReplicas = {total_replicas} must lie between 1 and {MAX_TOTAL_REPLICAS}")
    if group.next_total_replicas == total_replicas or (
        not group.next_total_replicas and group.total_replicas == total_replicas
    ):
        return None
    if group.next_total_replicas:
        return _refused(
            f"totalReplicas of {broker_name} is changing to {group.next_total_replicas} and its master does not go by "
            "it yet; one change at a time"
        )
    count = len(group.counted_ids)
    if total_replicas < count:
        return _refused(f"{broker_name} has {count} replicas; stop and clean {count - total_replicas} of them first")
    if not group.set_known and total_replicas < group.total_replicas:
        return _refused(
            f"{group.total_replicas} replicas of {broker_name} must report before its first election, since nobody "
            f"knows which of them has most; with {total_replicas} one would lead unasked: start them, or elect with "
            "unclean, which says the bytes at stake"
        )
    return GroupResizing(broker_name, total_replicas)


def finished(group: BrokerGroup, master_goes_by: int | None) -> GroupSized | None:
    """The event that ends a change. `master_goes_by`: what the live master says, 0 if it is Apache's, None if there is
    none: the next master adopts the group's number before it leads."""
    if not group.next_total_replicas:
        return None
    if master_goes_by and master_goes_by < group.binding_total_replicas:
        return None
    return GroupSized(group.broker_name, group.next_total_replicas)


def _refused(remark: str) -> Refusal:
    return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
