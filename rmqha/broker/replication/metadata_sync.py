"""The host's shell around MetadataFollower, queue ends, repair, and the probe for slaves without rmqha. Shell.

A master asks slaves that do not follow its tables whether they run rmqha: strict changes wait for no others (ruling
16).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import trio

from rmqha.broker.access.user_table import UserTable
from rmqha.broker.pop.modes import ModeTable
from rmqha.broker.replication.read_repair import ReadRepair
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.metadata_follower import CALL_TIMEOUT_MS, FollowedMaster, MetadataFollower, object_of
from rmqha.broker.tables.metadata_leader import VERSION, MetadataLeader
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.queue_max_offsets import QueueMaxOffsets
from rmqha.broker.tables.topics import TopicTable
from rmqha.broker.timers.master_counts import MasterTimerCounts
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.model.offset import BrokerId, Epoch
from rmqha.port import Tracer
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.queue.queue_min_offsets import QueueMinOffsets
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

T = TypeVar("T")
PROBE_INTERVAL_MS = 500


class HostAsyncPort:
    """AsyncPort over trio."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        return await self._client.call(address, command, timeout_ms)

    async def sleep(self, duration_ms: int) -> None:
        await trio.sleep(duration_ms / 1000)

    async def write(self, write: Callable[[T], None], data: T) -> None:
        with trio.CancelScope(shield=True):  # the table counts on it: neither a stop nor another master comes before it
            await trio.to_thread.run_sync(write, data)


class MetadataSync:
    """Follows the master that `master` returns; call `role_changed` at each change of it."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        users: UserTable,
        modes: ModeTable,
        timer_counts: MasterTimerCounts,
        client: RemotingClient,
        master: Callable[[], FollowedMaster | None],
        holds: Callable[[int], bool],
        tracer: Tracer,
        *,
        saves_offsets: bool = False,
    ) -> None:
        tables = topics, groups, offsets, delay_offsets, users, modes, timer_counts
        self.follower = MetadataFollower(
            *tables, HostAsyncPort(client), master, holds, tracer, saves_offsets=saves_offsets
        )
        self._master = master
        self._changed = trio.Event()
        self._scope = trio.CancelScope()

    def role_changed(self) -> None:
        self._changed.set()
        self._scope.cancel()

    async def run(self) -> None:
        while True:
            self._changed = trio.Event()
            master = self._master()
            if master is None:
                await self._changed.wait()
                continue
            with trio.CancelScope() as self._scope:
                await self.follower.follow(master)


class _ThreadEvent:
    """Event that any thread may set: the log may be changed in a thread of its own."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread_id = threading.get_ident()

    def set(self) -> None:
        if threading.get_ident() == self._thread_id or self._token is None:
            self._event.set()
        else:
            self._token.run_sync_soon(self._event.set)

    async def wait(self) -> None:
        """Return after the event was set, and clear it."""
        self._token = trio.lowlevel.current_trio_token()
        await self._event.wait()
        self._event = trio.Event()


class QueueMaxOffsetsSync:
    """Task that asks for the ends of queues whenever this replica lacks them."""

    def __init__(self, ends: QueueMaxOffsets, starts: QueueMinOffsets, client: RemotingClient) -> None:
        self._ends = ends
        self._port = HostAsyncPort(client)
        self._lacks = _ThreadEvent()
        starts.subscribe(self._lacks.set)
        if starts.lacks:
            self._lacks.set()

    async def run(self) -> None:
        while True:
            await self._lacks.wait()
            await self._ends.learn(self._port)


class RepairLoop:
    """Task that repairs damaged records whenever the store knows some."""

    def __init__(self, repair: ReadRepair, damage: DamageTable, client: RemotingClient) -> None:
        self._repair = repair
        self._port = HostAsyncPort(client)
        self._due = _ThreadEvent()
        damage.subscribe(self._due.set)
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await self._repair.run(self._port)


class ForeignProbe:
    """Task that finds slaves without rmqha: their addresses come from a controller, the answer to 52030 shows it."""

    def __init__(
        self,
        metadata_leader: MetadataLeader,
        client: RemotingClient,
        controllers: Callable[[], Iterable[str]],
        broker_name: str,
        slaves: Callable[[], list[BrokerId]],
        epoch: Callable[[], Epoch],
    ) -> None:
        """`controllers` returns their present addresses. `slaves` returns those that have or copy the log now, []
        unless this replica is master."""
        self._metadata_leader = metadata_leader
        self._client = client
        self._controllers = controllers
        self._broker_name = broker_name
        self._slaves = slaves
        self._epoch = epoch

    async def run(self) -> None:
        suspects: list[BrokerId] = []
        while True:
            await trio.sleep(PROBE_INTERVAL_MS / 1000)
            silent = self._metadata_leader.unknown(self._slaves()) if self._metadata_leader.waits_for_slaves else []
            # Probe only slaves that did not follow at the previous check either; one with rmqha follows within
            # milliseconds.
            again = [broker_id for broker_id in silent if broker_id in suspects]
            suspects = silent
            if again:
                await self._probe(again)

    async def _probe(self, broker_ids: list[BrokerId]) -> None:
        epoch, addresses = self._epoch(), await self._addresses()
        for broker_id in broker_ids:
            address = addresses.get(broker_id)
            if address is None:
                continue
            command = Command(RequestCode.RMQHA_FOLLOW_TABLES, {"version": str(VERSION), "masterEpoch": "-1"})
            with suppress(UnreachableError):
                reply = await self._client.call(address, command, CALL_TIMEOUT_MS)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._epoch() == epoch:
                    self._metadata_leader.mark_foreign(broker_id)

    async def _addresses(self) -> dict[int, str]:
        """Addresses of the group's replicas from the controllers' leader; {} without an answer."""
        body = lenient_json.dumps([self._broker_name])
        for controller in self._controllers():
            with suppress(UnreachableError, RemoteProtocolError):
                command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
                reply = await self._client.call(controller, command, CALL_TIMEOUT_MS)
                if reply.code == ResponseCode.SUCCESS:
                    return _addresses(object_of(controller, reply), self._broker_name)
        return {}


def _addresses(body: dict[str, Any], broker_name: str) -> dict[int, str]:
    """Addresses in an answer to 1006. Raises RemoteProtocolError."""
    try:
        replicas = body["replicasInfoTable"][broker_name]
        known = [*replicas["inSyncReplicas"], *replicas["notInSyncReplicas"]]
        return {int(item["brokerId"]): str(item["brokerAddress"]) for item in known}
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the answer to request 1006 cannot be read: {error!r}") from None
