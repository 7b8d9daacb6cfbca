"""`rmqha describe` and `rmqha explain-wait` over sockets: brokers of ours and of Apache's, some of them silent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.code import RequestCode as Code
from rmqha.model.code import ResponseCode
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, ClusterState, NodeRecord
from rmqha.ops.local.node_kind import NodeKind
from rmqha.wire.lenient_json import ObjectKey, dumps
from tests.client.test_admin import Peer, peers
from tests.ha.group import Group, started
from tests.support.command import rmqha

APACHE_KEYS = "brokerRole=SYNC_MASTER\ninSyncReplicas=2\nlistenPort=10911\ntimerWheelEnable=true\n"
NOWHERE = "127.0.0.1:1"


def as_ours(peer: Peer, group: Group, number: int, controller: str) -> None:
    """What replica `number` of the machine would answer."""
    keys = {**group[number].config.to_properties(), "controllerAddr": controller}
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    peer.replies[Code.GET_BROKER_CONFIG] = (0, {}, text.encode())
    state = group[number].replica.state(group.now_ms).to_json()
    peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, json.dumps(state).encode())


def as_controller(peer: Peer, *, ours: bool, unclean: bool = False) -> None:
    if ours:
        peer.replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, b"{}")
    text = f"enableElectUncleanMaster={str(unclean).lower()}\n"
    peer.replies[Code.CONTROLLER_GET_CONFIG] = (0, {}, text.encode())


def as_namesrv(peer: Peer, groups: dict[str, dict[int, str]]) -> None:
    table = {name: {"cluster": "c", "brokerName": name, "brokerAddrs": where} for name, where in groups.items()}
    peer.replies[Code.GET_BROKER_CLUSTER_INFO] = (
        0,
        {},
        json.dumps({"brokerAddrTable": table, "clusterAddrTable": {"c": ["broker-a"]}}).encode(),
    )


@asynccontextmanager
async def cluster(
    group: Group, *, ours: bool = True, dead_id: int = 0, expired_id: int = 0
) -> AsyncIterator[list[Peer]]:
    """Name server, controller and replicas 1, 2, …; `dead_id` is registered and does not answer, `expired_id` is not
    registered any more."""
    async with peers(2 + len(group.nodes)) as found:
        names, controller, *brokers = found
        as_controller(controller, ours=ours)
        addresses = {}
        for number, peer in zip(sorted(group.nodes), brokers, strict=True):
            as_ours(peer, group, number, controller.address)
            if number != expired_id:
                addresses[0 if number == 1 else number] = NOWHERE if number == dead_id else peer.address
        as_namesrv(names, {"broker-a": addresses})
        yield found


async def described(found: list[Peer], what: str = "group") -> tuple[dict[str, Any], int]:
    name = ["broker-a"] if what == "group" else []
    done = await rmqha("describe", what, *name, "--namesrv", found[0].address, "-o", "json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


async def test_a_healthy_cp_group() -> None:
    group = started()
    group.send(1)
    group.run(100)
    async with cluster(group) as found:
        view, code = await described(found)
        assert code == 0
        assert (view["master"], view["masterId"], view["syncStateSet"]) == (found[2].address, 1, [1, 2, 3])
        rows = [
            (row["brokerId"], row["role"], row["maxOffset"], row["inSet"], row["lagBytes"]) for row in view["replicas"]
        ]
        assert rows == [(1, "MASTER", 100, True, 0), (2, "SLAVE", 100, True, 0), (3, "SLAVE", 100, True, 0)]
        assert view["guarantee"]["kind"] == "CP"
        assert view["guarantee"]["conditions"] == [] and view["missingReplicas"] == 0
        sources = {item["key"]: item["source"] for item in view["keys"]}
        assert (sources["brokerRole"], sources["totalReplicas"], sources["slaveTimeout"]) == (
            "preset haMode=cp",
            "file",
            "default",
        )
        text = await rmqha("describe", "group", "broker-a", "--namesrv", found[0].address)
        assert text.returncode == 0
        lines = text.stdout.splitlines()
        tables = [line for line in lines if (line[:2].strip().isdigit() and "1:" in line) or line[:3] in ("ID ", "KEY")]
        assert len(tables) == 5
        assert max(map(len, tables)) <= 80


async def test_a_group_that_takes_no_messages_says_why() -> None:
    group = started()
    group.kill(2)
    group.kill(3)
    group.run(1000)
    async with cluster(group, dead_id=3) as found:
        view, code = await described(found)
        assert code == 1
        assert "in-sync replicas not enough" in view["whyNotWritable"]
        assert "cannot connect" in view["replicas"][2]["error"]
        assert view["guarantee"]["notes"][0].startswith("the set has 1 now")
        clusters, code = await described(found, "cluster")
        assert code == 1
        assert clusters["groups"][0]["group"] == "broker-a"


async def test_a_replica_that_the_name_servers_have_forgotten_is_missed() -> None:
    group = started()
    group.kill(3)
    group.run(1000)
    async with cluster(group, expired_id=3) as found:
        view, code = await described(found)
        assert (view["missingReplicas"], len(view["replicas"]), code) == (1, 2, 0)
        text = await rmqha("describe", "group", "broker-a", "--namesrv", found[0].address)
        assert "the name servers know 2 of its 3 replicas; see rmqha health broker-a" in text.stdout


async def test_one_copy_synced_is_shown() -> None:
    group = started(2)
    group.kill(2)
    group.run(1000)
    async with cluster(group, dead_id=2) as found:
        view, code = await described(found)
        assert (view["oneCopySynced"], code) == (True, 0)
        assert view["guarantee"]["notes"][0].startswith("one copy, synced")


async def test_under_apaches_controller_the_promise_has_conditions() -> None:
    async with cluster(started(), ours=False) as found:
        view, _ = await described(found)
        (words,) = view["guarantee"]["conditions"]
        assert words.startswith("the controllers are Apache RocketMQ's")


async def test_a_downgraded_group_shows_its_level() -> None:
    keys = {"ha_mode": "", "broker_role": "SYNC_MASTER", "in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}
    group = Group(3, **keys)
    group.elect(1)
    group.run(200)
    group.kill(3)
    group.run(20)
    async with cluster(group, dead_id=3) as found:
        view, _ = await described(found)
        assert (view["ackRule"]["needed"], view["ackRule"]["inSyncReplicas"]) == (2, 3)
        assert view["guarantee"]["notes"][0] == "downgraded: 2 of 3 replicas are needed now"


async def test_keys_that_differ_between_replicas_contradict() -> None:
    group = started()
    async with cluster(group) as found:
        code, ext, body = found[3].replies[Code.GET_BROKER_CONFIG]
        found[3].replies[Code.GET_BROKER_CONFIG] = (code, ext, body.replace(b"haMode=cp", b"haMode=ap"))
        view, exit_code = await described(found)
        assert exit_code == 1
        assert view["contradictions"] == [
            f"haMode differs between replicas: ap on {found[3].address}, cp on {found[4].address}"
        ]


async def test_a_java_master_promises_what_apache_promises() -> None:
    async with peers(2) as (names, java):
        java.replies[Code.GET_BROKER_CONFIG] = (0, {}, APACHE_KEYS.encode())
        as_namesrv(names, {"broker-a": {0: java.address}})
        done = await rmqha("describe", "group", "broker-a", "--namesrv", names.address, "-o", "json")
        view = json.loads(done.stdout)
        assert done.returncode == 0
        assert view["replicas"][0]["role"] == "APACHE"
        assert "the promise is Apache's" in view["guarantee"]["conditions"][0]
        one = await rmqha("describe", "broker", java.address)
        assert "a broker of Apache RocketMQ's" in one.stdout
        waits = await rmqha("explain-wait", "--namesrv", names.address)
        assert waits.returncode == 1
        assert "is Apache RocketMQ's, which does not tell for whom it waits" in waits.stdout


async def test_one_broker_by_its_address() -> None:
    group = started()
    async with cluster(group) as found:
        done = await rmqha("describe", "broker", found[3].address)
        assert done.returncode == 0
        assert "slave of broker-a, id 2, epoch 1" in done.stdout
        view = json.loads((await rmqha("describe", "broker", found[3].address, "-o", "json")).stdout)
        assert (view["brokerId"], view["guarantee"]["kind"]) == (2, "CP")


async def test_explain_wait_over_the_wire() -> None:
    group = started()
    group.cut = {(3, 1)}
    group.send(1)
    group.run(600)
    async with cluster(group) as found:
        done = await rmqha("explain-wait", "broker-a", "--namesrv", found[0].address, "-o", "json")
        (view,) = json.loads(done.stdout)["groups"]
        assert done.returncode == 1
        assert view["waits"]["count"] == 1
        assert any("waited for: replica 3" in line for line in view["sentences"])


@pytest.mark.parametrize("command", ["explain-wait", "describe cluster", "describe group broker-a"])
async def test_a_dead_name_server_hides_no_broker_of_the_directory(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    async with cluster(started()) as found:
        nodes = {"ns-1": NodeRecord("ns-1", NodeKind.NAMESRV.value, NOWHERE)}
        for number, peer in enumerate(found[2:], 1):
            name = f"broker-a-{number}"
            nodes[name] = NodeRecord(name, NodeKind.BROKER.value, peer.address, "", "broker-a")
        ClusterState(tmp_path, "c", "cp", str(tmp_path / "c.toml"), nodes).write()
        done = await rmqha(*command.split(), "-o", "json")
        assert done.returncode == 0, done.stderr
        assert "broker-a" in done.stdout
        assert f"no name server of {NOWHERE} tells the groups" in done.stderr
        assert "the brokers of the cluster directory were asked" in done.stderr
        given = await rmqha(*command.split(), "--namesrv", NOWHERE)
        assert (given.returncode, given.stdout) == (2, ""), "another cluster's name server was named"


async def test_a_silent_master_is_named() -> None:
    async with cluster(started(), dead_id=1) as found:
        done = await rmqha("explain-wait", "--namesrv", found[0].address)
        assert done.returncode == 1
        assert done.stdout.startswith("broker-a: its master does not answer: cannot connect")


async def test_a_topic_shows_its_queues_and_what_its_group_promises() -> None:
    table = {
        ObjectKey({"brokerName": "broker-a", "queueId": queue_id, "topic": "T"}): {
            "minOffset": 10, "maxOffset": 10 + queue_id, "lastUpdateTimestamp": 1_700_000_000_000,
        }
        for queue_id in (1, 0)
    }  # fmt: skip
    async with cluster(started()) as found:
        names, _, master, *_ = found
        route = {
            "brokerDatas": [{"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {0: master.address}}],
            "queueDatas": [{"brokerName": "broker-a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}],
        }
        names.replies[Code.GET_ROUTEINFO_BY_TOPIC] = (0, {}, dumps(route))
        master.replies[Code.GET_TOPIC_STATS_INFO] = (0, {}, dumps({"offsetTable": table}))
        config = {"topicName": "T", "order": True, "attributes": {"queue.type": "BatchCQ"}}
        master.replies[Code.GET_TOPIC_CONFIG] = (0, {}, dumps(config))
        done = await rmqha("describe", "topic", "T", "--namesrv", names.address, "-o", "json")
        assert done.returncode == 0, done.stderr
        (group,) = json.loads(done.stdout)["groups"]
        assert [(item["queueId"], item["minOffset"], item["maxOffset"]) for item in group["queues"]] == [
            (0, 10, 10),
            (1, 10, 11),
        ]
        assert (group["kind"], group["permission"]) == ("CP", "read and write")
        assert group["attributes"] == {"queue.type": "BatchCQ", "order": True}
        text = await rmqha("describe", "topic", "T", "--namesrv", names.address)
        assert text.stdout.startswith("T in broker-a: 1 message\n")
        assert "CP: a message is acknowledged when every member" in text.stdout
        master.replies[Code.GET_TOPIC_STATS_INFO] = (0, {}, b"[]")
        broken = await rmqha("describe", "topic", "T", "--namesrv", names.address)
        assert broken.returncode == 1
        assert "cannot be read" in broken.stdout
        names.replies[Code.GET_ROUTEINFO_BY_TOPIC] = (ResponseCode.TOPIC_NOT_EXIST, {}, b"")
        unknown = await rmqha("describe", "topic", "T", "--namesrv", names.address)
        assert unknown.returncode == 2
        assert "know no topic 'T'" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("describe", "group", "broker-b"), "know no group 'broker-b', did you mean broker-a?"),
        (("explain-wait", "broker-b"), "know no group 'broker-b', did you mean broker-a?"),
        (("describe", "cluster", "other"), "know no cluster 'other'; they know the clusters: c"),
    ],
)
async def test_unknown_names_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    async with cluster(started()) as found:
        done = await rmqha(*arguments, "--namesrv", found[0].address)
        assert done.returncode == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


async def test_nobody_to_ask_is_one_sentence(tmp_path: Path) -> None:
    async with peers(1) as (names,):
        names.replies[Code.GET_BROKER_CLUSTER_INFO] = (0, {}, b"no json")
        as_strange = await rmqha("describe", "cluster", "--namesrv", names.address)
        as_namesrv(names, {"broker-a": {0: NOWHERE}})
        dead = [
            await rmqha("describe", "group", "broker-a", "--namesrv", names.address),
            await rmqha("explain-wait", "--namesrv", names.address),
            await rmqha("describe", "broker", NOWHERE),
            await rmqha("describe", "broker", "broker-a-1", directory=tmp_path),
            await rmqha("describe", "cluster", "--namesrv", NOWHERE),
        ]
        for done in (as_strange, *dead):
            assert done.returncode == 2, done
            assert done.stderr.count("\n") == 1
            assert done.stdout == ""
        assert "cannot be read" in as_strange.stderr


async def test_an_answer_that_cannot_be_read_is_that_brokers_error() -> None:
    async with cluster(started()) as found:
        found[4].replies[Code.RMQHA_GET_REPLICA_STATE] = (ResponseCode.SUCCESS, {}, b"[1]")
        view, code = await described(found)
        assert code == 0, "the master is well"
        assert "cannot be read: it is no JSON object" in view["replicas"][2]["error"]
