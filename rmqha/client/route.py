"""Routes: the queues of a topic and the master of each group, asked from the name servers. Control plane.

A client learns of a new master only by asking. So the table asks at once when a send or pull fails, then again after
20 ms and each 50 ms while the group has no other master, and everybody who waits is woken by the first change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose route serves a topic that does not exist yet, if the brokers create topics on the first send."""
AUTO_CREATE_QUEUE_COUNT = 4
FIRST_BACKOFF_MS = 20
BACKOFF_MS = 50
PATIENCE_MS = 5_000
"""After this time without a usable master the table asks each PATIENT_BACKOFF_MS only."""
PATIENT_BACKOFF_MS = 200
ASK_TIMEOUT_MS = 1_000
REFRESH_MS = 30_000
GROUP_MEMORY_MS = 600_000


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
        """Sorted, as the name server gave them: all members of a consumer group must see the same list."""
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


def parse_route(topic: str, body: bytes) -> TopicRoute:
    """The body of answer 105. Raises RemoteProtocolError if it is no route."""
    try:
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
    except (RemoteProtocolError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RemoteProtocolError(f"the name server's route of topic {topic} is not readable: {error!r}") from error
    return TopicRoute(topic, addresses, tuple(sorted(queues, key=lambda data: data.broker_name)))


def name_servers(text: str) -> list[str]:
    """Split "host:port;host:port" (commas do too). Raises UsageError for anything else."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    try:
        for address in addresses:
            parse_address(address)
    except ValueError as error:
        raise UsageError(f"name server address: {error}") from None
    if not addresses:
        raise UsageError("no name server address was given; write host:port")
    return addresses


@dataclass(slots=True)
class _Flight:
    """One question under way; whoever else wants the same answer waits for `done`."""

    done: trio.Event = field(default_factory=trio.Event)
    route: TopicRoute | None = None
    error: RmqhaError | None = None


@dataclass(slots=True)
class Backoff:
    """Failures in a row of one send or pull, which decide how long it waits before the next try."""

    failures: int = 0
    since: float = 0.0

    def next_wait_ms(self) -> int:
        """0 after the first failure: the first retry follows the first refresh at once."""
        self.failures += 1
        if self.failures == 1:
            self.since = trio.current_time()
            return 0
        if (trio.current_time() - self.since) * 1000 > PATIENCE_MS:
            return PATIENT_BACKOFF_MS
        return FIRST_BACKOFF_MS if self.failures == 2 else BACKOFF_MS

    def reset(self) -> None:
        """Forget the failures: an attempt has succeeded."""
        self.failures = 0


class ClientRoutes:
    """Routes of the topics that were asked for, from the first name server that answers."""

    def __init__(self, client: RemotingClient, namesrv: str) -> None:
        """`namesrv`: "host:port" or several joined by ";". Raises UsageError."""
        self._client = client
        self._name_servers = name_servers(namesrv)
        self._first = 0
        self._routes: dict[str, TopicRoute] = {}
        self._flights: dict[str, _Flight] = {}
        self._vanished_at: dict[tuple[str, str], float] = {}
        self._changed = trio.Event()
        self._refresh_count = 0
        self._change_count = 0

    @property
    def name_servers(self) -> list[str]:
        """Addresses of the name servers, "host:port"."""
        return list(self._name_servers)

    def cached(self, topic: str) -> TopicRoute | None:
        """The cached route, which may be old; None if nobody has asked for the topic."""
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRoute:
        """The cached route, asked for if there is none. Raises as `refresh`."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask now. A topic that the name server no longer knows keeps its last route, as its brokers may come back.

        Raises UnreachableError if no name server answers, RemoteError (17) if the topic was never known.
        """
        while True:
            flight = self._flights.get(topic)
            if flight is None:
                return await self._fly(topic)
            await flight.done.wait()
            if flight.route is not None:
                return flight.route
            if flight.error is not None:
                raise flight.error

    async def recover(self, topic: str, backoff: Backoff) -> None:
        """Between a failed try and the next: wait as `backoff` says, but no longer than until a master changes, and ask
        anew. A failed question is no error here: the old route stays and the caller's deadline decides."""
        wait_ms = backoff.next_wait_ms()
        if wait_ms:
            # A name server that lags behind must not be the only one asked.
            self._first = (self._first + 1) % len(self._name_servers)
            with trio.move_on_after(wait_ms / 1000) as waiting:
                await self._changed.wait()
            if not waiting.cancelled_caught:
                return
        with suppress(RmqhaError):
            await self.refresh(topic)

    async def wait_changed(self) -> None:
        """Return at the next change of any address."""
        await self._changed.wait()

    async def run(self, refresh_ms: int = REFRESH_MS) -> None:
        """Ask again for every known route each `refresh_ms`; runs until cancelled."""
        while True:
            await trio.sleep(refresh_ms / 1000)
            for topic in list(self._routes):
                with suppress(RmqhaError):
                    await self.refresh(topic)

    def statistics(self) -> dict[str, int]:
        """Counts: cached `topics`, `refreshes` of routes, `changes` that they brought."""
        return {"topics": len(self._routes), "refreshes": self._refresh_count, "changes": self._change_count}

    async def _fly(self, topic: str) -> TopicRoute:
        flight = self._flights[topic] = _Flight()
        try:
            flight.route = self._store(topic, await self._ask(topic))
        except RmqhaError as error:
            flight.error = error
            raise
        finally:
            del self._flights[topic]
            flight.done.set()
        return flight.route

    async def _ask(self, topic: str) -> TopicRoute:
        self._refresh_count += 1
        try:
            return parse_route(topic, await self._body(topic))
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            known = self._routes.get(topic)
            if known is not None and not known.auto_created:
                return known
            return await self._auto_created(topic, error)

    async def _auto_created(self, topic: str, unknown: RemoteError) -> TopicRoute:
        try:
            route = parse_route(topic, await self._body(AUTO_CREATE_TOPIC))
        except RemoteError:
            raise RemoteError(
                unknown.code, f"topic {topic} does not exist and its brokers create none by themselves", unknown.address
            ) from None
        queues = tuple(
            replace(
                data,
                read_queue_count=min(data.read_queue_count, AUTO_CREATE_QUEUE_COUNT),
                write_queue_count=min(data.write_queue_count, AUTO_CREATE_QUEUE_COUNT),
            )
            for data in route.queue_data
        )
        return replace(route, queue_data=queues, auto_created=True)

    async def _body(self, topic: str) -> bytes:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        _, body = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        return body

    async def ask(self, code: RequestCode, ext: dict[str, str]) -> tuple[str, bytes]:
        """Ask the name servers in turn until one answers: (its address, the body).

        Raises RemoteError for another code than success, UnreachableError if none answers."""
        reasons = []
        for turn in range(len(self._name_servers)):
            index = (self._first + turn) % len(self._name_servers)
            address = self._name_servers[index]
            try:
                answer = await self._client.call(address, Command(code, dict(ext)), ASK_TIMEOUT_MS)
            except UnreachableError as error:
                reasons.append(str(error))
                continue
            self._first = index
            if answer.code != ResponseCode.SUCCESS:
                raise RemoteError(answer.code, answer.remark or "", address)
            return address, bytes(answer.body)
        raise UnreachableError(f"no name server answers: {'; '.join(reasons)}")

    def _store(self, topic: str, route: TopicRoute) -> TopicRoute:
        old = self._routes.get(topic)
        now = trio.current_time()
        if old is not None and not old.auto_created:
            present = {data.broker_name for data in route.queue_data}
            vanished = []
            for data in (*old.queue_data, *old.vanished):
                if data.broker_name in present:
                    continue
                since = self._vanished_at.setdefault((topic, data.broker_name), now)
                if (now - since) * 1000 < GROUP_MEMORY_MS:
                    vanished.append(data)
            route = replace(route, vanished=tuple(vanished))
        for data in route.queue_data:
            self._vanished_at.pop((topic, data.broker_name), None)
        self._routes[topic] = route
        if old != route:
            self._change_count += 1
            self._changed.set()
            self._changed = trio.Event()
        return route
