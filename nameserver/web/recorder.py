"""Periodic samples of all replicas, so that the page can show the hour before it was opened. Shell.

A sample is one request to each broker with a route here. Consumer groups need several requests and are sampled only
within an hour after a viewer asked for them. The interval grows with the number of brokers, so that at most
NODES_PER_SECOND are asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from nameserver.route_info import RouteTable
from nameserver.web.hour import PERIOD_S, REPLICA_FIGURES, SampleRing, failovers, group_hour, replica_values
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError
from rmqha.model.identity import node_label
from rmqha.ops.asking import ask
from rmqha.ops.replica_rows import rows
from rmqha.ops.snapshot import ClusterSnapshot, NodeReport
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope
from rmqha.port import Clock, Tracer
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.history import HistoryEvent, parse_history

ROUND_S = 2.0
NODES_PER_SECOND = 10
WANTED_MS = 3_600_000
LAG_EVERY = 3
"""Consumer groups are sampled in every third round."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024


def _label(report: NodeReport) -> str:
    return node_label(report.node_name, None if report.replica is None else report.replica.broker_id, report.address)


class Recorder:
    """Recorder of samples. `lags`: waiting messages of each consumer group, of a bounded number of groups."""

    def __init__(
        self,
        routes: RouteTable,
        own_address: str,
        controllers: Callable[[], list[str]],
        lags: Callable[[], Awaitable[dict[str, int]]],
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._routes = routes
        self._own_address = own_address
        self._controllers = controllers
        self._lags = lags
        self._clock = clock
        self._tracer = tracer
        self.replicas = SampleRing(REPLICA_FIGURES)
        self.consumers = SampleRing(("lag",), points=240)
        self._labels: dict[str, str] = {}
        """Names of replicas by address."""
        self._lag_wanted_until_ms = 0
        self._before = (ClusterSnapshot(), 0)

    def want_lags(self) -> None:
        """Sample the consumer groups from now on, for WANTED_MS."""
        self._lag_wanted_until_ms = self._clock.now_ms() + WANTED_MS

    async def run(self) -> None:
        """Take samples until cancelled."""
        place = 0
        while True:
            started = trio.current_time()
            count = 0
            try:
                count = await self.record_round()
                if place % LAG_EVERY == 0 and self._clock.now_ms() < self._lag_wanted_until_ms:
                    await self.record_lags()
            except Exception as error:  # noqa: BLE001
                # traced, not swallowed: a foreign node's answer must not end the name server behind its page
                self._tracer.event("page_record_failed", error=repr(error))
            place += 1
            pause_s = max(PERIOD_S, count / NODES_PER_SECOND)
            await trio.sleep(max(1.0, started + pause_s - trio.current_time()))

    async def record_round(self) -> int:
        """Sample all replicas. Returns their number."""
        bootstrap = BootstrapAddresses(
            brokers=tuple(
                (address, group.broker_name) for group in self._routes.groups() for address in group.addresses.values()
            )
        )
        # a replica's name is in its configuration, whose answer is long and seldom changes
        has_new = any(address not in self._labels for address, _ in bootstrap.brokers)
        extent = SurveyScope.KEYS if has_new else SurveyScope.STATES
        async with RemotingClient(max_frame_bytes=MAX_ANSWER_BYTES) as client:
            now_ms = self._clock.now_ms()
            snapshot = await Survey(client, bootstrap, ROUND_S, extent=extent).run()
        if has_new:
            self._labels = {report.address: _label(report) for report in snapshot.nodes if report.answers}
        before, before_ms = self._before
        found = rows(snapshot, before, (now_ms - before_ms) / 1000)
        self.replicas.put(self._clock.wall_ms(), replica_values(found))
        self._before = (snapshot, now_ms)
        return len(bootstrap.brokers)

    async def record_lags(self) -> None:
        """Sample the consumer groups."""
        found = await self._lags()
        self.consumers.put(self._clock.wall_ms(), {name: [float(lag)] for name, lag in found.items()})

    # --- charts -----------------------------------------------------------------------------------------------------
    async def hour(self, group: str) -> dict[str, Any]:
        """JSON-ready: the hour of a group, and its failovers by the nodes' histories."""
        return group_hour(self.replicas, group, self._labels) | {
            "failovers": failovers(await self._events(group), group)
        }

    async def lag_hour(self) -> dict[str, Any]:
        """JSON-ready: waiting messages of each consumer group, which are sampled from now on."""
        self.want_lags()
        if not self.consumers.times():
            await self.record_lags()
        return {
            "times": self.consumers.times(),
            "groups": {name: self.consumers.series(name, "lag") for name in self.consumers.names},
        }

    async def _events(self, group: str) -> list[HistoryEvent]:
        brokers = [item for item in self._routes.groups() if item.broker_name == group]
        addresses = {address for item in brokers for address in item.addresses.values()}
        found: list[HistoryEvent] = []

        async def of_node(client: RemotingClient, address: str) -> None:
            try:
                body = bytes((await ask(client, address, Command(RequestCode.RMQHA_GET_HISTORY))).body)
                told = await trio.to_thread.run_sync(lambda: parse_history(loads(body)))
            except (RmqhaError, ValueError):
                return  # an old or a foreign node: the others' words are shown
            found.extend(told)

        async with RemotingClient(max_frame_bytes=MAX_ANSWER_BYTES) as client, trio.open_nursery() as nursery:
            for address in {*addresses, *self._controllers(), self._own_address}:
                nursery.start_soon(of_node, client, address)
        return found
