"""Three controllers wired in memory: redirects, leases, leadership changes, snapshots."""

from __future__ import annotations

from controller.state.image import encode_image
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.controller.harness import GROUP, Broker, Cluster, Node, group_of
from tests.support.steps import done


def followers(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.nodes.values() if node.up and node is not cluster.leader]


def test_every_controller_names_the_leader() -> None:
    cluster, _ = group_of(3, node_count=3)
    leader = cluster.leader
    for node in cluster.nodes.values():
        answer = cluster.call(RequestCode.CONTROLLER_GET_METADATA_INFO, node=node)
        assert answer.ext == {
            "group": "DefaultControllerGroup",
            "controllerLeaderId": leader.node_id,
            "controllerLeaderAddress": leader.config.self_address,
            "isLeader": str(node is leader).lower(),
            "peers": "n0:127.0.0.1:9878;n1:127.0.0.1:9879;n2:127.0.0.1:9880;",
        }


def test_a_follower_redirects() -> None:
    cluster, brokers = group_of(3, node_count=3)
    for code, ext in (
        (RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP}),
        (RequestCode.BROKER_HEARTBEAT, brokers[0].beat().ext),
    ):
        answer = cluster.call(code, ext, node=followers(cluster)[0])
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert answer.ext == {"controllerLeaderAddress": cluster.leader.config.self_address}


def test_a_oneway_heartbeat_to_a_follower_gets_no_answer() -> None:
    cluster, brokers = group_of(3, node_count=3)
    command = brokers[0].beat()
    command.flag = 2
    token = cluster.send(command, node=followers(cluster)[0])
    cluster.run(100)
    assert token not in cluster.replies


def test_a_new_leader_serves_without_reload_and_evicts_nobody() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    cluster.kill(old)
    cluster.run(3000, until=cluster.has_leader)
    assert cluster.leader is not old
    start = len(cluster.tracer.events)
    answer = cluster.call(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP})
    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "1")
    cluster.run(10_000)
    assert cluster.group().master_id == 1
    assert not [name for name in cluster.tracer.names()[start:] if name.startswith("master_")]
    assert cluster.alter([1, 2]).code == 0


def test_a_master_that_dies_with_the_leader_is_noticed() -> None:
    cluster, brokers = group_of(3, node_count=3)
    cluster.kill(cluster.leader)
    cluster.crash(brokers[0])
    cluster.run(3000, until=cluster.has_leader)
    before_ms = cluster.now_ms
    cluster.run(10_000, until=lambda: cluster.group().master_id not in (None, 1))
    assert cluster.group().master_id == 2
    assert cluster.now_ms - before_ms <= 2100


def test_a_cut_off_leader_stops_answering_before_another_leads() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    cluster.cut = {old.node_id}
    seen_both = False
    while not cluster.has_leader():
        cluster.run(5)
        token = cluster.send(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP}), node=old)
        seen_both |= cluster.has_leader() and cluster.replies[token].code == ResponseCode.SUCCESS
    assert not seen_both
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER


def test_a_change_of_a_cut_off_leader_has_no_effect_and_no_success() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    cluster.cut = {old.node_id}
    body = b'{"syncStateSet":[1],"syncStateSetEpoch":2}'
    ext = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
    token = cluster.send(Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body), node=old)
    cluster.run(5000, until=cluster.has_leader)
    assert cluster.alter([1, 2]).code == 0
    assert token not in cluster.replies, "its fate is unknown as long as the old leader is alone"
    cluster.cut = set()
    cluster.run(1000)
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER, "another entry took its place"
    assert all(node.machine.info.groups[GROUP].sync_state_set == (1, 2) for node in cluster.nodes.values())


def test_a_request_waiting_for_its_group_is_redirected_when_the_leader_resigns() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    cluster.cut = {old.node_id}
    ext = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
    tokens = [
        cluster.send(
            Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, b'{"syncStateSet":[1],"syncStateSetEpoch":2}'),
            node=old,
        )
        for _ in range(2)
    ]
    cluster.run(3000)
    assert tokens[0] not in cluster.replies
    assert cluster.replies[tokens[1]].code == ResponseCode.CONTROLLER_NOT_LEADER


def test_members_hold_the_same_bytes() -> None:
    cluster, brokers = group_of(3, node_count=3)
    cluster.crash(brokers[0])
    cluster.run(1000)
    assert len({encode_image(node.machine.info) for node in cluster.nodes.values()}) == 1


def test_a_restarted_controller_has_its_state_back_from_snapshot_and_log() -> None:
    cluster, _ = group_of(3, snapshot_after_entries=16)
    for _ in range(20):
        assert cluster.alter([1, 2]).code == 0
        assert cluster.alter([1, 2, 3]).code == 0
    cluster.run(1)
    node = cluster.leader
    assert node.snapshot is not None and len(node.entries) < 20
    before = encode_image(node.machine.info)
    node.start()
    cluster.run(1000)
    assert encode_image(node.machine.info) == before


def test_a_controller_that_was_away_for_long_is_restored_from_the_leaders_snapshot() -> None:
    cluster, _ = group_of(3, node_count=3, snapshot_after_entries=16)
    behind = followers(cluster)[0]
    cluster.cut = {behind.node_id}
    for _ in range(30):
        assert cluster.alter([1, 2]).code == 0
        assert cluster.alter([1, 2, 3]).code == 0
    cluster.cut = set()
    cluster.run(3000)
    assert behind.snapshot is not None
    assert encode_image(behind.machine.info) == encode_image(cluster.leader.machine.info)
    assert behind.machine.info.groups[GROUP].sync_state_set_epoch == 62


def test_a_stopping_leader_hands_over() -> None:
    cluster, _ = group_of(3, node_count=3)
    old, before_ms = cluster.leader, cluster.now_ms
    old.machine.stopping(cluster.now_ms)
    old.pump()
    cluster.run(1000, until=lambda: cluster.has_leader() and cluster.leader is not old)
    assert cluster.now_ms - before_ms < 250, "no election time-out is waited for"


def test_what_one_instant_decides_shares_one_entry() -> None:
    cluster = Cluster()
    names = ("broker-a", "broker-b", "broker-c")
    brokers = [Broker(number, total_replicas=1, ha_mode="ap", name=name) for number, name in enumerate(names, 1)]
    for broker in brokers:
        cluster.boot(broker, beat=False)
    cluster.run(10)
    assert [cluster.group(name).master_id for name in names] == [1, 2, 3]
    for broker in brokers:
        broker.probes = "silent"
        cluster.send(broker.beat(), broker.session_id)
    entry_count = len(cluster.leader.entries)
    cluster.run(2100)
    assert [cluster.group(name).master_id for name in names] == [None, None, None]
    assert len(cluster.leader.entries) == entry_count + 1


def test_requests_that_meet_a_hand_over_are_redirected() -> None:
    cluster, _ = group_of(3, node_count=3)
    old = cluster.leader
    body = b'{"syncStateSet":[1],"syncStateSetEpoch":2}'
    alter = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
    elect = {"brokerName": GROUP, "brokerId": "2", "designateElect": "true"}
    tokens = [
        cluster.send(Command(RequestCode.CONTROLLER_ELECT_MASTER, elect)),
        cluster.send(Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, alter, body)),
    ]
    cluster.cut = {node.node_id for node in cluster.nodes.values() if node is not old}  # the hand-over takes a while
    old.machine.stopping(cluster.now_ms)
    old.pump()
    cluster.run(20)
    assert [cluster.replies[token].code for token in tokens] == [ResponseCode.CONTROLLER_NOT_LEADER] * 2


def test_an_election_under_way_when_the_leader_resigns_is_redirected() -> None:
    cluster, brokers = group_of(3, node_count=3)
    old, brokers[1].probes = cluster.leader, "silent"
    elect = {"brokerName": GROUP, "brokerId": "2", "designateElect": "true"}
    token = cluster.send(Command(RequestCode.CONTROLLER_ELECT_MASTER, elect))
    old.machine.stopping(cluster.now_ms)
    old.pump()
    cluster.run(40)
    assert cluster.leader is not old
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER


def test_a_leader_without_a_lease_refuses_heartbeats_but_counts_them() -> None:
    cluster, brokers = group_of(3, node_count=3)
    leader = cluster.leader
    cluster.cut = {node.node_id for node in cluster.nodes.values() if node is not leader}
    cluster.run(350)
    token = cluster.send(brokers[1].beat(), brokers[1].session_id, leader)
    assert cluster.replies[token].code == ResponseCode.CONTROLLER_NOT_LEADER
    replica = loads(done(leader.machine.state(cluster.now_ms)))["groups"][GROUP]["replicas"][1]
    assert replica["silentMs"] == 0
