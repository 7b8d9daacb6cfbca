"""`rmqha doctor` of a cluster elsewhere: what its nodes answer, their clocks, keys and ways; the rest is left to its
machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqha.cli.diagnosis.checks.remote import examine_remote_nodes
from rmqha.cli.main import main
from rmqha.model.code import RequestCode as Code
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import UnreachableError, UsageError
from rmqha.ops.finding import Finding, Verdict
from tests.cli.diagnosis.test_answers import STATE, as_broker
from tests.client.test_admin import Peer, peers

NOBODY = "127.0.0.1:1"


def as_name_server(peer: Peer, brokers: list[str]) -> None:
    addresses = {str(number): address for number, address in enumerate(brokers)}
    table = {"broker-a": {"brokerName": "broker-a", "cluster": "c", "brokerAddrs": addresses}}
    body = json.dumps({"brokerAddrTable": table, "clusterAddrTable": {"c": ["broker-a"]}}).encode()
    peer.replies[Code.GET_BROKER_CLUSTER_INFO] = (0, {}, body)


def as_replica(peer: Peer, number: int, *, ahead_ms: int = 0, **keys: Any) -> None:
    port = int(peer.address.rpartition(":")[2])
    own: dict[str, Any] = {"listen_port": port, "ha_listen_port": port, "broker_name": "broker-a", "broker_id": number}
    as_broker(
        peer,
        BrokerConfig(**{**own, "namesrv_addr": NOBODY, "controller_addr": "127.0.0.1:2", **keys}),
        ahead_ms=ahead_ms,
    )
    state = STATE | {"brokerName": "broker-a", "brokerId": number}
    peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, json.dumps(state).encode())


def wrong(findings: list[Finding]) -> dict[tuple[str, str], str]:
    return {(item.subject, item.check): item.sentence for item in findings if item.verdict is Verdict.WRONG}


async def test_clocks_keys_and_silent_nodes_are_told_of_each() -> None:
    async with peers(3) as (name_server, one, two):
        as_name_server(name_server, [one.address, two.address, NOBODY])
        as_replica(one, 1, ahead_ms=60_000)
        as_replica(two, 2, total_replicas=5)
        nodes, findings = await examine_remote_nodes((name_server.address,), (), None, 3.0)
    names = {"broker-a-1", "broker-a-2", NOBODY, "127.0.0.1:2"}
    assert {node.name for node in nodes} == names, "Apache's name server is none of ours"
    found = wrong(findings)
    assert "s ahead of this machine's" in found["broker-a-1", "clock"]
    assert "its replicas differ in totalReplicas" in found["broker-a", "config"]
    assert "of no use from here: cannot connect to 127.0.0.1:1" in found[NOBODY, "answers"]
    assert "nobody can elect a master" in found["broker-a", "controllers"]
    assert ("broker-a-2", "clock") not in found
    assert [item.fix for item in findings if item.check == "examined"] == ["rmqha doctor -c FILE on each machine"]


async def test_one_node_alone_and_a_name_that_nobody_has() -> None:
    async with peers(2) as (name_server, one):
        as_name_server(name_server, [one.address])
        as_replica(one, 1)
        nodes, _ = await examine_remote_nodes((name_server.address,), (), "broker-a-1", 3.0)
        assert [node.name for node in nodes] == ["broker-a-1"]
        with pytest.raises(UsageError, match=r"there is no node broker-a-7; that cluster has .*broker-a-1"):
            await examine_remote_nodes((name_server.address,), (), "broker-a-7", 3.0)


async def test_a_cluster_that_does_not_answer_is_one_sentence() -> None:
    with pytest.raises(UnreachableError, match="nobody of that cluster answers"):
        await examine_remote_nodes((NOBODY,), (), None, 1.0)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RMQHA_DIRECTORY", raising=False)
    yield


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--namesrv", NOBODY), "nobody of that cluster answers"),
        (("--namesrv", "nonsense"), "--namesrv:"),
        (("--namesrv", NOBODY, "--directory", "x"), "--directory names a cluster of this machine"),
        (("--namesrv", NOBODY, "-c", "x.conf"), "leave NODE, --directory and addresses out"),
    ],
)
def test_wrong_calls_are_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(("doctor", *arguments))
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("examining ")]
    assert (ended.value.code, len(told)) == (2, 1) and words in told[0]


@pytest.mark.usefixtures("alone")
def test_the_context_in_use_is_examined(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with peers(2) as (name_server, one):
            as_name_server(name_server, [one.address])
            as_replica(one, 1)
            monkeypatch.setenv("RMQHA_NAMESRV", name_server.address)

            def ask() -> int:
                with pytest.raises(SystemExit) as ended:
                    main(("doctor", "broker-a-1", "-o", "json"))
                return int(ended.value.code or 0)

            assert await trio.to_thread.run_sync(ask) == 1, "its controllers do not answer"

    trio.run(run)
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == ["broker-a-1"]
    assert {item["check"] for item in told["findings"]} >= {"answers", "clock", "controllers", "examined"}
