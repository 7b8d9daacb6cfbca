"""An operator works on a replica, or is done with it (request 52016). Pure.

A replica in maintenance stays what it is, a member of the set that acknowledges; it leads only if nobody else can, and
that it is away is no alarm. Nothing is refused: whoever needs it out of the set drains it.
"""

from __future__ import annotations

from controller.decisions.refusal import Refusal
from controller.state.event import MaintenanceSet
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId


def set_maintenance(
    group: BrokerGroup | None, broker_name: str, broker_id: int, on: bool
) -> MaintenanceSet | Refusal | None:
    """None: it is so already."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no group {broker_name}")
    if broker_id not in group.replicas:
        return Refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{broker_name} has no replica {broker_id}")
    chosen = BrokerId(broker_id)
    if (chosen in group.maintenance_ids) == on:
        return None
    return MaintenanceSet(broker_name, chosen, on)
