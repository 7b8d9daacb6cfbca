"""Routes as a name server answers them, and the name servers to ask in turn. Control plane.

`rmqha.client.route_table` keeps those that a client uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqha.client.answers import parsing
from rmqha.client.arguments import require_type
from rmqha.model.code import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

if TYPE_CHECKING:
    from rmqha.host.asking.shell import Caller

ASK_TIMEOUT_MS = 1_000
MAX_QUEUE_COUNT = 1 << 16
"""Queues of a topic in one group: a client lists all that a route names."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic. Sorts as the Java client sorts, which rebalancing relies on."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """Number of queues of the topic in one group, and their permissions."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One answer of a name server. `addresses`: group → broker id → "host:port"; id 0 is the master."""

    topic: str
    addresses: Mapping[str, Mapping[int, str]]
    queue_data: tuple[TopicQueues, ...]
    vanished: tuple[TopicQueues, ...] = ()
    """Groups that earlier answers held and this one does not: ordered sends wait for them."""
    auto_created: bool = False
    """True if the topic does not exist yet and this is the route of AUTO_CREATE_TOPIC."""

    def master(self, broker_name: str) -> str | None:
        """Address of the group's master, "host:port"; None if the route has none."""
        return self.addresses.get(broker_name, {}).get(0)

    def reader(self, broker_name: str, preferred_id: int = 0) -> str | None:
        """Address of the broker to pull from: the preferred replica, else the master, else the slave with the lowest
        id."""
        group = self.addresses.get(broker_name, {})
        return group.get(preferred_id) or group.get(0) or (group[min(group)] if group else None)

    def read_queues(self) -> list[MessageQueue]:
        """Readable queues in the name server's order, with or without a master: all members of a consumer group must
        get the same list."""
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in self.queue_data
            if data.perm & PERM_READ
            for queue_id in range(data.read_queue_count)
        ]

    def write_queues(self) -> list[MessageQueue]:
        """Queues of the groups that have a master now."""
        return self._writable(data for data in self.queue_data if self.master(data.broker_name))

    def ordered_queues(self) -> list[MessageQueue]:
        """Queues of all groups, with or without a master, so that a key keeps its queue during a failover."""
        return self._writable(sorted((*self.queue_data, *self.vanished), key=lambda data: data.broker_name))

    def _writable(self, groups: Iterable[TopicQueues]) -> list[MessageQueue]:
        return [
            MessageQueue(self.topic, data.broker_name, queue_id)
            for data in groups
            if data.perm & PERM_WRITE
            for queue_id in range(data.write_queue_count)
        ]

    def brokers(self) -> list[str]:
        """Addresses of all replicas, masters first."""
        pairs = [(broker_id, address) for group in self.addresses.values() for broker_id, address in group.items()]
        return [address for _, address in sorted(pairs)]


def parse_route(topic: str, body: bytes, address: str) -> TopicRoute:
    """The body of answer 105 of the name server at `address`. Raises RemoteProtocolError if it is no route."""
    with parsing(address, f"the route of topic {topic}"):
        value = loads(body)
        addresses: dict[str, dict[int, str]] = {
            str(group["brokerName"]): {int(key): str(address) for key, address in group["brokerAddrs"].items()}
            for group in value["brokerDatas"]
        }
        queues = [
            TopicQueues(
                str(item["brokerName"]), int(item["readQueueNums"]), int(item["writeQueueNums"]), int(item["perm"])
            )
            for item in value["queueDatas"]
        ]
        if any(max(data.read_queue_count, data.write_queue_count) > MAX_QUEUE_COUNT for data in queues):
            raise ValueError(f"more than {MAX_QUEUE_COUNT} queues")
    return TopicRoute(topic, addresses, tuple(sorted(queues, key=lambda data: data.broker_name)))


def name_servers(text: str) -> list[str]:
    """Split "host:port;host:port" (commas do too). Raises UsageError for anything else."""
    require_type(f"name server address {text!r}", text, str, "; write host:port, several joined by ';'")
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as error:
        raise UsageError(f"name server address: {error}") from None
    if not addresses:
        raise UsageError("no name server address was given; write host:port")
    return addresses


class NameServers:
    """The name servers of a client, asked in turn from the one that answered last."""

    def __init__(self, client: Caller, namesrv: str) -> None:
        """`namesrv`: "host:port" or several joined by ";". Raises UsageError."""
        self._client = client
        self.addresses = name_servers(namesrv)
        """Addresses, "host:port" each."""
        self._first = 0

    def begin_with_next(self) -> None:
        """Ask another name server first from now on: one that lags behind must not be the only one asked."""
        self._first = (self._first + 1) % len(self.addresses)

    async def ask(self, code: RequestCode, ext: dict[str, str]) -> tuple[str, bytes]:
        """Ask the name servers in turn until one answers. Returns (its address, the body).

        Raises RemoteError for another code than success, UnreachableError if none answers."""
        reasons = []
        for turn in range(len(self.addresses)):
            index = (self._first + turn) % len(self.addresses)
            address = self.addresses[index]
            try:
                answer = await self._client.call(address, Command(code, dict(ext)), ASK_TIMEOUT_MS)
            except UnreachableError as error:
                reasons.append(str(error))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                reasons.append(f"{address} is no name server: it knows no request {code}")
                continue
            self._first = index
            if answer.code != ResponseCode.SUCCESS:
                raise RemoteError(answer.code, answer.remark or "", address)
            return address, bytes(answer.body)
        raise UnreachableError(
            f"no name server answers: {'; '.join(reasons)}; start one of these, or give the address of one that runs"
        )
