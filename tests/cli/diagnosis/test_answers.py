"""What running nodes answer: well, half-dead, foreign; clocks, keys and the controllers' record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rmqha.cli.diagnosis.checks.answers import (
    Answers,
    ask_all,
    judge_clocks,
    judge_record,
    judge_refusal,
    judge_role,
    judge_unsaved,
)
from rmqha.cli.diagnosis.checks.files import StoreFacts
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.model.code import RequestCode as Code
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.identity import Identity
from rmqha.model.offset import BrokerId
from rmqha.ops.finding import Finding, Verdict
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.supervisor import Process, start_stamp
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.replica_state import ReplicaState
from tests.cli.health.reports import told_by_a_broker
from tests.client.test_admin import Peer, peers
from tests.support.patience import HANG_S

STATE: dict[str, Any] = {"role": "MASTER", "epoch": 1, "maxPhyOffset": 0, "confirmOffset": 0, "writable": True}


def broker_at(address: str, **keys: Any) -> NodeUnderTest:
    """A broker that runs (in this process) and listens there."""
    port = int(address.rpartition(":")[2])
    ports: dict[str, Any] = {"listen_port": port, "ha_listen_port": port, "namesrv_addr": ""}
    config = BrokerConfig(**{**ports, "enable_controller_mode": False, **keys})
    process = Process(os.getpid(), start_stamp(os.getpid()) or "")
    return NodeUnderTest(
        "b-1", NodeKind.BROKER, "b.conf", None, {}, broker=config, address=address, process=process, in_cluster=True
    )


def as_broker(peer: Peer, config: BrokerConfig, *, ahead_ms: int = 0, stepped_ms: int = 0) -> None:
    text = "".join(f"{key}={value}\n" for key, value in config.to_properties().items())
    told = {"events": [], "wallMs": time.time_ns() // 1_000_000 + ahead_ms, "clockSteppedMs": stepped_ms}
    peer.replies = {
        Code.RMQHA_GET_REPLICA_STATE: (0, {}, json.dumps(STATE).encode()),
        Code.RMQHA_GET_HISTORY: (0, {}, json.dumps(told).encode()),
        Code.GET_BROKER_CONFIG: (0, {}, text.encode()),
    }


async def examined(node_under_test: NodeUnderTest, timeout_s: float = HANG_S) -> dict[str, Finding]:
    """By check; of several the worst."""
    _, findings = await ask_all([node_under_test], {node_under_test.name: StoreFacts()}, timeout_s)
    return {item.check: item for item in sorted(findings, key=lambda item: -item.verdict)}


async def test_a_node_that_is_well() -> None:
    async with peers(1) as (peer,):
        node_under_test = broker_at(peer.address)
        assert node_under_test.broker is not None
        as_broker(peer, node_under_test.broker)
        found = await examined(node_under_test)
    assert {item.verdict for item in found.values()} == {Verdict.OK}
    assert sorted(found) == ["address", "answers", "clock", "keys in force"]


class AfterMoreThanASecond(dict[int, tuple[int, dict[str, str], bytes]]):
    """Replies of a machine that is busy, as ours is meanwhile."""

    def get(self, code: int, default: Any = None) -> Any:
        time.sleep(1.1)
        return super().get(code, default)


async def test_who_answers_within_the_time_that_was_given_is_well() -> None:
    async with peers(1) as (peer,):
        node_under_test = broker_at(peer.address)
        assert node_under_test.broker is not None
        as_broker(peer, node_under_test.broker)
        peer.replies = AfterMoreThanASecond(peer.replies)
        found = await examined(node_under_test)
    assert found["answers"].verdict is Verdict.OK, found["answers"].sentence


async def test_an_address_that_leads_nowhere() -> None:
    async with peers(1) as (peer,):
        node_under_test = broker_at(peer.address)
        assert node_under_test.broker is not None
        as_broker(peer, node_under_test.broker)
        peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (
            0,
            {},
            json.dumps(STATE | {"addressProblem": "brokerIP1: x"}).encode(),
        )
        found = await examined(node_under_test)
    assert (found["address"].verdict, found["address"].sentence) == (Verdict.WRONG, "brokerIP1: x")


async def test_its_clock_and_a_file_that_was_changed() -> None:
    async with peers(1) as (peer,):
        node_under_test = broker_at(peer.address, flush_disk_type="SYNC_FLUSH", file_reserved_time=24)
        as_broker(
            peer,
            BrokerConfig(listen_port=node_under_test.broker.listen_port if node_under_test.broker else 0),
            ahead_ms=60_000,
        )
        found = await examined(node_under_test)
    assert found["clock"].verdict is Verdict.WRONG
    assert "s ahead of this machine's" in found["clock"].sentence
    words = found["keys in force"].sentence
    assert "flushDiskType=ASYNC_FLUSH (file: SYNC_FLUSH)" in words
    assert "fileReservedTime" not in words, "a live key may differ"


@pytest.mark.parametrize(
    ("offset_ms", "stepped_ms", "verdict", "words"),
    [
        (20.0, 0, Verdict.OK, "clocks asked: 1, none more than 20 ms from"),
        (-900.0, 0, Verdict.WARN, "behind this machine's"),
        (9_000.0, 0, Verdict.WRONG, "ahead of this machine's"),
        (0.0, -7_200_000, Verdict.WARN, "was set by -7200.0 s since its start"),
    ],
)
def test_clocks(offset_ms: float, stepped_ms: int, verdict: Verdict, words: str) -> None:
    (finding,) = judge_clocks({"b-1": Answers(clock_offset_ms=offset_ms, clock_error_ms=5, stepped_ms=stepped_ms)})
    assert finding.verdict is verdict
    assert words in finding.sentence
    assert judge_clocks({"b-1": Answers()}) == []


async def test_an_account_is_needed() -> None:
    async with peers(1) as (peer,):
        peer.replies = {Code.RMQHA_GET_REPLICA_STATE: (ResponseCode.NO_PERMISSION, {}, b"")}
        found = await examined(broker_at(peer.address))
    assert found["answers"].verdict is Verdict.WARN
    assert "--security FILE" in found["answers"].fix


async def test_controllers_that_ask_for_an_account() -> None:
    async with peers(1) as (controller,):
        controller.replies = {Code.RMQHA_EXPLAIN_GROUP: (ResponseCode.NO_PERMISSION, {}, b"")}
        node_under_test = broker_at("127.0.0.1:9")
        node_under_test.broker = BrokerConfig(listen_port=10911, controller_addr=controller.address)
        found = await examined(node_under_test)
    assert found["controllers"].verdict is Verdict.WARN
    assert "--security FILE" in found["controllers"].fix


@asynccontextmanager
async def listening(handler: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handler, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def web(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def ssh(stream: trio.SocketStream) -> None:
    await stream.send_all(b"SSH-2.0-OpenSSH_9.2\r\n")
    await trio.sleep_forever()


@pytest.mark.parametrize("handler", [silent, web, ssh])
async def test_half_dead_and_foreign_ports_end_in_time_with_one_sentence(
    handler: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    async with listening(handler) as address:
        with trio.fail_after(HANG_S):
            found = await examined(broker_at(address), timeout_s=0.5)
    assert found["answers"].verdict is Verdict.WRONG
    assert found["answers"].fix


async def test_nobody_listens() -> None:
    found = await examined(broker_at("127.0.0.1:9"))
    assert found["answers"].verdict is Verdict.WRONG
    assert "Connection refused" in found["answers"].sentence
    assert "others are told 127.0.0.1:9" in found["address"].sentence


async def test_an_answer_that_is_no_json() -> None:
    async with peers(1) as (peer,):
        peer.replies = {Code.RMQHA_GET_REPLICA_STATE: (0, {}, b"[]")}
        found = await examined(broker_at(peer.address))
    assert "cannot be read" in found["answers"].sentence


async def test_servers_elsewhere() -> None:
    async with peers(1) as (peer,):
        found = await examined(broker_at(peer.address, namesrv_addr=peer.address))
        assert "servers" not in found, "it is examined itself"
        found = await examined(broker_at("127.0.0.1:9", namesrv_addr=f"{peer.address};127.0.0.1:10"))
    assert found["servers"].verdict is Verdict.WRONG
    assert "namesrvAddr: cannot connect to 127.0.0.1:10" in found["servers"].sentence
    stopped = broker_at("127.0.0.1:9", namesrv_addr="127.0.0.1:10", controller_addr="127.0.0.1:11")
    stopped.process = None
    found = await examined(stopped)
    assert found["servers"].verdict is Verdict.WARN
    assert "controllerAddr" not in found["servers"].sentence, "a static group has no use for them"


async def test_controllers_that_are_away() -> None:
    async with peers(1) as (peer,):
        node_under_test = broker_at(peer.address)
        node_under_test.broker = BrokerConfig(listen_port=10911, controller_addr="127.0.0.1:9")
        found = await examined(node_under_test)
    assert found["controllers"].sentence == (
        "nobody can elect a master for it: no controller answers: cannot connect to 127.0.0.1:9: Connection refused"
    )
    assert found["controllers"].fix == "start one (see rmqha health), or name one that runs with --controller"


async def test_a_stopped_broker_is_held_against_the_controllers_too() -> None:
    async with peers(1) as (controller,):
        record = {"masterBrokerId": 2, "replicas": [{"brokerId": 2, "address": "127.0.0.1:1"}]}
        controller.replies = {Code.RMQHA_EXPLAIN_GROUP: (0, {}, json.dumps(record).encode())}
        node_under_test = broker_at("127.0.0.1:9")
        node_under_test.broker = BrokerConfig(listen_port=10911, controller_addr=controller.address)
        node_under_test.process = None
        store_facts = {node_under_test.name: StoreFacts(Identity("c", "broker-a", BrokerId(2)))}
        _, findings = await ask_all([node_under_test], store_facts, HANG_S)
    (finding,) = [item for item in findings if item.check == "identity"]
    assert finding.verdict is Verdict.WARN
    assert "have replica 2 at 127.0.0.1:1, not 127.0.0.1:10911" in finding.sentence


RECORD = {"masterBrokerId": 1, "replicas": [{"brokerId": 1, "address": "127.0.0.1:10911", "diskProblem": None}]}


@pytest.mark.parametrize(
    ("broker_id", "port", "verdict", "words"),
    [
        (1, 10911, Verdict.OK, "have it as replica 1"),
        (4, 10911, Verdict.WRONG, "it holds id 4, the controllers know only [1]"),
        (1, 10921, Verdict.WRONG, "have replica 1 at 127.0.0.1:10911, not 127.0.0.1:10921"),
    ],
)
def test_identity_against_the_controllers(broker_id: int, port: int, verdict: Verdict, words: str) -> None:
    node_under_test = broker_at(f"127.0.0.1:{port}")
    store_facts = {"b-1": StoreFacts(Identity("c", "broker-a", BrokerId(broker_id)))}
    (finding,) = judge_record("broker-a", [node_under_test], store_facts, RECORD)
    assert finding.verdict is verdict
    assert words in finding.sentence


@pytest.mark.parametrize("mark", ["drained", "inMaintenance"])
def test_a_replica_that_is_away_on_purpose(mark: str) -> None:
    node_under_test = broker_at("127.0.0.1:10911")
    node_under_test.process = None
    store_facts = {"b-1": StoreFacts(Identity("c", "broker-a", BrokerId(1)))}
    record = {"masterBrokerId": 2, "replicas": [{"brokerId": 1, "address": "127.0.0.1:10911", mark: True}]}
    found = judge_record("broker-a", [node_under_test], store_facts, record)
    assert [item.verdict for item in found] == [Verdict.OK, Verdict.OK]
    assert "it may be away" in found[1].sentence


def test_a_sick_disk_and_no_master_are_the_controllers_word() -> None:
    record = {
        "masterBrokerId": None,
        "whyNoMaster": "no replica of the set lives",
        "replicas": [{"brokerId": 1, "address": "127.0.0.1:10911", "diskProblem": "No space left on device"}],
    }
    store_facts = {"b-1": StoreFacts(Identity("c", "broker-a", BrokerId(1)))}
    found = judge_record("broker-a", [broker_at("127.0.0.1:10911")], store_facts, record)
    assert [item.check for item in found if item.verdict is Verdict.WRONG] == ["disk", "master"]
    assert "no replica of the set lives" in found[-1].sentence


def test_a_running_replica_that_follows_nobody_is_wrong() -> None:
    state = told_state(refusal="following would cut to 10, below the own confirm offset 20")
    (finding,) = judge_refusal("broker-a-3", state)
    assert finding.verdict is Verdict.WRONG
    assert "follows nobody" in finding.sentence and "below the own confirm offset 20" in finding.sentence
    assert finding.fix.startswith("rmqha fork show broker-a-3")
    assert judge_refusal("broker-a-3", told_state()) == []


def test_a_controller_whose_disk_finishes_nothing_is_wrong() -> None:
    raft = {"term": 7, "unsavedMs": 2_000}
    (finding,) = judge_unsaved("ctl-1", ControllerState.from_json({"leading": False, "raft": raft}))
    assert finding.verdict is Verdict.WRONG and "has not saved for 2.0 s" in finding.sentence
    told = ControllerState.from_json({"leading": False, "raft": raft | {"unsavedMs": 200}})
    assert judge_unsaved("ctl-1", told) == []


def test_a_replica_that_its_controllers_refuse_is_wrong() -> None:
    (finding,) = judge_role("broker-a-3", told_state(controllerRefusal="code 2005: totalReplicas = 3 is too small"))
    assert (finding.verdict, finding.check) == (Verdict.WRONG, "controllers")
    assert "totalReplicas = 3 is too small" in finding.sentence
    assert judge_role("broker-a-3", told_state()) == []


def test_a_master_that_takes_nothing_is_wrong() -> None:
    """Cut off from the others in one direction, it answers whoever asks and calls itself master."""
    state = told_state(role="MASTER", writable=False, whyNotWritable="replicas [2, 3] of the confirmed set are away")
    (finding,) = judge_role("broker-a-3", state)
    assert (finding.verdict, finding.check) == (Verdict.WRONG, "master")
    assert "replicas [2, 3] of the confirmed set are away" in finding.sentence
    assert judge_role("broker-a-3", told_state(role="MASTER", writable=True)) == []


def told_state(**more: Any) -> ReplicaState:
    return ReplicaState.from_json(told_by_a_broker(3) | more)
