from __future__ import annotations

from dataclasses import replace

import pytest

from controller.decisions.membership import ReplicaRegistration, register
from controller.decisions.refusal import Refusal
from controller.state.event import BrokerRegistered
from controller.state.replicas_info import BrokerGroup
from rmqha.model.offset import BrokerId
from tests.controller.values import make_group

SENTENCE = "totalReplicas = {} is too small for haMode=cp: g has {} replicas ({}), "


def outcome(group: BrokerGroup, broker_id: int, total: int, *, dead: tuple[int, ...] = (), **more: object) -> str:
    request = ReplicaRegistration("g", BrokerId(broker_id), f"127.0.0.1:{broker_id}", "", total, "cp")
    result = register(group, replace(request, **more), lambda item: item not in dead)  # type: ignore[arg-type]
    return result.remark if isinstance(result, Refusal) else "taken"


def newcomers(count: int, total: int) -> BrokerGroup:
    """Replicas that have an id and have never registered."""
    group = make_group(count, sync_state_set=(), master_id=None, set_known=False, total_replicas=total)
    for replica in group.replicas.values():
        replica.ha_mode, replica.total_replicas = "", 0
    return group


@pytest.mark.parametrize("replicas", range(1, 6))
@pytest.mark.parametrize("total", range(6))
def test_cp_needs_as_many_declared_replicas_as_live(replicas: int, total: int) -> None:
    told = outcome(newcomers(replicas, 0), replicas, total)
    if not total:
        assert (
            told == "haMode=cp needs totalReplicas; set it to the number of the group's replicas in each of their files"
        )
    elif total < replicas:
        assert told.startswith(SENTENCE.format(total, replicas, ", ".join(map(str, range(1, replicas + 1)))))
        assert told.endswith("set totalReplicas to their number in each of their files")
    else:
        assert told == "taken"


def test_who_else_is_not_asked_for_it() -> None:
    assert outcome(newcomers(3, 0), 3, 1, ha_mode="ap") == "taken"
    assert outcome(newcomers(3, 0), 3, 0, ha_mode="") == "taken"  # Apache's
    assert outcome(newcomers(3, 0), 3, 1, async_learner=True) == "taken"
    # a replica that took the place of a dead one, whose id nobody has cleaned yet
    assert outcome(newcomers(4, 3), 4, 3, dead=(2,)) == "taken"
    # one that an earlier release let in goes on, and so does one that joins ahead of the resize
    assert outcome(make_group(3, ha_mode="cp", total_replicas=1), 2, 1) == "taken"
    joins = make_group(4, ha_mode="cp", total_replicas=3)
    joins.replicas[BrokerId(4)].ha_mode = ""
    assert outcome(joins, 4, 4) == "taken"
    assert outcome(joins, 4, 3).startswith(SENTENCE.format(3, 4, "1, 2, 3, 4"))


def test_a_replica_that_begins_to_promise_cp_is_judged_as_a_new_one() -> None:
    group = make_group(3, ha_mode="ap", total_replicas=1)
    assert outcome(group, 2, 1).startswith(SENTENCE.format(1, 3, "1, 2, 3"))
    assert outcome(group, 2, 3) == "taken"


def test_the_declaration_is_kept() -> None:
    request = ReplicaRegistration("g", BrokerId(1), "127.0.0.1:1", "", 3, "cp")
    events = register(newcomers(1, 3), request, lambda item: True)
    assert events == [BrokerRegistered("g", BrokerId(1), "127.0.0.1:1", "", 3, "cp", False)]
