"""A10 and A11, sentence by sentence: when a send is answered, and with what, by each key. Bytes and ms."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.ha.action import AckStatus, CloseHa, SendHa, SendLog
from rmqha.ha.confirm_offset import acked_offset, needed_count
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import ConfigError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from tests.ha.group import Group, started

SYNC: dict[str, Any] = {"ha_mode": "", "broker_role": "SYNC_MASTER"}
TWO_OF_THREE: dict[str, Any] = {**SYNC, "in_sync_replicas": 2}
ALL_ACK: dict[str, Any] = {**SYNC, "all_ack_in_sync_state_set": True}
AUTO: dict[str, Any] = {**SYNC, "in_sync_replicas": 3, "min_in_sync_replicas": 2, "enable_auto_in_sync_replicas": True}


def silence(group: Group, *numbers: int) -> None:
    """These slaves still get bytes, but the master hears nothing of them."""
    group.cut |= {(number, 1) for number in numbers}


def answered(group: Group, token: str) -> AckStatus | None:
    group.settle()
    return group[1].done.get(token)


def level(group: Group) -> int:
    needed: int = group[1].replica.state(group.now_ms).to_json()["ackRule"]["needed"]
    return needed


# --- roles and numbers ------------------------------------------------------------------------------------------------
def test_async_master_answers_after_its_own_append() -> None:
    group = started(ha_mode="", broker_role="ASYNC_MASTER")
    silence(group, 2, 3)
    assert answered(group, group.send(1)) is AckStatus.OK


@pytest.mark.parametrize("role", ["SYNC_MASTER", "SLAVE"])
def test_a_sync_master_and_a_promoted_slave_wait_for_in_sync_replicas(role: str) -> None:
    """brokerRole=SLAVE is where a broker of a switchable group begins: elected, it waits as a SYNC_MASTER."""
    group = started(ha_mode="", broker_role=role, in_sync_replicas=2)
    silence(group, 2, 3)
    token = group.send(1)
    group.run(50)
    assert answered(group, token) is None
    group.cut.clear()
    group.send(1)
    assert answered(group, token) is AckStatus.OK


def test_a_slave_takes_no_sends_at_all() -> None:
    group = started(ha_mode="", broker_role="SLAVE")
    assert group[2].replica.admission(group.now_ms)[0] is ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("keys", [{}, {"enable_auto_in_sync_replicas": True}])
def test_in_sync_replicas_has_no_effect_under_async_master(keys: dict[str, Any]) -> None:
    group = started(ha_mode="", broker_role="ASYNC_MASTER", in_sync_replicas=3, **keys)
    silence(group, 2, 3)
    assert answered(group, group.send(1)) is AckStatus.OK


@pytest.mark.parametrize("in_sync", [1, 2, 3])
def test_in_sync_replicas_has_no_effect_under_all_ack(in_sync: int) -> None:
    group = started(**{**SYNC, "in_sync_replicas": in_sync}, all_ack_in_sync_state_set=True)
    silence(group, 3)
    token = group.send(1)
    group.run(50)
    assert answered(group, token) is None, "two of three have it, the set is of three"
    group.run(2500)
    assert answered(group, token) is AckStatus.OK, "the set is of two"
    assert group.controller.members == [1, 2]


def test_in_sync_replicas_below_the_minimum_is_refused_at_the_start() -> None:
    text = {"totalReplicas": "3", "inSyncReplicas": "1", "minInSyncReplicas": "2"}
    with pytest.raises(ConfigError, match="inSyncReplicas must not be below minInSyncReplicas"):
        BrokerConfig.from_properties(text, "broker.conf")


@pytest.mark.parametrize(("key", "value"), [("inSyncReplicas", "2"), ("enableAutoInSyncReplicas", "true")])
def test_numeric_rules_contradict_cp(key: str, value: str) -> None:
    """Ruling 11."""
    with pytest.raises(ConfigError, match=f"{key} contradicts haMode=cp"):
        BrokerConfig.from_properties({"totalReplicas": "3", "haMode": "cp", key: value}, "broker.conf")


def test_a_set_below_the_minimum_refuses_before_the_write_with_a_retriable_code() -> None:
    """C2. Code 1 is one of those that an unmodified Java client retries."""
    group = started(**{**SYNC, "in_sync_replicas": 2, "min_in_sync_replicas": 2})
    group.kill(2)
    group.kill(3)
    group.run(700)
    assert group[1].replica.admission(group.now_ms) == (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough: 1 of 2",
    )
    group.restart(2)
    group.run(1500)
    assert answered(group, group.send(1)) is AckStatus.OK


# --- 3-3 and 2-3 ------------------------------------------------------------------------------------------------------
def test_three_of_three_waits_for_both_slaves() -> None:
    group = started(**{**SYNC, "in_sync_replicas": 3})
    silence(group, 3)
    token = group.send(1)
    group.run(50)
    assert answered(group, token) is None
    group.cut.clear()
    group.send(1)
    assert answered(group, token) is AckStatus.OK
    assert len(group[2].log.data) == len(group[3].log.data) == 200


@pytest.mark.parametrize("stalled", [2, 3])
def test_two_of_three_takes_any_slave_as_the_second_and_replaces_a_stalled_one_without_an_error(stalled: int) -> None:
    group = started(**TWO_OF_THREE)
    tokens = [group.send(1)]
    silence(group, stalled)
    for _ in range(60):
        tokens.append(group.send(1))
        group.run(100)
    assert {answered(group, token) for token in tokens} == {AckStatus.OK}
    assert stalled not in group.controller.members


def test_two_of_three_ends_with_a_time_out_when_nobody_is_the_second() -> None:
    """Written, not acknowledged: the code is FLUSH_SLAVE_TIMEOUT, and within slaveTimeout (ruling 13)."""
    group = started(**TWO_OF_THREE)
    silence(group, 2, 3)
    token = group.send(1)
    group.run(2990)
    assert answered(group, token) is None
    group.run(20)
    assert answered(group, token) is AckStatus.FLUSH_SLAVE_TIMEOUT


def test_an_election_after_two_of_three_has_a_replica_with_the_acknowledged_end_to_choose() -> None:
    """Every acknowledged end is on a member of the set, and who is elected there keeps it."""
    group = started(**TWO_OF_THREE)
    group.cut = {(1, 2)}  # slave 2 gets nothing
    token = group.send(1)
    assert answered(group, token) is AckStatus.OK
    ends = {number: group[number].log.max_phy_offset for number in group.controller.members if number != 1}
    assert ends == {2: 0, 3: 100}
    group.kill(1)
    longest = max(ends, key=lambda number: ends[number])
    group.elect(longest)
    group.run(500)
    assert group.master_is(3)
    assert group[2].log.data == group[3].log.data
    assert len(group[2].log.data) == 100


def test_a_slave_further_behind_than_the_gap_does_not_count() -> None:
    """haMaxGapNotInSync."""
    group = started(**ALL_ACK, ha_max_gap_not_in_sync=1000)
    silence(group, 3)
    near = group.send(1, b"x" * 1000)
    group.run(300)
    assert answered(group, near) is None
    assert group.controller.members == [1, 2, 3]
    far = group.send(1, b"x")
    group.run(300)
    assert group.controller.members == [1, 2]
    assert {answered(group, near), answered(group, far)} == {AckStatus.OK}


def test_a_slave_that_reads_nothing_costs_the_master_one_transfer() -> None:
    """HA memory is bounded: what is owed stays in the log, however much that is."""
    group = started(ha_mode="", broker_role="ASYNC_MASTER")
    master = group[1]
    conn_id = next(number for number, (peer, _) in master.links.items() if peer.number == 3)
    handed: list[object] = []

    class Deaf:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __call__(self, node: Any, action: Any) -> None:
            if node is master and isinstance(action, SendLog | SendHa) and action.conn_id == conn_id:
                handed.append(action)  # the kernel's buffer is full: ha_sent never comes
            else:
                self.real(node, action)

    group.perform = Deaf(group.perform)  # type: ignore[method-assign]
    for _ in range(500):
        group.send(1, b"x" * 10_000)
        group.run(10)
    logs = [item for item in handed if isinstance(item, SendLog)]
    assert len(logs) == 1
    assert len(handed) - len(logs) <= 1
    assert logs[0].size_bytes <= master.config.ha_transfer_batch_size


@pytest.mark.parametrize("claim", [-1, 101, 2**62])
def test_a_first_ack_beyond_the_masters_end_drops_the_peer(claim: int) -> None:
    """A10: every ack is checked, also the one that only says where to begin."""
    group = started(**ALL_ACK)
    group.controller.addresses[9] = "127.0.0.1:5"
    group.send(1)
    group.run(600)
    master = group[1].replica
    master.ha_accepted(group.now_ms, 77, "127.0.0.1:5")
    master.ha_received(group.now_ms, 77, SlaveHandshake(BrokerId(9)).encode())
    master.ha_received(group.now_ms, 77, SlaveAck(PhyOffset(claim)).encode())
    closed = [action for action in master.actions() if isinstance(action, CloseHa)]
    assert [action.conn_id for action in closed] == [77]
    assert (9, claim) not in master.slave_acks()


def test_a_slave_that_shakes_hands_is_unknown_until_it_acks() -> None:
    """apache/rocketmq 6728: it neither counts as −1 nor moves the confirm offset."""
    group = started(**ALL_ACK)
    token = group.send(1)
    assert answered(group, token) is AckStatus.OK
    confirm = group[1].log.confirm
    master = group[1].replica
    master.ha_accepted(group.now_ms, 77, "127.0.0.1:5")
    master.ha_received(group.now_ms, 77, SlaveHandshake(BrokerId(3)).encode())
    view = {item["brokerId"]: item["ackOffset"] for item in master.state(group.now_ms).to_json()["setMembers"]}
    assert view == {2: 100, 3: None}
    assert group[1].log.confirm == confirm == 100


# --- disk -------------------------------------------------------------------------------------------------------------
def test_sync_flush_waits_for_the_masters_disk_and_says_when_that_was_late() -> None:
    group = started(**SYNC, flush_disk_type="SYNC_FLUSH")
    group.auto_sync = False
    token = group.send(1)
    group.run(4990)
    assert answered(group, token) is None
    group.run(20)
    assert answered(group, token) is AckStatus.FLUSH_DISK_TIMEOUT


def test_async_flush_does_not_wait_for_any_disk() -> None:
    group = started(**{**SYNC, "in_sync_replicas": 3})
    group.auto_sync = False
    assert answered(group, group.send(1)) is AckStatus.OK


# --- the numbers by themselves ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keys", "live", "needed"),
    [
        ({"broker_role": "ASYNC_MASTER", "in_sync_replicas": 3}, 3, 1),
        ({"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}, 1, 2),
        (AUTO, 3, 3),
        (AUTO, 2, 2),
        (AUTO, 1, 2),
        ({**AUTO, "min_in_sync_replicas": 1}, 1, 1),
        ({**AUTO, "broker_role": "ASYNC_MASTER"}, 3, 1),
    ],
)
def test_needed_count(keys: dict[str, Any], live: int, needed: int) -> None:
    assert needed_count(BrokerConfig(total_replicas=3, **keys), live) == needed


@pytest.mark.parametrize(("acks", "offset"), [((90, 40), 90), ((None, 40), 40), ((None, None), 0), ((100, 100), 100)])
def test_an_unknown_ack_is_none_and_never_counts(acks: tuple[int | None, ...], offset: int) -> None:
    """apache/rocketmq 6728: −1 of a handshaking peer once became the confirm offset."""
    found = acked_offset(
        BrokerConfig(total_replicas=3, **TWO_OF_THREE),
        confirm=PhyOffset(0),
        own_max=PhyOffset(100),
        own_synced=PhyOffset(0),
        member_acks=[None if ack is None else PhyOffset(ack) for ack in acks],
        live_count=3,
        sync_required=False,
    )
    assert found == offset


# --- A11: enableAutoInSyncReplicas ------------------------------------------------------------------------------------
def test_needed_acks_fall_with_the_live_replicas_and_rise_again() -> None:
    group = started(**AUTO)
    assert level(group) == 3
    group.kill(3)
    group.run(20)
    assert level(group) == 2, "a closed connection counts at once, the set follows later"
    assert group.controller.members == [1, 2, 3]
    assert answered(group, group.send(1)) is AckStatus.OK
    group.restart(3)
    group.run(1500)
    assert level(group) == 3
    levels = [fields["needed"] for name, fields in group[1].trace.events if name == "ack_level"]
    assert levels[-2:] == [2, 3]


def test_needed_acks_never_fall_below_the_minimum() -> None:
    group = started(**AUTO)
    silence(group, 2, 3)
    token = group.send(1)
    group.run(2990)
    assert level(group) == 2
    assert answered(group, token) is None
    group.run(20)
    assert answered(group, token) is AckStatus.FLUSH_SLAVE_TIMEOUT


def test_a_stalled_slave_counts_no_more_after_the_stall_bound() -> None:
    group = started(**AUTO)
    silence(group, 3)
    token = group.send(1)
    group.run(1900)
    assert (answered(group, token), level(group)) == (None, 3)
    group.run(200)
    assert (answered(group, token), level(group)) == (AckStatus.OK, 2)


def test_a_slave_too_far_behind_counts_no_more() -> None:
    group = started(**AUTO, ha_max_gap_not_in_sync=1000)
    silence(group, 3)
    group.send(1, b"x" * 1000)
    assert level(group) == 3
    token = group.send(1, b"x")
    assert (answered(group, token), level(group)) == (AckStatus.OK, 2)


# --- the published bound on a stall -----------------------------------------------------------------------------------
BOUND_KEYS: list[dict[str, Any]] = [
    {"ha_mode": "cp"},
    ALL_ACK,
    AUTO,
    TWO_OF_THREE,
]


@pytest.mark.parametrize("keys", BOUND_KEYS)
def test_one_silent_slave_delays_a_send_by_the_stall_bound_at_most(keys: dict[str, Any]) -> None:
    """AP and CP with three replicas: haAckStallBoundMs, and a look at the set on top."""
    group = started(**keys)
    silence(group, 3)
    token = group.send(1)
    began_at_ms = group.now_ms
    while answered(group, token) is None:
        group.run(10)
    assert answered(group, token) is AckStatus.OK
    assert group.now_ms - began_at_ms <= group[1].config.ha_ack_stall_bound_ms + 100
    for _ in range(20):
        group.run(50)
        assert answered(group, group.send(1)) is AckStatus.OK, "later sends do not wait again"


def test_two_silent_slaves_give_an_ap_group_the_bound_and_a_cp_group_the_configured_error() -> None:
    for keys, wanted in ((ALL_ACK, AckStatus.OK), ({"ha_mode": "cp"}, None)):
        group = started(**keys)
        silence(group, 2, 3)
        token = group.send(1)
        group.run(2100)
        assert answered(group, token) is wanted
        if wanted is None:
            group.run(910)
            assert answered(group, token) is AckStatus.FLUSH_SLAVE_TIMEOUT
            code, remark = group[1].replica.admission(group.now_ms)
            assert (code, remark.split(":")[0]) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
