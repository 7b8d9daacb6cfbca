"""`rmqha health` against live, dead, half-dead and foreign addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqha.cli.health import command
from rmqha.cli.health.command import examine
from rmqha.model.code import RequestCode as Code
from rmqha.model.error import UsageError
from rmqha.ops.health.findings import Health
from rmqha.ops.snapshot import ClusterSnapshot, ServerKind
from rmqha.ops.survey import BootstrapAddresses
from rmqha.wire.lenient_json import dumps
from tests.cli.health.reports import controller, told_by_a_broker
from tests.cli.hostile import KINDS, hostile
from tests.client.test_admin import Peer, peers
from tests.support.command import rmqha, rmqha_in
from tests.support.patience import HANG_S

TIMEOUT_S = 1.5


def tell(peers_: list[Peer]) -> BootstrapAddresses:
    """A name server, a controller and three brokers that answer as the well cluster does; the seed is the first."""
    names, leader, *brokers = peers_
    addresses = {number: peer.address for number, peer in enumerate(brokers, 1)}
    routes = {0 if number == 1 else number: address for number, address in addresses.items()}
    table = {"broker-a": {"cluster": "c", "brokerName": "broker-a", "brokerAddrs": routes}}
    names.replies[Code.GET_BROKER_CLUSTER_INFO] = (0, {}, dumps({"brokerAddrTable": table}))
    state = controller(1, leads=True).controller
    assert state is not None
    for row in state.groups["broker-a"].replicas:
        row.address = addresses[row.broker_id]
    leader.replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, dumps(state.to_json()))
    leader.replies[Code.RMQHA_GET_QUORUM] = (0, {}, dumps({"addresses": {"n0": leader.address}}))
    keys = f"enableControllerMode=true\ncontrollerAddr={leader.address}\nnamesrvAddr={names.address}\n"
    for number, peer in enumerate(brokers, 1):
        peer.replies[Code.GET_BROKER_CONFIG] = (0, {}, keys.encode())
        peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, dumps(told_by_a_broker(number)))
    return BootstrapAddresses(name_servers=(names.address,))


class Mending(dict[int, tuple[int, dict[str, str], bytes]]):
    """Replies of a controller that is well from the third question on."""

    def __init__(self, ill: dict[int, tuple[int, dict[str, str], bytes]], well: tuple[int, dict[str, str], bytes]):
        super().__init__(ill)
        self._well = well
        self._count = 0

    def get(self, code: int, default: Any = None) -> Any:
        if code == Code.RMQHA_GET_CONTROLLER_STATE:
            self._count += 1
            if self._count > 2:
                return self._well
        return super().get(code, default)


async def looked(
    bootstrap: BootstrapAddresses, group: str | None = None, timeout_s: float = HANG_S
) -> tuple[Health, ClusterSnapshot]:
    with trio.fail_after(HANG_S):
        return await examine(bootstrap, group, timeout_s)


@pytest.mark.parametrize("words", [["health"], ["top", "--once"]])
def test_without_a_cluster_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    nobody = "127.0.0.1:1"
    monkeypatch.setattr(command, "QUICK_START", BootstrapAddresses(name_servers=(nobody,)))
    done = rmqha_in(tmp_path, *words)
    assert done.returncode == 2 and nobody in done.stdout
    assert done.stderr.startswith("rmqha: no cluster is known here") and "start one with `rmqha up`" in done.stderr
    assert rmqha_in(tmp_path, *words, "--namesrv", nobody).stderr == "", "the user has named it"
    monkeypatch.setenv("RMQHA_NAMESRV", nobody)
    assert rmqha_in(tmp_path, *words).stderr == "", "the variable has named it"


async def test_from_one_name_server_it_finds_everybody() -> None:
    async with peers(5) as found:
        health, snapshot = await looked(tell(found))
        assert health.healthy, health.reasons
        assert [word.kind for word in snapshot.nodes] == [
            ServerKind.NAME_SERVER,
            ServerKind.CONTROLLER,
            *[ServerKind.BROKER] * 3,
        ]


async def test_a_group_that_nobody_knows() -> None:
    async with peers(5) as found:
        with pytest.raises(UsageError, match="knows a group 'broker-b', did you mean broker-a"):
            await looked(tell(found), "broker-b")


@pytest.mark.parametrize("kind", KINDS)
async def test_one_broker_is_lost(kind: str) -> None:
    async with peers(5) as found:
        bootstrap = tell(found)
        with hostile(kind) as address:
            state = json.loads(found[1].replies[Code.RMQHA_GET_CONTROLLER_STATE][2])
            state["groups"]["broker-a"]["replicas"][2]["address"] = address
            found[1].replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, dumps(state))
            health, _ = await looked(bootstrap, timeout_s=TIMEOUT_S if kind == "half-dead" else HANG_S)
            said = [item for item in health.reasons if address in item.subject]
            assert len(said) == 1 and "does not answer" in said[0].sentence
            assert health.answered == 5


async def test_answers_that_are_no_answers() -> None:
    async with peers(5) as found:
        bootstrap = tell(found)
        found[2].replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, b'{"role":1}')
        found[3].replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, b"[]")
        found[4].replies[Code.GET_BROKER_CONFIG] = (0, {}, b"\xff")
        health, _ = await looked(bootstrap)
        assert sum("cannot be read" in item.sentence for item in health.reasons) == 3


async def test_apaches_nodes_have_no_word_of_their_own() -> None:
    async with peers(5) as found:
        bootstrap = tell(found)
        for peer in found[1:]:
            peer.replies.pop(Code.RMQHA_GET_REPLICA_STATE, None)
            peer.replies.pop(Code.RMQHA_GET_CONTROLLER_STATE, None)
        row = {"masterBrokerId": 1, "masterEpoch": 2, "syncStateSetEpoch": 3, "inSyncReplicas": [{"brokerId": 1}]}
        ext = {"isLeader": "true", "peers": f"n0:{found[1].address}"}
        found[1].replies[Code.CONTROLLER_GET_METADATA_INFO] = (0, ext, b"")
        body = dumps({"replicasInfoTable": {"broker-a": row}})
        found[1].replies[Code.CONTROLLER_GET_SYNC_STATE_DATA] = (0, {}, body)
        health, snapshot = await looked(bootstrap)
        assert health.healthy, health.reasons
        assert not any(word.is_ours for word in snapshot.nodes if word.kind is not ServerKind.NAME_SERVER)
        assert dict(health.views[0].says) == {
            found[1].address: "master replica 1, epoch 2, set [replica 1] of set epoch 3"
        }


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_to_ask(kind: str, tmp_path: Path) -> None:
    with hostile(kind) as address:
        with trio.fail_after(HANG_S):
            done = await rmqha("health", "--namesrv", address, "--timeout", "1", "-o", "json", directory=tmp_path)
        told: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode, told["health"], len(told["reasons"])) == (2, "UNKNOWN", 1)


async def test_a_watch_ends_when_it_is_well(tmp_path: Path) -> None:
    async with peers(5) as found:
        bootstrap = tell(found)
        state = found[1].replies[Code.RMQHA_GET_CONTROLLER_STATE]
        ill = json.loads(state[2])
        ill["groups"]["broker-a"]["masterBrokerId"] = None
        found[1].replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, dumps(ill))
        command = ("health", "-e", "-o", "json", "--timeout", "60", "--namesrv", bootstrap.name_servers[0])
        done = await rmqha(*command, "--within", "0.2", directory=tmp_path)
        assert done.returncode == 1
        found[1].replies = Mending(found[1].replies, state)
        done = await rmqha(*command, directory=tmp_path)
        told = [json.loads(line)["health"] for line in done.stdout.splitlines()]
        assert (done.returncode, told) == (0, ["UNHEALTHY", "HEALTHY"])
