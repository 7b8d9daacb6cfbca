"""Admin: requests to name servers, brokers and controllers, with answers as plain dicts. Control plane."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any

from rmqha.client.answers import number, parsing
from rmqha.client.consumers.expression import parse_tags
from rmqha.client.consumers.message import Message, MessageBatch, decode_messages
from rmqha.client.names import check_topic
from rmqha.client.route import NameServers, parse_route
from rmqha.host.access.process_security import Security
from rmqha.host.asking import blocking
from rmqha.host.asking.shell import Caller, open_client
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UnreachableError, UsageError
from rmqha.model.offset import MASTER_ID
from rmqha.store.index.index_key import INDEX_KEY_TYPE, INDEX_UNIQUE_TYPE
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

TIMEOUT_MS = 3_000
_SUBSCRIPTION_IN_REQUEST = 4
"""sysFlag of a pull that waits for nothing."""
ELECT_TIMEOUT_MS = 30_000
"""Time (ms) for an election: a directed switch waits until the target has caught up."""


class _NotOpen:
    """Connections of a client that is not open: every call fails."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command:
        """Raise UsageError: the client is not open."""
        raise UsageError(self._reason)


class Admin:
    """Client for administration; an async context manager. Every method raises UnreachableError, RemoteError (the peer
    answered with another code than success) or RemoteProtocolError (its answer is not readable)."""

    def __init__(self, namesrv: str, timeout_ms: int = TIMEOUT_MS, *, security: Security | None = None) -> None:
        """`namesrv`: "host:port" or several joined by ";". Raises UsageError if it is not."""
        self._namesrv = namesrv
        self._opened = open_client(security)
        self._client: Caller = _NotOpen("the client is not open: use it by `async with`")
        self._name_servers = NameServers(self._client, namesrv)
        self._timeout_ms = timeout_ms
        self._ask_count = 0
        self._failure_count = 0

    async def __aenter__(self) -> Admin:
        if not blocking.is_running():
            from rmqha.client.session import require_trio  # short commands load no event loop

            require_trio()
        self._client = await self._opened.__aenter__()
        self._name_servers = NameServers(self._client, self._namesrv)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client = _NotOpen("the client was closed: open another one")
        self._name_servers = NameServers(self._client, self._namesrv)
        await self._opened.__aexit__(kind, error, trace)

    async def cluster_info(self) -> dict[str, Any]:
        """Brokers and clusters that the name server knows: {"brokers": {brokerName: {"cluster", "addresses": {broker
        id: address}}}, "clusters": {name: [brokerName]}}; id 0 is the master."""
        address, body = await self._name_servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        value = _readable(address, body)
        with parsing(address, "the cluster list"):
            brokers = {
                str(name): {
                    "cluster": group.get("cluster", ""),
                    "addresses": {int(key): str(item) for key, item in sorted(group["brokerAddrs"].items())},
                }
                for name, group in value["brokerAddrTable"].items()
            }
            clusters = {str(name): sorted(members) for name, members in value["clusterAddrTable"].items()}
        return {"brokers": brokers, "clusters": clusters}

    async def route(self, topic: str) -> dict[str, Any]:
        """Route of a topic: {"topic", "brokers": {name: {id: address}}, "queues": {name: {"read", "write", "perm"}},
        "answered_by"}."""
        address, body = await self._name_servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = parse_route(topic, body, address)
        return {
            "topic": topic,
            "brokers": {name: dict(group) for name, group in route.addresses.items()},
            "queues": {
                data.broker_name: {"read": data.read_queue_count, "write": data.write_queue_count, "perm": data.perm}
                for data in route.queue_data
            },
            "answered_by": address,
        }

    async def topics(self) -> list[str]:
        """Names of all topics that the name server knows, sorted."""
        address, body = await self._name_servers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        names = _readable(address, body).get("topicList")
        if not isinstance(names, list):
            raise RemoteProtocolError(f"{address}: the topic list is not readable")
        return sorted(str(name) for name in names)

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 8,
        groups: Collection[str] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Make a topic, or change it, at the masters of `groups` (None: of all). Returns those groups' names, sorted.

        In CP the answer comes when each group's SyncStateSet holds the change. `attributes`: {"queue.type": "BatchCQ"}.
        Raises UsageError for a wrong name, UnreachableError for a group without a master or that there is not."""
        check_topic(topic)
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": ",".join(f"+{name}={value}" for name, value in (attributes or {}).items()),
        }
        masters = await self._masters(groups)
        for address in masters.values():
            await self.ask(address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(ext)))
        return sorted(masters)

    async def delete_topic(self, topic: str) -> list[str]:
        """Delete a topic at the masters of all groups and at all name servers. Returns the groups. If the topic is made
        again, its queues go on behind their old ends. Raises UnreachableError for a group without a master or a name
        server that does not answer."""
        masters = await self._masters(None)
        for address in masters.values():
            await self.ask(address, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        for address in self._name_servers.addresses:
            await self.ask(address, Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}))
        return sorted(masters)

    async def progress(self, group: str, topic: str) -> list[dict[str, Any]]:
        """Progress of a consumer group in each queue of a topic, sorted: {"broker", "queue", "committed", "end",
        "lag"}, the offsets of the next message to read and to be stored, and their difference."""
        found = []
        for name, replicas in (await self.route(topic))["brokers"].items():
            if MASTER_ID not in replicas:
                raise _no_master(name)
            command = Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
            address = replicas[MASTER_ID]
            answer = _readable(address, bytes((await self.ask(address, command)).body))
            with parsing(address, f"the progress of group {group}"):
                for place, row in answer["offsetTable"].items():
                    committed, end = int(row["consumerOffset"]), int(row["brokerOffset"])
                    queue = {"broker": str(place["brokerName"]), "queue": int(place["queueId"])}
                    found.append({**queue, "committed": committed, "end": end, "lag": end - committed})
        return sorted(found, key=lambda row: (row["broker"], row["queue"]))

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int) -> list[str]:
        """Let a consumer group go on from the messages stored at `timestamp_ms` or later, -1: from the end. Returns the
        broker groups. Members that are connected notice at their next pull. Raises UnreachableError for a group without
        a master."""
        ext = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"}
        masters = await self._masters(sorted((await self.route(topic))["brokers"]))
        for address in masters.values():
            await self.ask(address, Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, dict(ext)))
        return sorted(masters)

    async def _masters(self, groups: Collection[str] | None) -> dict[str, str]:
        """Address by group. Raises UnreachableError."""
        brokers = (await self.cluster_info())["brokers"]
        for name in brokers if groups is None else groups:
            if name not in brokers:
                raise UnreachableError(f"there is no group {name}; known are {', '.join(sorted(brokers)) or 'none'}")
            if MASTER_ID not in brokers[name]["addresses"]:
                raise _no_master(name)
        wanted = brokers if groups is None else groups
        return {name: brokers[name]["addresses"][MASTER_ID] for name in wanted}

    async def query_message(
        self,
        topic: str,
        key: str,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        index_type: str = INDEX_KEY_TYPE,
    ) -> list[Message]:
        """Messages of a topic by one of their keys, of all groups, the newest stored first; [] if there are none.

        `index_type` "K" compares KEYS and UNIQ_KEY, "U" UNIQ_KEY, "T" TAGS; each group gives the newest `max_count`, at
        most 64, that were stored in [begin_ms, end_ms]. Raises UnreachableError for a group without a master, since no
        slave is asked, and UsageError for a body whose compression needs a library that is not installed."""
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_count),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "indexType": index_type,
            "_UNIQUE_KEY_QUERY": str(index_type == INDEX_UNIQUE_TYPE).lower(),
        }
        found: list[Message] = []
        for name, group in (await self.route(topic))["brokers"].items():
            if MASTER_ID not in group:
                raise _no_master(name)
            try:
                answer = await self.ask(group[MASTER_ID], Command(RequestCode.QUERY_MESSAGE, dict(ext)))
            except RemoteError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                continue
            found += decode_messages(name, answer.body)
        found.sort(key=lambda message: (message.stored_at_ms, message.phy_offset), reverse=True)
        return found

    async def read_queue(
        self,
        address: str,
        broker_name: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        group: str,
        tags: str = "*",
        max_count: int = 32,
    ) -> tuple[list[Message], int]:
        """Messages of a queue from `offset` on and the offset to ask for next, which is `offset` again at the end. An
        offset that the queue no longer has becomes its first. `group` names the reader; nothing is committed. `tags`:
        "*" or "A || B". Messages before one that cannot be read are given; the next call raises the reason.

        Raises UsageError for another expression, and as `Consumer.receive` for a first message that cannot be read."""
        wanted = parse_tags(tags)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(max_count),
            "sysFlag": str(_SUBSCRIPTION_IN_REQUEST),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": tags,
            "subVersion": "0",
            "expressionType": "TAG",
            "bname": broker_name,
        }
        self._ask_count += 1
        answer = await self._client.call(address, Command(RequestCode.PULL_MESSAGE, ext), self._timeout_ms)
        next_offset = number(answer.ext, "nextBeginOffset", address, offset)
        match answer.code:
            case ResponseCode.SUCCESS:
                found = list[Message]()
                for view in MessageBatch(broker_name, answer.body, from_offset=offset, tags=wanted):
                    try:
                        found.append(view.message())
                    except (RemoteProtocolError, UsageError) as error:
                        if found:
                            return found, found[-1].queue_offset + 1
                        raise type(error)(f"{topic} at {broker_name}:{queue_id}, from {offset} on: {error}") from error
                return found, max(next_offset, offset)
            case ResponseCode.PULL_NOT_FOUND | ResponseCode.PULL_RETRY_IMMEDIATELY:
                return [], max(next_offset, offset)
            case ResponseCode.PULL_OFFSET_MOVED:
                return [], max(next_offset, offset)
        self._failure_count += 1
        raise RemoteError(answer.code, answer.remark or "", address)

    async def replica_state(self, address: str) -> dict[str, Any]:
        """State of a replica, from a broker of ours (52000)."""
        return await self._ask_json(address, RequestCode.RMQHA_GET_REPLICA_STATE)

    async def history(self, address: str) -> list[dict[str, Any]]:
        """The last traced events of any server of ours, oldest first (52001)."""
        events = (await self._ask_json(address, RequestCode.RMQHA_GET_HISTORY)).get("events")
        if not isinstance(events, list):
            raise RemoteProtocolError(f"{address}: the history is not readable")
        return events

    async def controller_state(self, address: str) -> dict[str, Any]:
        """State of a controller of ours and of its groups (52003)."""
        return await self._ask_json(address, RequestCode.RMQHA_GET_CONTROLLER_STATE)

    async def epochs(self, address: str) -> dict[str, Any]:
        """A broker's epoch history (1007): epochList of epoch, startOffset and endOffset, and maxOffset."""
        return await self._ask_json(address, RequestCode.GET_BROKER_EPOCH_CACHE)

    async def controller_metadata(self, address: str) -> dict[str, str]:
        """A controller's group, leader and peers (1005); every controller answers."""
        return dict((await self.ask(address, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))).ext)

    async def sync_state(self, controller: str, broker_names: list[str]) -> dict[str, Any]:
        """The SyncStateSet of each group (1006): replicasInfoTable as mqadmin shows it."""
        body = json.dumps(broker_names).encode()
        command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
        answer = await self._ask_leader(controller, command, self._timeout_ms)
        return _readable(controller, bytes(answer.body))

    async def elect_master(
        self, controller: str, cluster_name: str, broker_name: str, broker_id: int, *, unclean: bool = False
    ) -> dict[str, Any]:
        """Hand the mastership of a group to a replica (1002). Returns masterBrokerId, masterAddress, masterEpoch, …

        `controller` may be any controller: the leader is asked in the end. `unclean` accepts the loss of messages."""
        ext = {
            "clusterName": cluster_name,
            "brokerName": broker_name,
            "brokerId": str(broker_id),
            "designateElect": "true",
        }
        if unclean:
            ext["unclean"] = "true"
        command = Command(RequestCode.CONTROLLER_ELECT_MASTER, ext)
        answer = await self._ask_leader(controller, command, ELECT_TIMEOUT_MS)
        return {**answer.ext, **(_readable(controller, bytes(answer.body)) if answer.body else {})}

    async def ask(self, address: str, command: Command, timeout_ms: int | None = None) -> Command:
        """Send a request to the server at `address` and return its successful answer."""
        self._ask_count += 1
        try:
            answer = await self._client.call(address, command, timeout_ms or self._timeout_ms)
        except UnreachableError:
            self._failure_count += 1
            raise
        if answer.code != ResponseCode.SUCCESS:
            self._failure_count += 1
            raise RemoteError(answer.code, answer.remark or "", address)
        return answer

    def statistics(self) -> dict[str, int]:
        """Counts since the client was opened: `asked` requests, `failed` ones."""
        return {"asked": self._ask_count, "failed": self._failure_count}

    async def _ask_json(self, address: str, code: RequestCode) -> dict[str, Any]:
        return _readable(address, bytes((await self.ask(address, Command(code))).body))

    async def _ask_leader(self, controller: str, command: Command, timeout_ms: int) -> Command:
        leader = (await self.controller_metadata(controller)).get("controllerLeaderAddress") or controller
        return await self.ask(leader, command, timeout_ms)


def _no_master(name: str) -> UnreachableError:
    return UnreachableError(f"group {name} has no master; wait for its election")


def _readable(address: str, body: bytes) -> dict[str, Any]:
    try:
        value = loads(body)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{address}: the answer is {error}") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{address}: the answer is no JSON object")
    return value
