"""The routes that a client uses: the queues of a topic and the master of each group. Control plane.

A client learns of a new master only by asking. So the table asks at once when a send or pull fails, then again after
20 ms and each 50 ms while the group has no other master; the first change wakes all tasks that wait.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from rmqha.client.route import NameServers, TopicRoute, parse_route
from rmqha.host.asking.shell import Caller
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError

AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose route serves a topic that does not exist yet, if the brokers create topics on the first send."""
AUTO_CREATE_QUEUE_COUNT = 4
FIRST_BACKOFF_MS = 20
BACKOFF_MS = 50
SLOW_AFTER_MS = 5_000
"""After this time without a usable master the table asks each SLOW_BACKOFF_MS only."""
SLOW_BACKOFF_MS = 200
REFRESH_MS = 30_000
GROUP_MEMORY_MS = 600_000


@dataclass(slots=True)
class _Flight:
    """One request under way; other callers that want the same answer wait for `done`."""

    done: trio.Event = field(default_factory=trio.Event)
    route: TopicRoute | None = None
    error: RmqhaError | None = None


@dataclass(slots=True)
class Backoff:
    """Failures in a row of one send or pull, which decide how long it waits before the next try."""

    failures: int = 0
    since: float = 0.0

    def next_wait_ms(self) -> int:
        """Time (ms) to wait now. 0 after the first failure: the first retry follows the first refresh at once."""
        self.failures += 1
        if self.failures == 1:
            self.since = trio.current_time()
            return 0
        if (trio.current_time() - self.since) * 1000 > SLOW_AFTER_MS:
            return SLOW_BACKOFF_MS
        return FIRST_BACKOFF_MS if self.failures == 2 else BACKOFF_MS

    def reset(self) -> None:
        """Forget the failures: an attempt has succeeded."""
        self.failures = 0


class ClientRoutes:
    """Routes of the topics that were asked for, from the first name server that answers."""

    def __init__(self, client: Caller, namesrv: str) -> None:
        """`namesrv`: "host:port" or several joined by ";". Raises UsageError."""
        self._name_servers = NameServers(client, namesrv)
        self._routes: dict[str, TopicRoute] = {}
        self._flights: dict[str, _Flight] = {}
        self._vanished_at: dict[tuple[str, str], float] = {}
        self._changed = trio.Event()
        self._refresh_count = 0
        self._change_count = 0

    def cached(self, topic: str) -> TopicRoute | None:
        """The cached route, which may be old; None if nobody has asked for the topic."""
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRoute:
        """The cached route, asked for if there is none. Raises as `refresh`."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask for the route now. A topic that the name server no longer knows keeps its last route, as its brokers may
        come back.

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
        """Wait between a failed try and the next as `backoff` says, or until a master changes, and ask for the route. A
        request that fails is no error here: the old route stays and the caller's deadline decides.

        Raises UsageError where the client is not open."""
        wait_ms = backoff.next_wait_ms()
        if wait_ms:
            self._name_servers.begin_with_next()
            with trio.move_on_after(wait_ms / 1000) as waiting:
                await self._changed.wait()
            if not waiting.cancelled_caught:
                return
        with suppress(RemoteError, RemoteProtocolError, UnreachableError):
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
            return await self._asked_route(topic, topic)
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            known = self._routes.get(topic)
            if known is not None and not known.auto_created:
                return known
            return await self._auto_created(topic, error)

    async def _auto_created(self, topic: str, unknown: RemoteError) -> TopicRoute:
        try:
            route = await self._asked_route(topic, AUTO_CREATE_TOPIC)
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

    async def _asked_route(self, topic: str, asked_topic: str) -> TopicRoute:
        """The route of `asked_topic` as that of `topic`."""
        ext = {"topic": asked_topic, "acceptStandardJsonOnly": "true"}
        address, body = await self._name_servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        return parse_route(topic, body, address)

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
