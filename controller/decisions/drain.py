"""An operator takes a replica out of its group's work, or puts it back (request 52015). Pure.

A drained replica goes on copying, but it is in no set, acknowledges nothing, and leads only if nobody else can. It
leaves the set with the event itself, so a master that knew the old set is fenced; a drained master stays until another
has taken over. What must remain is what a send needs: the other members, alive, must be enough to acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.decisions.refusal import Refusal
from controller.state.event import ReplicaDrained
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId


def drain(
    group: BrokerGroup | None,
    broker_name: str,
    broker_id: int,
    drained: bool,
    is_eligible: Callable[[BrokerId], bool],
) -> ReplicaDrained | Refusal | None:
    """None: the replica is drained, or not, already. `is_eligible`: alive, booted clean, not stopping."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if broker_id not in group.replicas:
        return _refused(f"{broker_name} has no replica {broker_id}")
    chosen = BrokerId(broker_id)
    if (chosen in group.drained_ids) == drained:
        return None
    if drained and chosen in group.electable_ids:
        remaining = [member for member in group.sync_state_set if member != chosen and is_eligible(member)]
        needed = members_needed(group)
        if len(remaining) < needed:
            return _refused(
                f"without replica {chosen} {len(remaining)} live members of the SyncStateSet remain and {broker_name} "
                f"needs {needed}; start or join another replica and wait until it is in the set"
            )
    return ReplicaDrained(group.broker_name, chosen, drained)


def members_needed(group: BrokerGroup) -> int:
    """Members that a set must have for a send to be acknowledged in CP, the larger number of replicas counting while it
    changes; in AP, and of two (ruling 6), one."""
    total_replicas = group.binding_total_replicas
    return total_replicas // 2 + 1 if group.is_cp and total_replicas > 2 else 1


def _refused(remark: str) -> Refusal:
    return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
