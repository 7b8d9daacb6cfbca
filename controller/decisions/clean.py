"""An operator removes replicas or a whole group from the controllers' memory (1011). Pure.

The last replicas that are sure to hold every acknowledged message are not removed while others stay: one that may lack
some would lead next, and nobody would have said what is lost. An unclean election says so and makes another the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.decisions.at_stake import bytes_at_stake
from controller.decisions.elect_master import LogEnd
from controller.decisions.refusal import Refusal
from controller.state.event import BrokersCleaned
from controller.state.replicas_info import BrokerGroup
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId


def clean_brokers(
    group: BrokerGroup | None,
    broker_name: str,
    ids_text: str,
    clean_living: bool,
    is_alive: Callable[[BrokerId], bool],
    end_of: Callable[[BrokerId], LogEnd],
    at_ms: int = 0,
) -> BrokersCleaned | Refusal:
    """`ids_text` is "1;2", empty for the whole group. Living replicas are refused unless `clean_living`. `end_of`: a
    replica's log as last reported. `at_ms`: the wall clock, for people."""
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
    holders = group.electable_ids or group.unclean_ids
    left = [broker_id for broker_id in group.counted_ids if broker_id not in chosen]
    if holders and left and set(holders) <= set(chosen):
        return Refusal(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, _why_kept(group, holders, left, end_of))
    return BrokersCleaned(broker_name, chosen, at_ms)


def _why_kept(
    group: BrokerGroup, holders: Sequence[BrokerId], left: Sequence[BrokerId], end_of: Callable[[BrokerId], LogEnd]
) -> str:
    best = max(left, key=lambda broker_id: (end_of(broker_id).epoch, end_of(broker_id).max_offset))
    ends = [end_of(broker_id) for broker_id in holders]
    known = all(end.epoch >= 0 for end in ends)
    stake = f"{bytes_at_stake(end_of(best), ends)} bytes or more" if known else "an unknown number of bytes"
    kept = ", ".join(map(str, sorted(holders)))
    return (
        f"only replica {kept} of {group.broker_name} is sure to hold every acknowledged message, and replica {best} "
        f"lacks {stake} of it: start replica {kept}, or accept that loss by an unclean election of another one and "
        "clean then"
    )
