"""A scripted cluster on real sockets: name servers and broker groups whose replicas share one log in memory."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType

import trio

from rmqha.host.net.remoting import serve
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties, offset_message_id, tags_code
from rmqha.wire.command import Command

MAX_FRAME_BYTES = 16 * 1024 * 1024
HOST = (b"\x7f\x00\x00\x01", 10911)


class Do(Enum):
    """What a broker does with one send."""

    STORE = auto()
    CLOSE_BEFORE = auto()
    """Close the connection, nothing stored."""
    CLOSE_AFTER = auto()
    """Store, then close without an answer."""
    HANG = auto()


Answer = Do | tuple[int, bool]
"""Or a response code, and whether the message is stored all the same."""
Script = Callable[["Node", Command], Answer]


@dataclass
class Stored:
    """One message in a group's log."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: dict[str, str]
    sys_flag: int
    ext: dict[str, str]


@dataclass
class Group:
    name: str
    nodes: dict[int, Node] = field(default_factory=dict)
    master_id: int | None = None
    stored: list[Stored] = field(default_factory=list)
    read_queue_count: int = 4
    write_queue_count: int = 4
    perm: int = 6
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    members: dict[str, dict[str, Session]] = field(default_factory=lambda: defaultdict(dict))
    ends: list[Command] = field(default_factory=list)
    """Requests 37 that were taken."""

    def queue(self, queue_id: int, topic: str = "") -> list[Stored]:
        """Retry topics are topics of their own, the others share one set of queues."""
        retry = topic if topic.startswith("%RETRY%") else ""
        return [
            item
            for item in self.stored
            if item.queue_id == queue_id and (item.topic == retry if retry else item.topic[:1] != "%")
        ]

    @property
    def master(self) -> Node:
        assert self.master_id is not None
        return self.nodes[self.master_id]


class Node:
    """One replica; `script` decides on sends, `pull_script` may answer pulls instead of the log."""

    def __init__(self, group: Group, broker_id: int) -> None:
        self.group = group
        self.broker_id = broker_id
        self.address = ""
        self.scope = trio.CancelScope()
        self.script: Script = lambda node, command: Do.STORE
        self.end_script: Script = lambda node, command: Do.STORE
        self.pull_script: Callable[[Command], Command | None] = lambda command: None
        self.pop_script: Callable[[Command], Command | None] = lambda command: None
        """Answers 200050, 200051 and 200053; None: no answer."""
        self.holds_sends: bool | None = None
        """None: it does not know the question (52035), as Apache's brokers."""
        self.requests: list[Command] = []
        self.producers: dict[str, tuple[str, Session]] = {}
        """By client id: the group, and the connection of the last heartbeat."""
        self.heard: dict[tuple[str, str], Session] = {}
        """By consumer group and client id: the connection of the last heartbeat."""
        self.answers_heartbeats = True
        self.asked = trio.Event()
        self.held: list[tuple[Session, Command]] = []

    def kill(self) -> None:
        self.scope.cancel()

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None:
        self.held = [item for item in self.held if item[0] is not session]
        self.heard = {place: owner for place, owner in self.heard.items() if owner is not session}
        for group, members in self.group.members.items():
            gone = [client for client, owner in members.items() if owner is session]
            for client in gone:
                # the others still know it, whichever heard of it last
                known = [
                    node.heard[group, client] for node in self.group.nodes.values() if (group, client) in node.heard
                ]
                if known:
                    members[client] = known[0]
                else:
                    del members[client]
                    self._notify(group)

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            reply = self._answer(session, command)
            if reply is not None and not command.is_oneway:
                session.send(reply)
        self.asked.set()

    def _answer(self, session: Session, command: Command) -> Command | None:
        match command.code:
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._send(session, command)
            case RequestCode.PULL_MESSAGE:
                return self.pull_script(command) or self._pull(session, command)
            case RequestCode.POP_MESSAGE | RequestCode.ACK_MESSAGE | RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
                return self.pop_script(command)
            case RequestCode.HEART_BEAT:
                value = json.loads(bytes(command.body))
                for producer in value["producerDataSet"]:
                    self.producers[value["clientID"]] = producer["groupName"], session
                for consumer in value["consumerDataSet"]:
                    name = consumer["groupName"]
                    known = value["clientID"] in self.group.members[name]
                    self.group.members[name][value["clientID"]] = self.heard[name, value["clientID"]] = session
                    if not known:
                        self._notify(name)
                return command.reply() if self.answers_heartbeats else None
            case RequestCode.UNREGISTER_CLIENT:
                if "producerGroup" in command.ext:
                    self.producers.pop(command.ext["clientID"], None)
                    return command.reply()
                name = command.ext["consumerGroup"]
                self.group.members[name].pop(command.ext["clientID"], None)
                self._notify(name)
                return command.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                ids = list(self.group.members[command.ext["consumerGroup"]])
                return command.reply(body=json.dumps({"consumerIdList": ids}).encode())
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                return self._send_back(command)
            case RequestCode.END_TRANSACTION:
                return self._end(session, command)
            case RequestCode.RMQHA_HOLDS_SENDS if self.holds_sends is not None:
                return command.reply(ext={"holds": "true" if self.holds_sends else "false"})
            case _:
                return self._offsets(command)

    def _end(self, session: Session, command: Command) -> Command | None:
        answer = self.end_script(self, command)
        if self.group.master_id != self.broker_id:
            return command.reply(ResponseCode.SLAVE_NOT_AVAILABLE, remark="not master")
        if answer is Do.CLOSE_BEFORE:
            session.close()
            return None
        if isinstance(answer, tuple):
            return command.reply(answer[0], remark=f"scripted {answer[0]}")
        self.group.ends.append(command)
        return command.reply()

    def _send_back(self, command: Command) -> Command:
        """Stored again at once, whatever the delay; the fake's physical offsets are queue offsets times 1000."""
        if self.group.master_id != self.broker_id:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="not master")
        ext = command.ext
        failed = next(
            item for item in self.group.stored
            if item.queue_offset * 1000 == int(ext["offset"]) and item.queue_id == int(ext["queueId"])
        )  # fmt: skip
        topic = f"%RETRY%{ext['group']}"
        properties = {**failed.properties, "RETRY_TOPIC": ext["originTopic"], "DELAY": ext["delayLevel"]}
        offset = len(self.group.queue(0, topic))
        self.group.stored.append(Stored(topic, 0, offset, failed.body, properties, failed.sys_flag, dict(ext)))
        for node in self.group.nodes.values():
            node.wake()
        return command.reply()

    def _offsets(self, command: Command) -> Command:
        ext = command.ext
        queue_id = int(ext.get("queueId", 0))
        key = ext.get("consumerGroup", ""), ext.get("topic", ""), queue_id
        match command.code:
            case RequestCode.QUERY_CONSUMER_OFFSET:
                if key not in self.group.offsets:
                    return command.reply(ResponseCode.QUERY_NOT_FOUND)
                return command.reply(ext={"offset": str(self.group.offsets[key])})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.group.offsets[key] = int(ext["commitOffset"])
                return command.reply()
            case RequestCode.GET_MAX_OFFSET:
                return command.reply(ext={"offset": str(len(self.group.queue(queue_id, ext["topic"])))})
            case RequestCode.GET_MIN_OFFSET:
                return command.reply(ext={"offset": "0"})
            case _:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _notify(self, consumer_group: str) -> None:
        for session in self.group.members[consumer_group].values():
            session.send(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": consumer_group}, flag=2, opaque=7)
            )

    def _send(self, session: Session, command: Command) -> Command | None:
        action = self.script(self, command)
        if self.group.master_id != self.broker_id and action is Do.STORE:
            return command.reply(ResponseCode.NO_PERMISSION, remark="not master")
        match action:
            case Do.STORE:
                return self._stored_reply(command, ResponseCode.SUCCESS)
            case Do.CLOSE_BEFORE | Do.CLOSE_AFTER:
                if action is Do.CLOSE_AFTER:
                    self._store(command)
                session.close()
                return None
            case Do.HANG:
                return None
            case (code, keeps):
                if keeps:
                    return self._stored_reply(command, code)
                return command.reply(code, remark=f"scripted {code}")

    def _stored_reply(self, command: Command, code: int) -> Command:
        first = self._store(command)
        ext = {
            "msgId": offset_message_id(HOST, first.queue_offset),
            "queueId": str(first.queue_id),
            "queueOffset": str(first.queue_offset),
        }
        return command.reply(code, ext)

    def _store(self, command: Command) -> Stored:
        ext, queue_id = command.ext, int(command.ext["e"])
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            parts = list(split_batch(bytes(command.body)))
        else:
            parts = [(bytes(command.body), decode_properties(ext["i"].encode()))]
        for body, properties in parts:
            offset = len(self.group.queue(queue_id))
            self.group.stored.append(Stored(ext["b"], queue_id, offset, body, properties, int(ext["f"]), dict(ext)))
        for node in self.group.nodes.values():
            node.wake()
        return self.group.stored[-len(parts)]

    def wake(self) -> None:
        """Answer held pulls."""
        held, self.held = self.held, []
        for session, command in held:
            reply = self._pull(session, command)
            if reply is not None:
                session.send(reply)

    def _pull(self, session: Session, command: Command) -> Command | None:
        ext = command.ext
        offset, queue = int(ext["queueOffset"]), self.group.queue(int(ext["queueId"]), ext["topic"])
        answer = {"minOffset": "0", "maxOffset": str(len(queue)), "suggestWhichBrokerId": "0"}
        if offset > len(queue):
            answer["nextBeginOffset"] = str(len(queue))
            return command.reply(ResponseCode.PULL_OFFSET_MOVED, answer)
        found = queue[offset : offset + min(int(ext["maxMsgNums"]), 3)]
        if not found:
            self.held.append((session, command))
            return None
        answer["nextBeginOffset"] = str(offset + len(found))
        wanted = {tag.strip() for tag in ext["subscription"].split("||")}
        body = b"".join(
            encode_stored(item)
            for item in found
            if "*" in wanted or tags_code(item.properties.get("TAGS")) in {tags_code(tag) for tag in wanted}
        )
        code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
        return command.reply(code, answer, body)


def encode_stored(item: Stored) -> bytes:
    """The record as a broker would have it in its log, laid out here by hand: formats.md §2, version 1, IPv4."""
    properties = "".join(f"{name}\x01{value}\x02" for name, value in item.properties.items()).encode()
    topic = item.topic.encode()
    size = 91 + len(item.body) + len(topic) + len(properties)
    crc = zlib.crc32(item.body) & 0x7FFFFFFF
    head = struct.pack(
        ">iIIiiqqiq", size, 0xDAA320A7, crc, item.queue_id, 0, item.queue_offset, item.queue_offset * 1000,
        item.sys_flag, 1_000,
    )  # fmt: skip
    host = HOST[0] + struct.pack(">i", HOST[1])
    middle = host + struct.pack(">q", 2_000) + host + struct.pack(">iqi", 0, 0, len(item.body))
    return b"".join(
        (head, middle, item.body, bytes((len(topic),)), topic, struct.pack(">H", len(properties)), properties)
    )


def split_batch(data: bytes) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Read the body of request 320 as a broker does."""
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4])
        assert data[position + 4 : position + 16] == bytes(12)
        body_size = int.from_bytes(data[position + 16 : position + 20])
        body = data[position + 20 : position + 20 + body_size]
        at = position + 20 + body_size
        properties_size = int.from_bytes(data[at : at + 2])
        properties = data[at + 2 : at + 2 + properties_size]
        assert at + 2 + properties_size == position + size
        yield body, decode_properties(properties)
        position += size


class NameServer:
    """Answers 105 from the groups' present state, or from `frozen` ones to play a name server that lags."""

    def __init__(self, groups: dict[str, Group]) -> None:
        self.groups = groups
        self.address = ""
        self.scope = trio.CancelScope()
        self.topics: set[str] = {"T"}
        self.auto_create = False
        self.silent = False
        self.frozen: bytes | None = None
        self.asked = 0

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.asked += 1
            if not self.silent:
                session.send(self._answer(command))

    def _answer(self, command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(body=self._cluster().encode())
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return command.reply(body=json.dumps({"topicList": sorted(self.topics)}).encode())
        topic = command.ext["topic"]
        if topic in self.topics or (topic == "TBW102" and self.auto_create):
            return command.reply(body=self.frozen or self.route())
        return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info for {topic}")

    def _cluster(self) -> str:
        """As a Java name server writes it: broker ids stand without quotes."""
        brokers = ",".join(
            f'"{group.name}":{{"brokerAddrs":{{{self._ids(group)}}},"brokerName":"{group.name}","cluster":"c"}}'
            for group in self.groups.values()
        )
        return f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{{"c":{json.dumps(list(self.groups))}}}}}'

    def _ids(self, group: Group) -> str:
        return ",".join(f'{key}:"{value}"' for key, value in addresses(group).items())

    def route(self) -> bytes:
        alive = [group for group in self.groups.values() if group.nodes]
        return json.dumps(
            {
                "brokerDatas": [
                    {"brokerName": group.name, "cluster": "c", "brokerAddrs": addresses(group)} for group in alive
                ],
                "queueDatas": [
                    {
                        "brokerName": group.name,
                        "readQueueNums": group.read_queue_count,
                        "writeQueueNums": group.write_queue_count,
                        "perm": group.perm,
                        "topicSysFlag": 0,
                    }
                    for group in alive
                ],
            }
        ).encode()


def addresses(group: Group) -> dict[str, str]:
    return {str(0 if key == group.master_id else key): node.address for key, node in group.nodes.items()}


class FakeCluster:
    """Async context manager. `groups` maps names to their number of replicas; replica 1 starts as master."""

    def __init__(self, groups: dict[str, int] | None = None, name_servers: int = 1) -> None:
        self.groups = {name: Group(name) for name in groups or {"g-a": 2}}
        self._sizes = groups or {"g-a": 2}
        self.name_servers = [NameServer(self.groups) for _ in range(name_servers)]
        self._nursery_manager = trio.open_nursery()
        self._nursery: trio.Nursery

    @property
    def group(self) -> Group:
        return next(iter(self.groups.values()))

    @property
    def namesrv(self) -> str:
        return ";".join(server.address for server in self.name_servers)

    @property
    def stored(self) -> list[Stored]:
        return [item for group in self.groups.values() for item in group.stored]

    async def __aenter__(self) -> FakeCluster:
        self._nursery = await self._nursery_manager.__aenter__()
        for server in self.name_servers:
            await self._open(server)
        for group in self.groups.values():
            for broker_id in range(1, self._sizes[group.name] + 1):
                group.nodes[broker_id] = node = Node(group, broker_id)
                await self._open(node)
            group.master_id = 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.cancel_scope.cancel()
        if isinstance(error, Exception):
            await self._nursery_manager.__aexit__(None, None, None)
        else:
            await self._nursery_manager.__aexit__(kind, error, trace)

    async def _open(self, service: Node | NameServer) -> None:
        async def run(task_status: trio.TaskStatus[int]) -> None:
            with service.scope:
                await serve(service, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES, task_status=task_status)

        service.address = f"127.0.0.1:{await self._nursery.start(run)}"

    def fail_over(self, after_ms: int = 0, group: Group | None = None) -> None:
        """Kill the master; the next replica registers as master after a while."""
        chosen = group or self.group
        old_id = chosen.master_id
        assert old_id is not None
        chosen.nodes.pop(old_id).kill()
        chosen.master_id = None

        async def promote() -> None:
            await trio.sleep(after_ms / 1000)
            chosen.master_id = min(chosen.nodes)

        self._nursery.start_soon(promote)


class InTurn:
    """A script that plays a list of actions, then stores."""

    def __init__(self, *actions: Answer) -> None:
        self.actions = list(actions)

    def __call__(self, node: Node, command: Command) -> Answer:
        return self.actions.pop(0) if self.actions else Do.STORE
