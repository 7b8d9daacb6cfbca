"""Several groups under the same controllers: what touches whom, and each look of the checker of cross-talk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps
from tests.simulation.checkers.clients.crosstalk import Crosstalk
from tests.simulation.history import InvariantError
from tests.simulation.options import seed_options
from tests.simulation.planted.mutations import failure_of, planted
from tests.simulation.run import Run
from tests.simulation.themes.table import THEMES
from tests.simulation.world import World

SPARED, STRUCK = 6, 4
"""A seed whose faults are all the first group's, with name servers, and one whose faults are everybody's."""


def world_of(seed: int, chaos_ms: int) -> World:
    world = World(seed, replace(THEMES["groups"](seed_options(seed)), chaos_ms=chaos_ms))
    report = world.run()
    assert not report.failure, report.failure
    return world


@pytest.fixture(scope="module")
def world() -> World:
    return world_of(SPARED, 3000)


@pytest.fixture
def crosstalk(world: World) -> Crosstalk:
    assert world.crosstalk is not None
    return world.crosstalk


def test_every_run_has_a_group_in_ap_and_one_in_cp_and_hosts_of_their_own() -> None:
    for seed in range(1, 30):
        world = World(seed, THEMES["groups"](seed_options(seed)))
        assert {group.options.cp for group in world.groups} == {False, True}
        hosts = [process.host for group in world.groups for process in (*group.brokers, *group.clients)]
        assert len(hosts) == len(set(hosts))
        assert len({broker.config.broker_name for broker in world.brokers}) == len(world.groups) in (2, 3)


def test_faults_of_one_group_are_not_felt_by_the_others() -> None:
    world = world_of(SPARED, 20_000)
    first, *others = world.groups
    assert len(world.faults.keys) > 10
    assert any(broker.life > 1 for broker in first.brokers)
    for group in others:
        assert group.causes.disturbed_at_ms == 0
        assert [broker.life for broker in group.brokers] == [1] * len(group.brokers)
        assert group.roles.master_epochs == [1]


def test_an_election_for_a_fault_of_another_group_is_seen() -> None:
    """Planted is that who dies in one group is dead in all; the look for that itself is left out."""
    with planted("who dies in one group is dead in all"), patch.object(Crosstalk, "traced", lambda *args: None):
        failure = failure_of(Run(SPARED, "groups"))
    assert failure.startswith("the master of sim2 was called dead and another elected"), failure


def test_who_was_touched_is_told_to_the_groups_that_it_concerns() -> None:
    world = World(STRUCK, THEMES["groups"](seed_options(STRUCK)))
    world.scheduler.run_until(100)

    def concerned(*hosts: str) -> list[str]:
        for group in world.groups:
            group.causes.disturbed_at_ms = 0
        world.faults.disturbed(hosts)
        return [group.name for group in world.groups if group.causes.disturbed_at_ms]

    first, second = world.groups[:2]
    names = [group.name for group in world.groups]
    assert concerned(first.hosts[0]) == [first.name]
    assert concerned(second.hosts[0], "c1") == [second.name], "a link of a replica is its group's"
    assert concerned("c1") == names, "controllers are everybody's"
    world.transport.block(first.hosts[0], "c1")
    assert [group.causes.links_disturbed for group in world.groups[:2]] == [True, False]
    world.transport.block("c1", "c2")
    assert [group.causes.links_disturbed for group in world.groups[:2]] == [True, True]


def test_no_host_of_one_group_dials_one_of_another(world: World, crosstalk: Crosstalk) -> None:
    first, second = world.groups[:2]
    crosstalk.dialed(first.hosts[0], first.hosts[1])
    crosstalk.dialed(first.hosts[0], "c1")
    for host in (first.hosts[0], first.clients[0].host):
        with pytest.raises(InvariantError, match=rf"{host} of sim dials {second.hosts[0]} of sim2"):
            crosstalk.dialed(host, second.hosts[0])


def _set(set_epoch: int, members: list[int]) -> bytes:
    return dumps({"syncStateSet": members, "syncStateSetEpoch": set_epoch})


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (lambda view: Command(0, {"brokerName": "sim2"}), "is told of sim2"),
        (lambda view: Command(0, {**view, "masterEpoch": "77"}), "is master"),
        (lambda view: Command(0, {**view, "masterAddress": "b4:10911"}), "is master"),
        (lambda view: Command(0, view, _set(99, [1, 2])), "is set 99"),
        (lambda view: Command(0, {**view, "totalReplicas": "9"}), "has 9 replicas"),
        (
            lambda view: Command(0, {"brokerName": "sim", "nextBrokerId": "4"}),
            "is offered id 4; sim has had 3 replicas",
        ),
        (lambda view: Command(0, {"newSyncStateSetEpoch": "99"}, _set(99, [1])), "is set 99"),
    ],
)
def test_what_controllers_never_decided_for_a_group_is_not_told_to_it(
    world: World, crosstalk: Crosstalk, told: Callable[[dict[str, str]], Command], complaint: str
) -> None:
    group = world.groups[0]
    (master,) = [broker for broker in group.brokers if broker.replica.is_master]
    view = {
        "brokerName": group.name,
        "masterBrokerId": str(master.broker_id),
        "masterAddress": master.config.address,
        "masterEpoch": str(master.replica.epoch),
    }
    crosstalk.heard(master, Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, view))
    command = told(view)
    assert command.code == ResponseCode.SUCCESS
    with pytest.raises(InvariantError, match=complaint):
        crosstalk.heard(master, command)


def test_nobody_of_a_group_without_a_fault_is_called_dead(crosstalk: Crosstalk) -> None:
    fields = {"group": "sim", "broker_id": 1, "why": "heartbeat time-out"}
    crosstalk.traced("master_dead", fields)
    with pytest.raises(InvariantError, match="replica 1 of sim2 is called dead"):
        crosstalk.traced("broker_dead", {**fields, "group": "sim2"})


def test_no_replica_follows_a_master_of_another_group(
    world: World, crosstalk: Crosstalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.groups[:2]
    (slave, *_) = [broker for broker in first.brokers if not broker.replica.is_master]
    crosstalk.stepped(slave)
    monkeypatch.setattr(slave.replica, "master_address", second.brokers[0].config.address)
    with pytest.raises(InvariantError, match="takes b4:10911 for its master"):
        crosstalk.stepped(slave)


def test_a_name_server_lists_no_host_in_a_group_that_is_not_its_own(
    world: World, crosstalk: Crosstalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (process, _) = world.name_servers
    crosstalk.listed(process)
    monkeypatch.setitem(process.server.routes._groups["sim"].addresses, 9, "b4:10911")
    with pytest.raises(InvariantError, match="n1 lists b4:10911 in sim"):
        crosstalk.listed(process)


def test_no_replica_holds_what_was_sent_to_another_group(
    world: World, crosstalk: Crosstalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.groups[:2]
    crosstalk.verify(first)
    monkeypatch.setattr(first.brokers[0], "store", second.brokers[0].store)
    with pytest.raises(InvariantError, match="b1 of sim holds p1-0, sent by p1"):
        crosstalk.verify(first)


def test_a_group_without_a_fault_has_one_master_and_answers_at_once(
    world: World, crosstalk: Crosstalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = world.groups[1]
    crosstalk.verify(second)
    with monkeypatch.context() as patched:
        patched.setitem(second.roles._master_of, 2, second.hosts[0])
        with pytest.raises(InvariantError, match=r"sim2 had masters of epochs \[1, 2\]"):
            crosstalk.verify(second)
    attempts = second.history.attempts
    monkeypatch.setattr(second.history, "attempts", [*attempts, attempts[-1]])
    with pytest.raises(InvariantError, match=r"messages to sim2 took \d+ tries"):
        crosstalk.verify(second)
