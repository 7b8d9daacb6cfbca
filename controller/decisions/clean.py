"""An operator removes replicas or a whole group from the controllers' memory (1011). Pure."""

from __future__ import annotations

from collections.abc import Callable

from controller.decisions.refusal import Refusal
from controller.event import BrokersCleaned
from controller.replicas_info import Group
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId


def clean_brokers(
    group: Group | None,
    broker_name: str,
    ids_text: str,
    clean_living: bool,
    is_alive: Callable[[BrokerId], bool],
    at_ms: int = 0,
) -> BrokersCleaned | Refusal:
    """`ids_text` is "1;2", empty for the whole group. Living replicas are refused unless `clean_living`. `at_ms`: the
    wall clock, for people."""
    if group is None:
        return Refusal(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"there is no group {broker_name}")
    try:
        ids = [int(item) for item in ids_text.split(";") if item.strip()]
    except ValueError:
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"{ids_text!r} is not a list of ids such as 1;2"
        )
    for broker_id in ids:
        if broker_id not in group.replicas:
            return Refusal(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"{broker_name} has no replica {broker_id}"
            )
    chosen = tuple(sorted(BrokerId(broker_id) for broker_id in set(ids))) or tuple(group.replicas)
    living = [broker_id for broker_id in chosen if is_alive(broker_id)]
    if living and not clean_living:
        return Refusal(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"replicas {living} of {broker_name} are alive; stop them or ask to clean living brokers",
        )
    return BrokersCleaned(broker_name, chosen, at_ms)
