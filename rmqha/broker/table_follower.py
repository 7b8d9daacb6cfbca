"""How a slave follows its master's tables (A13): topics, groups, consumer and delay offsets. No trio: whatever takes
time is awaited through `Awaits`, which the host's shell implements with trio and the simulation with its events.

A master that is rmqha is followed by a long poll (request 52030): each answer brings what is newer, each poll says what
is on this replica's disk. Apache's master does not know that request: its tables are pulled whole each five seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rmqha.broker import groups as group_table
from rmqha.broker import topics as topic_table
from rmqha.broker.config_table import DataVersion
from rmqha.broker.delay_offsets import DelayOffsetTable
from rmqha.broker.groups import GroupTable
from rmqha.broker.lineage import NO_STAMP
from rmqha.broker.offsets import OffsetChange, OffsetTable
from rmqha.broker.table_feed import MAX_HOLD_MS, VERSION
from rmqha.broker.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UnreachableError
from rmqha.model.offset import BrokerId, Epoch
from rmqha.port import Tracer
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

INTERVAL_MS = 5000
FIRST_INTERVAL_MS = 500
"""Until the first success under a master, so that a new slave is useful soon."""
RETRY_MS = 5
"""A new master may hear of its election after its slaves do."""
MAX_RETRY_MS = 500
CALL_TIMEOUT_MS = 3000
SLICE_COUNT = 2000
"""Topics or groups asked of Apache's master at once, as its slaves do."""
OWN_SLICE_COUNT = 10_000
"""The same of ours: fewer slices, so that a table seldom changes between them."""
MAX_SLICES = 1000
MAX_TABLE_TRIES = 5
"""A table that changes while its slices are read is read anew."""

_FAULTS = (UnreachableError, RemoteError, RemoteProtocolError, ValueError, TypeError)


class Master(NamedTuple):
    """Whom this replica follows, in which epoch, and as whom."""

    address: str
    epoch: Epoch
    own_id: BrokerId


class Awaits(Protocol):
    """What takes time."""

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """The answer. Raises UnreachableError: none came."""
        ...

    async def sleep(self, duration_ms: int) -> None: ...

    async def write(self, write: Callable[[bytes], None], data: bytes) -> None:
        """`write(data)`, which waits for the disk. Raises what it raises."""
        ...


class TableFollower:
    """`master` gives whom to follow now, None while this replica has no master or is it.

    What comes is taken only while that still is so: a table that was on its way during a switch is dropped, so an old
    master's never replaces what this replica has accepted as master.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        awaits: Awaits,
        master: Callable[[], Master | None],
        tracer: Tracer,
        *,
        saves_offsets: bool = False,
    ) -> None:
        """`saves_offsets`: what is acknowledged of consumer offsets is on the disk (offsetSync=strict)."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._awaits = awaits
        self._master = master
        self._tracer = tracer
        self._saves_offsets = saves_offsets
        self._heard = NO_STAMP
        """The newest change of an offset that this master has told."""
        self._failed = False

    # --- a master that is rmqha ---------------------------------------------------------------------------------------
    async def follow(self, master: Master) -> None:
        """Until another is master. It may be ended at any await."""
        self._heard = NO_STAMP
        retry_ms = RETRY_MS
        while self._master() == master:
            try:
                reply = await self._poll(master)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    await self._pull_periodically(master)
                    return
                if reply.code != ResponseCode.SUCCESS:
                    raise RemoteError(reply.code, reply.remark or "", master.address)
                await self._take(master, reply)
            except _FAULTS as error:
                self._note_failure(master, error)
                await self._awaits.sleep(retry_ms)
                retry_ms = min(2 * retry_ms, MAX_RETRY_MS)
            else:
                self._failed = False
                retry_ms = RETRY_MS

    async def _poll(self, master: Master) -> Command:
        ext = {
            "version": str(VERSION),
            "masterEpoch": str(master.epoch),
            "brokerId": str(master.own_id),
            "topics": str(self._topics.version.stamp),
            "groups": str(self._groups.version.stamp),
            "offsets": str(self._heard),
            "delays": str(self._delay_offsets.version.stamp),
            "waitMs": str(MAX_HOLD_MS),
        }
        command = Command(RequestCode.RMQHA_FOLLOW_TABLES, ext)
        return await self._awaits.call(master.address, command, MAX_HOLD_MS + CALL_TIMEOUT_MS)

    async def _take(self, master: Master, reply: Command) -> None:
        """Raises as `_ask`, ValueError or TypeError for a body that cannot be read."""
        body = object_of(master.address, reply)
        if int(body.get("version", 0)) != VERSION:
            raise RemoteProtocolError(f"{master.address} answered request 52030 with version {body.get('version')}")
        if self._master() != master:
            return
        offsets = [OffsetChange.from_json(item) for item in body.get("offsets") or ()]
        if offsets:
            self._offsets.merge(offsets)
            self._heard = offsets[-1].stamp
            await self._save_offsets()
        if "delays" in body:
            self._delay_offsets.replace(body["delays"])
        for name, apply, pull in (
            ("topics", self._topics.apply, self._pull_topics),
            ("groups", self._groups.apply, self._pull_groups),
        ):
            changes = body.get(name)
            if changes is None or self._master() != master:
                continue
            if changes.get("whole"):
                await pull(master, OWN_SLICE_COUNT)
            else:
                apply(changes)

    async def _save_offsets(self) -> None:
        data = self._offsets.unsaved() if self._saves_offsets else None
        if data is not None:
            await self._awaits.write(self._offsets.write, data)

    def _note_failure(self, master: Master, error: Exception) -> None:
        if not self._failed:
            self._tracer.event("metadata_not_synced", address=master.address, reason=str(error))
        self._failed = True

    # --- a master that is Apache's ------------------------------------------------------------------------------------
    async def _pull_periodically(self, master: Master) -> None:
        pause_ms = FIRST_INTERVAL_MS
        while self._master() == master:
            if await self.pull(master):
                pause_ms = INTERVAL_MS
            await self._awaits.sleep(pause_ms)

    async def pull(self, master: Master) -> bool:
        """Take all tables once; False (and traced, once) if the master did not give them."""
        try:
            await self._pull_topics(master)
            await self._pull_groups(master)
            await self._pull_offsets(master)
            await self._pull_delay_offsets(master)
        except _FAULTS as error:
            self._note_failure(master, error)
            return False
        self._failed = False
        return True

    async def _ask(self, master: Master, code: RequestCode, ext: dict[str, str] | None = None) -> tuple[Command, Any]:
        reply = await self._awaits.call(master.address, Command(code, ext), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RemoteError(reply.code, reply.remark or "", master.address)
        return reply, object_of(master.address, reply)

    async def _whole(self, master: Master, code: RequestCode, what: str, count: int) -> list[dict[str, Any]]:
        """All slices of one version of a table; `what` is Topic or Group, as in the names of the fields."""
        for _ in range(MAX_TABLE_TRIES):
            bodies = await self._slices(master, code, what, count)
            if all(body.get("dataVersion") == bodies[0].get("dataVersion") for body in bodies):
                return bodies
        raise RemoteProtocolError(f"{master.address} changes its table too often to be read: request {code}")

    async def _slices(self, master: Master, code: RequestCode, what: str, count: int) -> list[dict[str, Any]]:
        bodies: list[dict[str, Any]] = []
        for place in range(MAX_SLICES):
            first = place * count
            ext = {f"{what.lower()}Seq": str(first), f"max{what}Num": str(count), "dataVersion": ""}
            reply, body = await self._ask(master, code, ext)
            bodies.append(body)
            if first + count >= int(reply.ext.get(f"total{what}Num") or 0):
                break
        return bodies

    async def _pull_topics(self, master: Master, count: int = SLICE_COUNT) -> None:
        bodies = await self._whole(master, RequestCode.GET_ALL_TOPIC_CONFIG, "Topic", count)
        table = {name: topic for body in bodies for name, topic in topic_table.parse_table(body).items()}
        if self._master() == master and table:
            deleted = topic_table.parse_deleted(bodies[-1])
            self._topics.replace(table, DataVersion.from_json(bodies[-1].get("dataVersion")), deleted)

    async def _pull_groups(self, master: Master, count: int = SLICE_COUNT) -> None:
        bodies = await self._whole(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "Group", count)
        table = {name: group for body in bodies for name, group in group_table.parse_table(body).items()}
        if self._master() == master:
            self._groups.replace(bodies[-1], table)

    async def _pull_offsets(self, master: Master) -> None:
        _, body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        if self._master() == master:
            self._offsets.replace(body)

    async def _pull_delay_offsets(self, master: Master) -> None:
        _, body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        if self._master() == master:
            self._delay_offsets.replace(body)


def object_of(address: str, reply: Command) -> dict[str, Any]:
    body = lenient_json.loads(reply.body)
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{address} answered with something else than an object")
    return body
