"""The replica that a group prefers as master, and the time to give the role back to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.decisions.elect_master import LogEnd, Traits
from controller.state.replicas_info import BrokerGroup
from rmqha.model.offset import BrokerId

LEVEL_BYTES = 8 * 1024 * 1024
"""Bytes that a replica which is caught up may lack of the master's log, as last reported: a hand-over waits for the
rest."""


def preferred_master(group: BrokerGroup, traits: Mapping[BrokerId, Traits]) -> BrokerId | None:
    """The lowest brokerElectionPriority, then the lowest id, of the replicas that may lead and are not withheld. None
    while one of them has not reported its own."""
    ids = [item for item in group.counted_ids if item not in group.withheld_ids]
    if not ids or any(item not in traits for item in ids):
        return None
    return min(ids, key=lambda item: (traits[item].priority, item))


def is_calm(
    group: BrokerGroup, target: BrokerId, ends: Mapping[BrokerId, LogEnd], is_healthy: Callable[[BrokerId], bool]
) -> bool:
    """No trouble that a switch could make worse: every replica that counts is well and in the set, totalReplicas is not
    changing, and `target` has caught up. `ends`: log ends as reported last."""
    members = [item for item in group.counted_ids if item not in group.withheld_ids]
    if group.next_total_replicas or group.master_id is None or target not in ends or group.master_id not in ends:
        return False
    if not all(item in group.sync_state_set and is_healthy(item) for item in members):
        return False
    return ends[group.master_id].max_offset - ends[target].max_offset <= LEVEL_BYTES
