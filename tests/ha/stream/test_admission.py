"""Whose acks count: replicas that the controllers have registered, at their address, one connection each."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.ha.action import AckStatus
from rmqha.ha.stream.admission import MAX_WAITING_COUNT, WAIT_MS
from rmqha.ha.stream.registered import encode_registered, parse_registered, parse_sync_state_data, same_host
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.command import Command
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from tests.ha.group import Group, started

FORGED = 66


def knock(group: Group, claimed: int, peer: str, claim: HaClaim | None = None, conn_id: int = FORGED) -> None:
    master = group[1].replica
    master.ha_accepted(group.now_ms, conn_id, peer, claim)
    master.ha_received(group.now_ms, conn_id, SlaveHandshake(BrokerId(claimed)).encode())
    group.settle()


def ack(group: Group, offset: int, conn_id: int = FORGED) -> None:
    group[1].replica.ha_received(group.now_ms, conn_id, SlaveAck(PhyOffset(offset)).encode())
    group.settle()


def elsewhere(group: Group) -> None:
    """The replicas of `group` are registered on three machines, and each comes from its own."""
    group.controller.addresses = {number: f"10.0.0.{number}:10911" for number in (1, 2, 3)}


def refusals(group: Group) -> list[str]:
    return [str(fields["reason"]) for name, fields in group[1].trace.events if name == "ha_refused"]


def slaves(group: Group) -> list[tuple[int, str]]:
    return [(item["brokerId"], item["peer"]) for item in group[1].replica.state(group.now_ms).to_json()["slaves"]]


def spread(count: int = 3, **options: Any) -> Group:
    """A group on machines of its own, in which replicas 2 and 3 are not connected."""
    group = started(count, **options)
    elsewhere(group)
    group.kill(2)
    group.kill(3)
    group.run(600)
    return group


def test_an_ack_forged_elsewhere_commits_nothing_in_cp() -> None:
    """Seen: 20 of 20 messages were acknowledged that a peer with an invented id had never kept."""
    group = spread()
    group.run(600)
    for claimed, conn_id in ((2, 66), (3, 67)):
        knock(group, claimed, "10.9.9.9:4711", conn_id=conn_id)
    node = group[1]
    node.log.data += b"x" * 100
    node.replica.wait(group.now_ms, PhyOffset(node.log.max_phy_offset), "lost")
    node.replica.appended(group.now_ms)
    for conn_id in (66, 67):
        ack(group, 0, conn_id)
        ack(group, 100, conn_id)
    group.run(1000)
    assert node.done.get("lost") is not AckStatus.OK
    assert node.log.confirm == 0
    assert refusals(group) and "registered at 10.0.0.2:10911, this comes from 10.9.9.9" in refusals(group)[0]
    assert slaves(group) == []
    assert node.replica.state(group.now_ms).to_json()["door"]["refusedCount"] == 2


def test_an_id_that_nobody_registered_is_refused() -> None:
    group = started()
    knock(group, 9, "127.0.0.1:4711")
    group.run(300)
    assert refusals(group) == ["the controllers know no replica 9 of this group"]
    assert 9 not in dict(group[1].replica.slave_acks())


def test_a_forged_connection_does_not_displace_the_true_one() -> None:
    group = spread()
    knock(group, 2, "10.0.0.2:1", conn_id=70)
    knock(group, 2, "10.9.9.9:1", conn_id=71)
    group.run(300)
    assert slaves(group) == [(2, "10.0.0.2:1")]
    assert "this comes from 10.9.9.9" in refusals(group)[-1]


def test_the_newest_connection_of_a_registered_replica_replaces_the_older() -> None:
    group = spread()
    knock(group, 2, "10.0.0.2:1", conn_id=70)
    knock(group, 2, "10.0.0.2:2", conn_id=71)
    assert slaves(group) == [(2, "10.0.0.2:2")]


@pytest.mark.parametrize("tells", [True, False])
def test_a_replica_that_has_just_registered_waits_for_one_answer(tells: bool) -> None:
    """Apache's controllers tell nothing with their answers: they are asked (1006)."""
    group = started()
    group.controller.tells_registered = tells
    group.controller.addresses[4] = "10.0.0.4:10911"
    group.controller.seen.clear()
    knock(group, 4, "10.0.0.4:4711")
    assert (4, "10.0.0.4:4711") in slaves(group)
    asked = [item for item in group.controller.seen if item.code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA]
    assert len(asked) == 1


def test_who_knocks_often_does_not_make_the_master_ask_often() -> None:
    group = started()
    group.controller.seen.clear()
    for number in range(50):
        knock(group, 9, "127.0.0.1:4711", conn_id=100 + number)
        group.run(10)
    asked = [item for item in group.controller.seen if item.code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA]
    assert len(asked) <= 4
    assert group[1].replica.state(group.now_ms).to_json()["door"]["refusedCount"] >= 30
    assert len(refusals(group)) <= 2, "one trace line tells as much as fifty"


def test_while_no_controller_answers_known_replicas_come_back_and_strangers_wait_in_vain() -> None:
    group = started()
    group.controller.away = True
    for conn_id in list(group[2].links):
        group.close(group[2], conn_id)
        group[2].replica.ha_closed(group.now_ms, conn_id)
    group.run(1500)
    assert 2 in dict(group[1].replica.slave_acks())
    knock(group, 9, "127.0.0.1:4711")
    group.run(WAIT_MS + 100)
    assert refusals(group) == [f"the controllers did not say who it is within {WAIT_MS} ms"]


def test_the_oldest_that_says_nothing_goes_when_too_many_wait() -> None:
    group = started()
    for number in range(MAX_WAITING_COUNT + 1):
        group[1].replica.ha_accepted(group.now_ms, 200 + number, "127.0.0.1:1")
    assert "the oldest goes" in refusals(group)[0]
    knock(group, 2, "127.0.0.1:2", conn_id=300)
    assert (2, "127.0.0.1:2") in slaves(group)


def test_a_replica_that_was_removed_or_moved_is_believed_no_longer() -> None:
    group = started()
    assert len(slaves(group)) == 2
    del group.controller.addresses[3]
    group.controller.addresses[2] = "10.0.0.2:10911"
    group.run(600)
    assert slaves(group) == []


def test_a_registered_name_is_looked_up() -> None:
    """Kubernetes: replicas register under the names of their pods."""
    group = started()
    group.controller.addresses[4] = "broker-3.brokers.svc:10911"
    group.controller.names["broker-3.brokers.svc"] = ("10.1.0.7",)
    knock(group, 4, "10.1.0.7:4711")
    assert (4, "10.1.0.7:4711") in slaves(group)
    knock(group, 4, "10.1.0.8:4711", conn_id=67)
    group.run(300)
    assert (4, "10.1.0.7:4711") in slaves(group)
    assert "this comes from 10.1.0.8" in refusals(group)[0]


def test_who_has_proved_its_address_may_come_from_anywhere() -> None:
    group = spread()
    knock(group, 2, "192.168.7.7:1", HaClaim(BrokerId(2), "10.0.0.2:10911"))
    assert slaves(group) == [(2, "192.168.7.7:1")]
    knock(group, 3, "10.0.0.3:1", HaClaim(BrokerId(2), "10.0.0.2:10911"), conn_id=67)
    group.run(300)
    assert refusals(group) == ["it proved to be replica 2 and shook hands as 3"]
    knock(group, 3, "10.0.0.3:1", HaClaim(BrokerId(3), "10.0.0.99:10911"), conn_id=68)
    group.run(3000)
    assert slaves(group) == [(2, "192.168.7.7:1")], "a copy of a replica's disk has its id and another address"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("127.0.0.1", "127.0.0.2", True),
        ("localhost", "::1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:DB8::1", "2001:db8:0::1", True),
        ("Broker-1", "broker-1", True),
        ("broker-1", "10.0.0.1", False),
    ],
)
def test_hosts_are_compared_by_what_they_mean(one: str, other: str, same: bool) -> None:
    assert same_host(one, other) is same


def test_the_table_of_replicas_is_read_as_both_kinds_of_controllers_tell_it() -> None:
    table = {BrokerId(1): ("10.0.0.1:1", "10.1.0.1:2"), BrokerId(2): ("b;=,:3",)}
    assert parse_registered(encode_registered(table)) == table
    body = (
        b'{"replicasInfoTable":{"a":{"inSyncReplicas":[{"brokerId":1,"brokerAddress":"10.0.0.1:1"}],'
        b'"notInSyncReplicas":[{"brokerId":2,"brokerAddress":"10.0.0.2:1","haAddress":"10.1.0.2:2","alive":false}]}}}'
    )
    found = parse_sync_state_data(Command(0, {}, body), "a")
    assert found == {1: ("10.0.0.1:1",), 2: ("10.0.0.2:1", "10.1.0.2:2")}
    assert parse_sync_state_data(Command(0, {}, body), "other") == {}
    for wrong in ("[]", '{"1":"a"}', '{"x":[]}', '{"1":[2]}', "{"):
        with pytest.raises(RemoteProtocolError):
            parse_registered(wrong)
