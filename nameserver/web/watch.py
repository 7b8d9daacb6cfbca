"""Periodic survey of all nodes while the page has viewers. Shell.

A round is a survey as `rmqha health` makes it: all nodes at once, so that a silent node delays no other. The pause
grows with the number of nodes, so that a page asks at most NODES_PER_SECOND. Without viewers there are no requests and
no connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from nameserver.web.page_data import GroupDetails, cluster_document, cluster_page_data, group_document
from rmqha.host.http.server import Send, event
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError
from rmqha.ops.asking import ask
from rmqha.ops.snapshot import ApacheEpochs, ClusterSnapshot, ServerKind
from rmqha.ops.survey import BootstrapAddresses, Survey
from rmqha.port import Clock, Tracer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.explained_state import ExplainedGroup
from rmqha.wire.state.history import parse_history
from rmqha.wire.state.name_server_state import NameServerFacts
from rmqha.wire.state.replica_state import ReplicaState

PERIOD_S = 1.0
EARLY_S = 0.1
"""Interval (s) of checks for changed routes, which begin a round early."""
ROUND_S = 2.0
"""Bound (s) of a round; each node has 0.8 s of it."""
NODES_PER_SECOND = 50
EVENTS_PERIOD_MS = 3_000
"""Interval (ms) of requests for replicas' histories, which are longer than other answers."""
MEMORY_MS = 300_000
"""Time (ms) after its last answer for which a node that is no longer named is asked."""
BEAT_S = 2.0
"""Interval (s) of heartbeats to a page, however long a round takes; dom.js waits three times as long."""
MAX_VIEWERS = 32
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Bound on one node's answer: a controller with five thousand groups has a state of some 3 MB. More closes the
connection."""
CLUSTER = ""
"""Name of the cluster's document; a group's is its name."""
_BEAT = event(0, "beat")
T = TypeVar("T")


class ClusterWatch:
    def __init__(
        self,
        name_server: Callable[[], NameServerFacts],
        own_address: str,
        controllers: list[str],
        clock: Clock,
        tracer: Tracer,
        changes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`name_server` returns this name server's facts; `controllers` are those of its configuration; `changes`
        counts changes of the routes, each of which begins a round early."""
        self._route_changes = changes
        self._name_server = name_server
        self._own_address = own_address
        self._controllers = controllers
        self._clock = clock
        self._tracer = tracer
        self._viewers: Counter[str] = Counter()
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._documents: dict[str, bytes] = {}
        self._answered: dict[tuple[ServerKind, str], tuple[str, int]] = {}
        """Group and time (ms) of each node's last answer."""
        self._states: dict[str, ReplicaState] = {}
        self._details: dict[str, GroupDetails] = {}
        self._events_at_ms: dict[str, int] = {}
        self.round_count = 0
        self._time_event = b""
        """Event with the begin of the last round, and the planned end of the next."""

    @property
    def viewer_count(self) -> int:
        return self._viewers.total()

    @property
    def is_full(self) -> bool:
        return self.viewer_count >= MAX_VIEWERS

    # --- viewers ----------------------------------------------------------------------------------------------------
    async def show(self, name: str, send: Send) -> None:
        """Send the document `name` as a Server-Sent Event at each change, its time (`at`) after each round, and a
        heartbeat (`beat`) at least every BEAT_S, until cancelled."""
        with self._viewer(name):
            last, sent = b"", b""
            while True:
                document, time_event = self._documents.get(name), self._time_event
                if document is not None and document != last:
                    await send(document)
                    last = document
                if document is not None and time_event != sent:
                    await send(time_event)
                    sent = time_event
                else:
                    await send(_BEAT)
                with trio.move_on_after(BEAT_S):
                    await self._changed.wait()

    @contextmanager
    def _viewer(self, name: str) -> Iterator[None]:
        self._viewers[name] += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers[name] -= 1
            if not self._viewers[name]:
                del self._viewers[name]
                self._documents.pop(name, None)
                self._details.pop(name, None)
                self._events_at_ms.pop(name, None)

    # --- rounds -----------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Survey in rounds while there are viewers, until cancelled."""
        while True:
            await self._wanted.wait()
            async with RemotingClient(max_frame_bytes=MAX_ANSWER_BYTES) as client:
                while self._viewers:
                    started, at_ms = trio.current_time(), self._clock.wall_ms()
                    node_count = await self._guarded_round(client)
                    self.round_count += 1
                    period_s = max(PERIOD_S, node_count / NODES_PER_SECOND)
                    self._time_event = event({"at": at_ms, "nextMs": round((period_s + ROUND_S) * 1000)}, "at")
                    self._changed.set()
                    self._changed = trio.Event()
                    await self._pause(max(0.1, started + period_s - trio.current_time()))
            self._wanted = trio.Event()
            self._answered.clear()
            self._states.clear()

    async def _pause(self, pause_s: float) -> None:
        """Wait for the next round, or for a change of the routes."""
        before = self._route_changes()
        for _ in range(max(1, round(pause_s / EARLY_S))):
            if self._route_changes() != before:
                return
            await trio.sleep(EARLY_S)

    async def _guarded_round(self, client: RemotingClient) -> int:
        """Run a round. Returns the number of nodes asked."""
        try:
            return await self._round(client)
        except Exception as error:  # noqa: BLE001
            # traced, not swallowed: a foreign node's answer must not end the name server behind its page
            self._tracer.event("page_failed", error=repr(error))
            words = f"this page could not make its picture: {error!r}; the name server's log says more"
            for name in list(self._viewers):
                self._documents[name] = event({"version": 1, "error": words})
            return 0

    async def _round(self, client: RemotingClient) -> int:
        now_ms = self._clock.now_ms()
        snapshot = self._remembered(now_ms, await Survey(client, self._seeds(now_ms), ROUND_S).run())
        groups = [name for name in self._viewers if name != CLUSTER]
        async with trio.open_nursery() as nursery:
            for name in groups:
                nursery.start_soon(self._ask_details, client, snapshot, name, now_ms)
        facts, details, names = self._name_server(), dict(self._details), list(self._viewers)

        def documents() -> dict[str, bytes]:
            page_data = cluster_page_data(snapshot, facts, self._own_address, details)
            return {
                name: event(cluster_document(page_data) if name == CLUSTER else group_document(page_data, name))
                for name in names
            }

        # beside the event loop: with thousands of brokers it takes longer than their heartbeats may wait
        made = await trio.to_thread.run_sync(documents)
        self._documents = {name: made[name] for name in made if name in self._viewers}
        return len(snapshot.nodes)

    def _seeds(self, now_ms: int) -> BootstrapAddresses:
        """Addresses of the configuration, and those that answered lately."""
        for key, (_, at_ms) in list(self._answered.items()):
            if now_ms - at_ms > MEMORY_MS:
                del self._answered[key]
        lately = list(self._answered.items())
        controllers = [address for (kind, address), _ in lately if kind is ServerKind.CONTROLLER]
        return BootstrapAddresses(
            name_servers=(self._own_address,),
            controllers=tuple(dict.fromkeys([*self._controllers, *controllers])),
            brokers=tuple((address, group) for (kind, address), (group, _) in lately if kind is ServerKind.BROKER),
        )

    def _remembered(self, now_ms: int, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        """Snapshot with the previous round's values for comparison."""
        for report in snapshot.nodes:
            if report.answers:
                self._answered[report.kind, report.address] = (report.group, now_ms)
        beside = snapshot.after(self._states)
        self._states = snapshot.replicas
        return beside

    # --- one group --------------------------------------------------------------------------------------------------
    async def _ask_details(self, client: RemotingClient, snapshot: ClusterSnapshot, name: str, now_ms: int) -> None:
        """Request what only the group's own page shows. Nodes that do not answer are in the survey as silent."""
        brokers = [report for report in snapshot.of_kind(ServerKind.BROKER) if report.group == name and report.answers]
        leader = next((report for report in snapshot.nodes if report.controller is not None and report.leads), None)
        known = self._details.get(name, GroupDetails())
        fresh = GroupDetails(events=known.events)
        with_events = now_ms - self._events_at_ms.get(name, -EVENTS_PERIOD_MS) >= EVENTS_PERIOD_MS

        async def explained(address: str) -> None:
            command = Command(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": name})
            fresh.explained = await _ask(client, address, command, ExplainedGroup.from_json)

        async def epochs(address: str) -> None:
            answer = await _ask(client, address, Command(RequestCode.GET_BROKER_EPOCH_CACHE), ApacheEpochs.from_json)
            if answer is not None:
                fresh.epochs[address] = answer

        async def events(address: str) -> None:
            answer = await _ask(client, address, Command(RequestCode.RMQHA_GET_HISTORY), parse_history)
            if answer is not None:
                fresh.events[address] = answer

        async with trio.open_nursery() as nursery:
            if leader is not None:
                nursery.start_soon(explained, leader.address)
            for report in brokers:
                if not report.is_ours:
                    nursery.start_soon(epochs, report.address)
                elif with_events:
                    nursery.start_soon(events, report.address)
        if with_events:
            self._events_at_ms[name] = now_ms
        self._details[name] = fresh


async def _ask(client: RemotingClient, address: str, command: Command, read: Callable[[object], T]) -> T | None:
    """Answer, converted by `read` from JSON; None if the node has none."""
    try:
        answer = bytes((await ask(client, address, command)).body)
        # text that is no strict JSON would be parsed by Python's own parser, for seconds if a node wants that
        return await trio.to_thread.run_sync(lambda: read(loads(answer)))
    except (RmqhaError, ValueError):
        return None
