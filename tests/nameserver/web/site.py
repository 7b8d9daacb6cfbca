"""A real name server with its page, beside peers that answer as a cluster would."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
import trio

from nameserver.config import NamesrvConfig
from nameserver.server import run_name_server
from rmqha.host.http.endpoint import expose
from rmqha.host.net.remoting import RemotingClient
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode as Code
from rmqha.ops.local.preflight import free_ports
from tests.client.test_admin import Peer, peers
from tests.ha.group import Group
from tests.nameserver.registration import register_broker_request
from tests.support.patience import HANG_MS

GROUP = "broker-a"
TOPIC = "T"


@dataclass
class Site:
    """`brokers` are replicas 1, 2, … of GROUP; `events` what the name server has traced."""

    port: int
    namesrv: str
    controller: Peer
    brokers: list[Peer]
    tracer: HostTracer

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        return await self._answer(*await self._open(path, headers or {}))

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """The same, for a request with a body."""
        return await self._answer(*await self._open(path, headers, body))

    async def _answer(self, stream: trio.SocketStream, http: h11.Connection) -> tuple[int, dict[str, str], bytes]:
        body, status, found = b"", 0, {}
        async with stream:
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    found = {name.decode(): value.decode() for name, value in event.headers}
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return status, found, body

    async def _open(
        self, path: str, headers: dict[str, str], posted: bytes | None = None
    ) -> tuple[trio.SocketStream, h11.Connection]:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        http = h11.Connection(h11.CLIENT)
        head = {"Host": "localhost", "Connection": "close", **headers}
        if posted is not None:
            head["Content-Length"] = str(len(posted))
        method = "GET" if posted is None else "POST"
        request = http.send(h11.Request(method=method, target=path, headers=list(head.items()))) or b""
        if posted:
            request += http.send(h11.Data(data=posted)) or b""
        await stream.send_all(request + (http.send(h11.EndOfMessage()) or b""))
        return stream, http

    async def documents(self, path: str = "/events") -> AsyncGenerator[dict[str, Any], None]:
        """The live documents, as an EventSource reads them."""
        async with aclosing(self.events(path)) as events:
            async for name, value in events:
                if name == "message":
                    yield value

    async def events(self, path: str = "/events") -> AsyncGenerator[tuple[str, Any], None]:
        """Every event's name and value."""
        stream, http = await self._open(path, {})
        text = ""
        async with stream:
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.receive_some(65536))
                    continue
                if isinstance(event, h11.Response):
                    assert event.status_code == 200, event
                    continue
                assert isinstance(event, h11.Data), f"the stream has ended: {event!r}"
                *whole, text = (text + event.data.decode()).split("\n\n")
                for block in whole:
                    head, _, data = block.rpartition("data: ")
                    yield head.removeprefix("event: ").strip() or "message", json.loads(data)


def answer_as(site: Site, group: Group) -> None:
    """The peers tell what the machines of `group` would, the controller what it would of them."""
    rows = []
    for number, peer in enumerate(site.brokers, 1):
        machine = group[number]
        keys = {
            **machine.config.to_properties(),
            "controllerAddr": site.controller.address,
            "namesrvAddr": site.namesrv,
        }
        keys |= {"brokerName": GROUP, "brokerClusterName": "c"}
        peer.replies[Code.GET_BROKER_CONFIG] = (0, {}, "".join(f"{key}={keys[key]}\n" for key in keys).encode())
        state = machine.replica.state(group.now_ms).to_json() | {"brokerName": GROUP}
        peer.replies[Code.RMQHA_GET_REPLICA_STATE] = (0, {}, json.dumps(state).encode())
        peer.replies[Code.RMQHA_GET_HISTORY] = (0, {}, json.dumps({"events": []}).encode())
        more = {"isMaster": number == 1, "inSyncStateSet": True, "asyncLearner": False, "drained": False}
        rows.append({"brokerId": number, "address": peer.address, **more})
    told = {
        "clusterName": "c",
        "masterBrokerId": 1,
        "masterAddress": site.brokers[0].address,
        "masterEpoch": 1,
        "syncStateSet": [1, 2, 3],
        "syncStateSetEpoch": 3,
        "eligible": [],
        "totalReplicas": 3,
        "nextTotalReplicas": None,
        "whyNoMaster": None,
        "elections": [],
        "replicas": rows,
    }
    raft = {"node": "n0", "role": "LEADER", "term": 2, "leader": "n0", "voters": ["n0"], "members": [], "learners": []}
    state = {"leading": True, "raft": {**raft, "commitIndex": 9}, "groups": {GROUP: told}}
    site.controller.replies[Code.RMQHA_GET_CONTROLLER_STATE] = (0, {}, json.dumps(state).encode())
    quorum = {"addresses": {"n0": site.controller.address}}
    site.controller.replies[Code.RMQHA_GET_QUORUM] = (0, {}, json.dumps(quorum).encode())
    election = {"masterEpoch": 1, "brokerId": 1, "atMs": 1_795_000_000_000, "causeText": "first election of the group"}
    explained = told | {"answer": "replica 1 is master of epoch 1", "elections": [election | {"reason": "lowest id"}]}
    site.controller.replies[Code.RMQHA_EXPLAIN_GROUP] = (0, {}, json.dumps(explained).encode())


async def register(client: RemotingClient, namesrv: str, broker_id: int, address: str, topic: str = TOPIC) -> None:
    """As long as the client is open: a broker without lite heartbeats goes with its connection."""
    command = register_broker_request(
        cluster_name="c",
        broker_name=GROUP,
        broker_id=broker_id,
        address=address,
        ha_address=address,
        topic_config_table={topic: {"perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}},
        data_version={"counter": 1, "stateVersion": 1, "timestamp": 5},
    )
    assert (await client.call(namesrv, command, HANG_MS)).code == 0


@asynccontextmanager
async def page(group: Group | None = None, *, topic: str = TOPIC, **keys: Any) -> AsyncIterator[Site]:
    """The name server knows three replicas of GROUP with one topic. Without `group` the peers are as Apache's."""
    tracer = HostTracer(write=lambda _: None)
    port = free_ports(1)
    config = NamesrvConfig(listen_port=0, http_port=port, **keys)
    async with peers(4) as (controller, *brokers), trio.open_nursery() as nursery, RemotingClient() as client:

        async def run(task_status: trio.TaskStatus[int]) -> None:
            await run_name_server(config, tracer, exposure=exposure, task_status=task_status)

        exposure = await expose(config, tracer, ("namesrv",), nursery)
        namesrv = f"127.0.0.1:{await nursery.start(run)}"
        site = Site(port, namesrv, controller, brokers, tracer)
        for number, peer in enumerate(brokers, 1):
            await register(client, namesrv, 0 if number == 1 else number, peer.address, topic)
        if group is not None:
            answer_as(site, group)
        yield site
        nursery.cancel_scope.cancel()


def with_consumers(site: Site, group: str = "billing") -> None:
    """The master knows a consumer group that has read 4 of the 9 messages in queue 0 of TOPIC and 0 of 2 in queue 1; it
    has no member."""
    rows = {0: {"minOffset": 0, "maxOffset": 9}, 1: {"minOffset": 0, "maxOffset": 2}}
    read = {0: {"brokerOffset": 9, "consumerOffset": 4}, 1: {"brokerOffset": 2, "consumerOffset": 0}}

    def table(found: dict[int, dict[str, int]]) -> tuple[int, dict[str, str], bytes]:
        keys = {number: json.dumps({"brokerName": GROUP, "queueId": number, "topic": TOPIC}) for number in found}
        more = {"lastTimestamp": 5, "lastUpdateTimestamp": 5}
        return 0, {}, json.dumps({"offsetTable": {keys[number]: row | more for number, row in found.items()}}).encode()

    for peer in site.brokers:
        peer.replies |= {
            Code.GET_SUBSCRIPTIONGROUP_CONFIG: (0, {}, json.dumps({"groupName": group}).encode()),
            Code.GET_CONSUMER_CONNECTION_LIST: (206, {}, b""),
            Code.QUERY_TOPICS_BY_CONSUMER: (0, {}, json.dumps({"topicList": [TOPIC]}).encode()),
            Code.GET_CONSUME_STATS: table(read),
            Code.QUERY_CONSUMER_OFFSET: (0, {"offset": "0"}, b""),
            Code.GET_TOPIC_STATS_INFO: table(rows),
            Code.INVOKE_BROKER_TO_RESET_OFFSET: (0, {}, b"{}"),
        }
        peer.replies.setdefault(Code.GET_BROKER_CONFIG, (0, {}, b"useServerSideResetOffset=true\n"))
