"""Admin: what it asks, and that answers of both kinds of peers, readable or not, come back as said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from rmqha.client.admin import Admin
from rmqha.client.route import NameServers, name_servers, parse_route
from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode as Code
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UnreachableError, UsageError
from rmqha.model.message import encode_properties
from rmqha.wire.command import Command
from tests.client.consumers.test_consumer import fill
from tests.client.fake import MAX_FRAME_BYTES, FakeCluster, encode_stored
from tests.store.support import message, open_store, sim_disk


class Peer:
    """Answers each request code with a prepared reply; remembers what was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.replies: dict[int, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[Command] = []

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.asked.append(command)
            session.send(command.reply(*self.replies.get(command.code, (3, {}, b"")), remark="scripted"))


@asynccontextmanager
async def peers(count: int) -> AsyncIterator[list[Peer]]:
    async with trio.open_nursery() as nursery:
        found = [Peer() for _ in range(count)]
        for peer in found:

            async def run(task_status: trio.TaskStatus[int], peer: Peer = peer) -> None:
                await serve(peer, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)

            peer.address = f"127.0.0.1:{await nursery.start(run)}"
        yield found
        nursery.cancel_scope.cancel()


async def test_clusters_and_routes() -> None:
    async with FakeCluster({"g-a": 2, "g-b": 1}) as fake, Admin(fake.namesrv) as admin:
        a, b = fake.groups["g-a"], fake.groups["g-b"]
        assert await admin.cluster_info() == {
            "brokers": {
                "g-a": {"cluster": "c", "addresses": {0: a.nodes[1].address, 2: a.nodes[2].address}},
                "g-b": {"cluster": "c", "addresses": {0: b.nodes[1].address}},
            },
            "clusters": {"c": ["g-a", "g-b"]},
        }
        route = await admin.route("T")
        assert route["brokers"]["g-a"] == {0: a.nodes[1].address, 2: a.nodes[2].address}
        assert route["queues"]["g-b"] == {"read": 4, "write": 4, "perm": 6}
        with pytest.raises(RemoteError, match="answered 17"):
            await admin.route("Nowhere")


async def test_states_of_brokers_and_controllers() -> None:
    async with peers(1) as (peer,), Admin(peer.address) as admin:
        events = [{"at_ms": 1, "event": "writable"}]
        peer.replies = {
            Code.RMQHA_GET_REPLICA_STATE: (0, {}, b'{"role":"MASTER"}'),
            Code.RMQHA_GET_HISTORY: (0, {}, json.dumps({"events": events}).encode()),
            Code.RMQHA_GET_CONTROLLER_STATE: (0, {}, b'{"groups":{}}'),
            Code.GET_BROKER_EPOCH_CACHE: (0, {}, b'{"epochList":[],"maxOffset":7}'),
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (0, {}, b'{"topicList":["b","a"]}'),
        }
        assert await admin.replica_state(peer.address) == {"role": "MASTER"}
        assert await admin.history(peer.address) == events
        assert await admin.controller_state(peer.address) == {"groups": {}}
        assert (await admin.epochs(peer.address))["maxOffset"] == 7
        assert await admin.topics() == ["a", "b"]
        peer.replies[Code.RMQHA_GET_HISTORY] = (0, {}, b"{}")
        peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, b"[]")
        for question in (admin.history(peer.address), admin.replica_state(peer.address)):
            with pytest.raises(RemoteProtocolError):
                await question
        assert admin.statistics() == {"asked": 6, "failed": 0}


def stored(*keys: str) -> list[bytes]:
    """A record for each, one second apart."""
    store = open_store(sim_disk())
    for number, key in enumerate(keys):
        store.append(message(number, properties=encode_properties({"KEYS": key})), number * 1000)
    return [bytes(store.record_at(at) or b"") for at in range(store.max_phy_offset) if store.record_at(at)]


def route_of(**groups: Peer) -> tuple[int, dict[str, str], bytes]:
    data = [{"brokerName": name, "brokerAddrs": {"0": peer.address}} for name, peer in groups.items()]
    queues = [{"brokerName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in groups]
    return 0, {}, json.dumps({"brokerDatas": data, "queueDatas": queues}).encode()


async def test_messages_by_key_come_from_all_groups() -> None:
    async with peers(2) as (one, two), Admin(one.address) as admin:
        one.replies[Code.GET_ROUTEINFO_BY_TOPIC] = route_of(a=one, b=two)
        first, second, third = stored("k", "k", "k")
        one.replies[Code.QUERY_MESSAGE] = (0, {}, first + third)
        two.replies[Code.QUERY_MESSAGE] = (0, {}, second)
        found = await admin.query_message("T", "k", 9, 5, 7000)
        assert [(each.broker_name, each.stored_at_ms) for each in found] == [("a", 2000), ("b", 1000), ("a", 0)]
        (asked,) = [command for command in two.asked if command.code == Code.QUERY_MESSAGE]
        assert asked.ext == {
            "topic": "T",
            "key": "k",
            "maxNum": "9",
            "beginTimestamp": "5",
            "endTimestamp": "7000",
            "indexType": "K",
            "_UNIQUE_KEY_QUERY": "false",
        }
        two.replies[Code.QUERY_MESSAGE] = (22, {}, b"")
        assert len(await admin.query_message("T", "k", index_type="U")) == 2
        assert two.asked[-1].ext["_UNIQUE_KEY_QUERY"] == "true"
        two.replies[Code.QUERY_MESSAGE] = (1, {}, b"")
        with pytest.raises(RemoteError, match="answered 1: scripted"):
            await admin.query_message("T", "k")
        masterless = {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"2": one.address}}], "queueDatas": []}
        one.replies[Code.GET_ROUTEINFO_BY_TOPIC] = (0, {}, json.dumps(masterless).encode())
        with pytest.raises(UnreachableError, match="group a has no master"):
            await admin.query_message("T", "k")


def cluster_of(**groups: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    table = {name: {"brokerName": name, "brokerAddrs": addresses} for name, addresses in groups.items()}
    return 0, {}, json.dumps({"brokerAddrTable": table, "clusterAddrTable": {"c": list(groups)}}).encode()


async def test_topics_are_made_and_deleted_at_the_masters() -> None:
    async with peers(2) as (one, two), Admin(one.address) as admin:
        one.replies = {
            Code.GET_BROKER_CLUSTER_INFO: cluster_of(a={"0": one.address}, b={"0": two.address, "2": "127.0.0.1:1"}),
            Code.UPDATE_AND_CREATE_TOPIC: (0, {}, b""),
            Code.DELETE_TOPIC_IN_BROKER: (0, {}, b""),
            Code.DELETE_TOPIC_IN_NAMESRV: (0, {}, b""),
        }
        two.replies = dict(one.replies)
        assert await admin.create_topic("T", queue_count=3, groups=["b"], attributes={"queue.type": "BatchCQ"}) == ["b"]
        (asked,) = two.asked
        assert (asked.ext["topic"], asked.ext["readQueueNums"], asked.ext["writeQueueNums"]) == ("T", "3", "3")
        assert asked.ext["attributes"] == "+queue.type=BatchCQ"
        assert await admin.create_topic("T") == await admin.delete_topic("T") == ["a", "b"]
        assert [command.code for command in two.asked][1:] == [
            Code.UPDATE_AND_CREATE_TOPIC,
            Code.DELETE_TOPIC_IN_BROKER,
        ]
        assert one.asked[-1].code == Code.DELETE_TOPIC_IN_NAMESRV
        with pytest.raises(UsageError, match="must consist of"):
            await admin.create_topic("no/slash")
        one.replies[Code.GET_BROKER_CLUSTER_INFO] = cluster_of(a={"0": one.address}, b={"2": two.address})
        seen = len(one.asked)
        with pytest.raises(UnreachableError, match="group b has no master"):
            await admin.create_topic("T")
        assert {command.code for command in one.asked[seen:]} == {Code.GET_BROKER_CLUSTER_INFO}


async def test_how_far_a_group_is_in_each_queue() -> None:
    async with peers(1) as (peer,), Admin(peer.address) as admin:
        queue = b'{"brokerName":"a","queueId":%d,"topic":"T"}:{"brokerOffset":%d,"consumerOffset":%d}'
        table = b'{"consumeTps":0.0,"offsetTable":{' + queue % (1, 7, 7) + b"," + queue % (0, 9, 4) + b"}}"
        peer.replies = {
            Code.GET_ROUTEINFO_BY_TOPIC: route_of(a=peer),
            Code.GET_CONSUME_STATS: (0, {}, table),
        }
        assert await admin.progress("G", "T") == [
            {"broker": "a", "queue": 0, "committed": 4, "end": 9, "lag": 5},
            {"broker": "a", "queue": 1, "committed": 7, "end": 7, "lag": 0},
        ]
        peer.replies[Code.GET_CONSUME_STATS] = (0, {}, b'{"offsetTable":{"x":1}}')
        with pytest.raises(RemoteProtocolError, match=r"the progress of group G of \S+ is not readable"):
            await admin.progress("G", "T")


async def test_orders_go_to_the_leader_whichever_controller_is_named() -> None:
    async with peers(2) as (follower, leader), Admin(follower.address) as admin:
        follower.replies = {Code.CONTROLLER_GET_METADATA_INFO: (0, {"controllerLeaderAddress": leader.address}, b"")}
        leader.replies = {
            Code.CONTROLLER_ELECT_MASTER: (0, {"masterBrokerId": "2"}, b'{"syncStateSet":[2]}'),
            Code.CONTROLLER_GET_SYNC_STATE_DATA: (0, {}, b'{"replicasInfoTable":{}}'),
        }
        elected = await admin.elect_master(follower.address, "c", "g-a", 2, unclean=True)
        assert elected == {"masterBrokerId": "2", "syncStateSet": [2]}
        assert leader.asked[0].ext == {
            "clusterName": "c",
            "brokerName": "g-a",
            "brokerId": "2",
            "designateElect": "true",
            "unclean": "true",
        }
        assert await admin.sync_state(follower.address, ["g-a"]) == {"replicasInfoTable": {}}
        assert json.loads(bytes(leader.asked[1].body)) == ["g-a"]


async def test_who_does_not_answer_or_refuses() -> None:
    async with peers(1) as (peer,), Admin(peer.address) as admin:
        with pytest.raises(RemoteError, match="answered 3: scripted"):
            await admin.replica_state(peer.address)
        with pytest.raises(UnreachableError, match=r"cannot connect to 127\.0\.0\.1:1"):
            await admin.replica_state("127.0.0.1:1")
        assert admin.statistics() == {"asked": 2, "failed": 2}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"brokerDatas":1,"queueDatas":[]}', b'{"brokerDatas":[{}],"queueDatas":[]}',
     b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"y"}}],"queueDatas":[]}'],
)  # fmt: skip
def test_a_route_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_route("T", body, "h:9")


def test_a_route_with_unquoted_ids_reads_like_one_with_quoted() -> None:
    text = '{"brokerDatas":[{"brokerAddrs":{%s:"h:1",%s:"h:2"},"brokerName":"a"}],"queueDatas":[]}'
    quoted, unquoted = (text % ('"0"', '"2"')).encode(), (text % ("0", "2")).encode()
    assert parse_route("T", unquoted, "h:9") == parse_route("T", quoted, "h:9")


def test_name_server_lists() -> None:
    assert name_servers("a:1; b:2,c:3") == ["a:1", "b:2", "c:3"]
    for wrong in ("", ";", "a", "a:b"):
        with pytest.raises(UsageError):
            name_servers(wrong)


async def test_messages_before_one_that_cannot_be_read_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster({"g-a": 1}) as fake, Admin(fake.namesrv) as admin:
        fill(fake.group, "abc", queue_count=1)
        bad = fake.group.stored[2]
        monkeypatch.setattr(
            "tests.client.fake.encode_stored", lambda item: bytes(99) if item is bad else encode_stored(item)
        )
        place = fake.group.master.address, "g-a", "T", 0
        found, following = await admin.read_queue(*place, 0, group="x")
        assert ([message.body for message in found], following) == ([b"a", b"b"], 2)
        with pytest.raises(RemoteProtocolError, match=r"^T at g-a:0, from 2 on: group g-a sent what is no record"):
            await admin.read_queue(*place, 2, group="x")


async def test_a_broker_that_is_asked_as_a_name_server_is_named_as_none() -> None:
    class Broker:
        async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type 105 not supported")

    asked = NameServers(Broker(), "127.0.0.1:1;127.0.0.1:2")
    with pytest.raises(UnreachableError, match=r"127.0.0.1:1 is no name server: it knows no request 105; "):
        await asked.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
