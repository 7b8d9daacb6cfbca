"""Requests that are malformed, concurrent, or about the controller itself."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.quorum.quorum_requests import QUORUM_CODES
from controller.requests import LEADER_CODES
from controller.state.answers import parse_names
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.body_bound import BOUNDS, DEFAULT_BOUND
from rmqha.wire.command import Command
from tests.controller.harness import CLUSTER, GROUP, Broker, Cluster, group_of

INVALID = ResponseCode.CONTROLLER_INVALID_REQUEST


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (1001, {}, b""),
        (1001, {"brokerName": GROUP, "masterBrokerId": "x", "masterEpoch": "1"}, b""),
        (1001, {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}, b"no json"),
        (1001, {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}, b'{"syncStateSet":[]}'),
        (
            1001,
            {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"},
            b'{"syncStateSet":["1"],"syncStateSetEpoch":1}',
        ),
        (1002, {}, b""),
        (1002, {"brokerName": GROUP, "brokerId": "9" * 30}, b""),
        (1003, {"brokerName": GROUP}, b""),
        (1003, {"brokerName": GROUP, "brokerId": "1", "brokerAddress": "nowhere"}, b""),
        (1004, {}, b""),
        (1006, {}, b'{"a":1}'),
        (1006, {}, b"["),
        (1011, {}, b""),
        (1012, {"brokerName": GROUP}, b""),
        (1013, {"brokerName": GROUP, "clusterName": CLUSTER, "appliedBrokerId": "x", "registerCheckCode": "x"}, b""),
        (904, {}, b""),
        (904, {"epoch": "1", "maxOffset": "-5", "confirmOffset": "0", "brokerName": GROUP, "brokerId": "1"}, b""),
        (904, {"epoch": "99999999999", "maxOffset": "5", "confirmOffset": "0"}, b""),
        (904, {"epoch": "x", "maxOffset": "5", "confirmOffset": "0"}, b""),
    ],
)
def test_nonsense_is_refused_in_a_sentence(code: int, ext: dict[str, str], body: bytes) -> None:
    cluster, _ = group_of(2)
    before = deepcopy(cluster.group())
    token = cluster.send(Command(code, ext, body))
    cluster.run(200)
    assert cluster.replies[token].code == INVALID
    assert cluster.replies[token].remark
    assert cluster.group() == before


FIELDS = st.sampled_from(
    [
        "brokerName", "brokerId", "masterBrokerId", "masterEpoch", "brokerAddress", "clusterName", "epoch", "maxOffset",
        "confirmOffset", "appliedBrokerId", "registerCheckCode", "designateElect", "brokerControllerIdsToClean",
    ]
)  # fmt: skip
VALUES = st.sampled_from(
    [GROUP, "1", "2", "-1", "0", "true", "", "x", "127.0.0.1:5", CLUSTER, "9999999999999999999999"]
)


@settings(max_examples=150)
@given(
    st.lists(
        st.builds(
            Command,
            st.sampled_from([904, *range(1001, 1014)]),
            st.dictionaries(FIELDS, VALUES),
            st.sampled_from([b"", b"[]", b'{"syncStateSet":[1],"syncStateSetEpoch":2}', b"\xff", b'["broker-a"]']),
        ),
        max_size=6,
    )
)
def test_every_request_is_answered_once_whatever_it_holds(commands: list[Command]) -> None:
    cluster, _ = group_of(2)
    tokens = [cluster.send(command) for command in commands]
    cluster.run(1000)
    assert [token for token in tokens if token not in cluster.replies] == []


def test_an_unknown_request_is_not_supported() -> None:
    answer = Cluster().call(RequestCode.PULL_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_heartbeat_of_a_stranger_is_asked_to_register() -> None:
    answer = Cluster().call(RequestCode.BROKER_HEARTBEAT, Broker(4).beat().ext)
    assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_a_heartbeat_is_answered_with_master_and_set() -> None:
    _, brokers = group_of(2)
    answer = brokers[1].last_answer
    assert answer is not None
    assert answer.ext == {
        "masterBrokerId": "1",
        "masterAddress": brokers[0].address,
        "masterEpoch": "1",
        "syncStateSetEpoch": "2",
        "masterHaAddress": "127.0.0.1:20001",
        "registered": '{"1":["127.0.0.1:20001","127.0.0.1:20001"],"2":["127.0.0.1:20002","127.0.0.1:20002"]}',
        "totalReplicas": "2",
    }
    assert bytes(answer.body) == b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}'


def test_a_heartbeat_says_that_there_is_no_master() -> None:
    cluster = Cluster()
    broker = Broker(1, total_replicas=3, ha_mode="cp")
    cluster.boot(broker)
    cluster.run(600)
    assert broker.last_answer is not None
    assert (broker.last_answer.ext, bytes(broker.last_answer.body)) == ({"hasMaster": "false"}, b"")


def test_of_two_alters_under_one_set_epoch_the_second_is_fenced() -> None:
    """Both were sent before either was applied: deciding on stale state would confirm both."""
    cluster, _ = group_of(3)
    node, ext = cluster.leader, {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
    node.persisting = False
    tokens = [
        cluster.send(
            Command(
                RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                ext,
                json.dumps({"syncStateSet": members, "syncStateSetEpoch": 2}).encode(),
            )
        )
        for members in ([1, 2], [1, 3])
    ]
    assert not any(token in cluster.replies for token in tokens), "no answer before it is durable"
    node.persisting = True
    node.pump()
    assert [cluster.replies[token].code for token in tokens] == [0, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH]
    assert cluster.group().sync_state_set == (1, 2)


def test_too_many_waiting_requests_are_answered_busy() -> None:
    cluster, _ = group_of(3)
    node = cluster.leader
    node.persisting = False
    body = b'{"syncStateSet":[1],"syncStateSetEpoch":2}'
    ext = {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "1"}
    tokens = [cluster.send(Command(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)) for _ in range(1002)]
    assert [token for token in tokens if token in cluster.replies] == tokens[-1:]
    assert cluster.replies[tokens[-1]].code == ResponseCode.SYSTEM_BUSY


def test_registration_twice_writes_nothing_new() -> None:
    cluster, brokers = group_of(2)
    count = len(cluster.leader.entries)
    answer = cluster.register(brokers[1])
    assert (answer.code, answer.ext["masterBrokerId"], answer.ext["totalReplicas"]) == (0, "1", "2")
    assert len(cluster.leader.entries) == count


def test_a_new_address_is_remembered() -> None:
    cluster, brokers = group_of(2)
    ext = {
        "clusterName": CLUSTER,
        "brokerName": GROUP,
        "brokerId": "1",
        "brokerAddress": "127.0.0.1:777",
        "totalReplicas": "2",
        "haMode": "ap",
        "haAddress": brokers[0].address,
    }
    answer = cluster.call(RequestCode.CONTROLLER_REGISTER_BROKER, ext, session_id=brokers[0].session_id)
    assert answer.ext["masterAddress"] == "127.0.0.1:777"


def test_clean_removes_and_forgets() -> None:
    cluster, brokers = group_of(3)
    ids = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerControllerIdsToClean": "3"}
    refused = cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids)
    assert refused.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    cluster.crash(brokers[2])
    cluster.run(100)
    assert cluster.call(RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, ids).code == 0
    assert (sorted(cluster.group().replicas), cluster.group().sync_state_set) == ([1, 2], (1, 2))
    next_id = cluster.call(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": CLUSTER, "brokerName": GROUP})
    assert next_id.ext["nextBrokerId"] == "4"


def test_a_group_that_nobody_knows() -> None:
    cluster = Cluster()
    answer = cluster.call(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "x"})
    assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    answer = cluster.call(RequestCode.CONTROLLER_ELECT_MASTER, {"brokerName": "x", "brokerId": "1"})
    assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    answer = cluster.call(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=["x"])
    assert bytes(answer.body) == b'{"replicasInfoTable":{}}'


def test_config_live_keys_apply_and_are_saved_others_need_a_restart() -> None:
    cluster = Cluster()
    node = cluster.leader

    def update(text: str) -> Command:
        token = cluster.send(Command(RequestCode.CONTROLLER_UPDATE_CONFIG, {}, text.encode()))
        return cluster.replies[token]

    assert update("enableElectUncleanMaster=true\nscanInactiveMasterInterval=700\n").code == 0
    assert node.machine.config.enable_elect_unclean_master
    assert node.machine.config.scan_not_active_broker_interval == 700
    assert cluster.saved == [{"enableElectUncleanMaster": "true", "scanNotActiveBrokerInterval": "700"}]
    for text, expected in (
        ("controllerStorePath=/x\nenableElectUncleanMaster=false\n", "restart needed"),
        ("enableElectUncleanMastr=true\n", "nearest known key is enableElectUncleanMaster"),
        ("scanNotActiveBrokerInterval=1\n", "must lie between"),
        ("nonsense\n", "expected key=value"),
    ):
        answer = update(text)
        assert answer.code == INVALID and expected in (answer.remark or "")
    assert node.machine.config.enable_elect_unclean_master, "a refused request changes nothing"
    text = str(cluster.call(RequestCode.CONTROLLER_GET_CONFIG).body, "utf-8")
    assert "enableElectUncleanMaster=true\n" in text and "controllerDLegerSelfId=n0\n" in text


def test_state_shows_groups_replicas_and_elections() -> None:
    cluster, brokers = group_of(3, ha_mode="cp")
    brokers[1].max_offset = 400
    cluster.run(600)
    cluster.crash(brokers[0])
    cluster.run(100)
    state = json.loads(bytes(cluster.call(RequestCode.RMQHA_GET_CONTROLLER_STATE).body))
    group = state["groups"][GROUP]
    assert (state["version"], state["leading"], state["raft"]["role"]) == (1, True, "LEADER")
    assert {key: group[key] for key in ("masterBrokerId", "masterEpoch", "syncStateSet", "eligible", "haMode")} == {
        "masterBrokerId": 3,
        "masterEpoch": 2,
        "syncStateSet": [3],
        "eligible": [2],
        "haMode": "cp",
    }
    assert group["elections"] == [
        {
            "masterEpoch": 1,
            "brokerId": 1,
            "cause": "FIRST_ELECTION",
            "atMs": 1001,
            "reason": "there was no master; longest log, 1 bytes more than broker-a-2",
        },
        {
            "masterEpoch": 2,
            "brokerId": 3,
            "cause": "MASTER_DEAD",
            "atMs": 2502,
            "reason": "master broker-a-1 is dead: probe failed; longest log, 600 bytes more than broker-a-2",
        },
    ]
    replica = group["replicas"][1]
    assert (replica["alive"], replica["maxOffset"], replica["lagBytes"], replica["totalReplicas"]) == (
        True,
        400,
        600,
        3,
    )
    assert group["replicas"][0]["alive"] is False


@pytest.mark.parametrize("code", sorted(LEADER_CODES | QUORUM_CODES | {1005, 1009, 1010, 52003}))
def test_a_body_beyond_the_bound_is_refused_unread(code: int) -> None:
    """4 MiB of it took the leader's loop for seconds, heartbeats and Raft with it."""
    cluster, _ = group_of(1)
    bound = BOUNDS.get(code, DEFAULT_BOUND)
    for body in (b" " * (bound.size_bytes + 1), b"[" * (bound.value_count + 1)):
        token = cluster.send(Command(code, {}, body))
        cluster.run(50)
        reply = cluster.replies[token]
        assert reply.code == INVALID and reply.remark is not None
        assert f"the body of request {int(code)} has" in reply.remark


def test_a_group_that_is_named_often_is_looked_up_once() -> None:
    assert parse_names(json.dumps(["a", "b"] * 1000).encode()) == ["a", "b"]
