"""Replication of the master's tables to a slave: topics, groups, offsets, users, request modes. No trio: it awaits only
`AsyncPort`, which the host's shell implements with trio and the simulation with its events.

An rmqha master is followed by a long poll (request 52030): each answer has newer entries, each poll the versions on
this replica's disk. Apache's master does not know that request: its tables are pulled whole every five seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from rmqha.broker.access.user_table import UserTable
from rmqha.broker.pop.modes import ModeTable, parse_modes
from rmqha.broker.tables import groups as group_table
from rmqha.broker.tables import topics as topic_table
from rmqha.broker.tables.config_table import DataVersion, mapping
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.metadata_leader import MAX_HOLD_MS, MAX_OFFSETS_PER_ANSWER, OFFSETS_LOG_END, VERSION
from rmqha.broker.tables.offset_index import OffsetKey
from rmqha.broker.tables.offsets import OffsetChange, OffsetTable, from_body, to_body
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
from rmqha.broker.tables.topics import TopicTable
from rmqha.broker.timers import timer_check
from rmqha.broker.timers.master_counts import MasterTimerCounts
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UnreachableError
from rmqha.model.offset import BrokerId, Epoch
from rmqha.port import Tracer
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

T = TypeVar("T")
INTERVAL_MS = 5000
FIRST_INTERVAL_MS = 500
"""Interval (ms) until the first success under a master, so that a new slave is useful soon."""
RETRY_MS = 5
"""First retry interval (ms): a new master may learn of its election after its slaves."""
MAX_RETRY_MS = 500
CALL_TIMEOUT_MS = 3000
UNALIGNED_HOLD_MS = 200
"""Time (ms) for which a poll is held while the logs are not aligned yet."""
LOG_WAIT_MS = 1000
"""Longest time (ms) for which offsets wait for this replica's log; then they are requested again."""
POLL_MS = 10
TIMER_MARGIN_MS = 5000
"""Timer messages that Apache's master delivered within this time (ms) are delivered again after a take-over."""
SLICE_COUNT = 2000
"""Topics or groups in one answer of Apache's master, as its slaves ask for."""
OWN_SLICE_COUNT = 10_000
"""Topics or groups in one answer of an rmqha master: fewer slices, so that a table seldom changes between them."""
MAX_SLICES = 1000
MAX_TABLE_TRIES = 5
"""Attempts to read a table that changes while its slices are read."""

_FAULTS = (UnreachableError, RemoteError, RemoteProtocolError, ValueError, TypeError)


class FollowedMaster(NamedTuple):
    """The master that this replica follows, its epoch, and this replica's id."""

    address: str
    epoch: Epoch
    own_id: BrokerId


class AsyncPort(Protocol):
    """Port of everything that takes time."""

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a request. Returns the answer. Raises UnreachableError without one."""
        ...

    async def sleep(self, duration_ms: int) -> None: ...

    async def write(self, write: Callable[[T], None], data: T) -> None:
        """Call `write(data)`, which waits for the disk; a cancellation does not stop it. Raises what it raises."""
        ...


class MetadataFollower:
    """Follower of the master that `master` returns, None without one or on the master.

    Answers are used only while that master stays the same, so a table that arrives during a switch never replaces what
    this replica has accepted as master.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        users: UserTable,
        modes: ModeTable,
        timer_counts: MasterTimerCounts,
        port: AsyncPort,
        master: Callable[[], FollowedMaster | None],
        holds: Callable[[int], bool],
        tracer: Tracer,
        *,
        saves_offsets: bool = False,
    ) -> None:
        """`holds(offset)`: this replica's log is a part of its master's, and reaches `offset`. `saves_offsets`:
        acknowledged consumer offsets are on the disk (offsetSync=strict); else only those that operators have set."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._users = users
        self._modes = modes
        self._timer_counts = timer_counts
        self._port = port
        self._master = master
        self._holds = holds
        self._tracer = tracer
        self._saves_offsets = saves_offsets
        self._received = NO_VERSION
        """Newest offset change that this master has sent."""
        self._delays_received = NO_VERSION
        """Version of the delay offsets that this master has sent."""
        self._compared = False
        """True once it is known which offsets are newer here than on the master."""
        self._unconfirmed: dict[OffsetKey, TableVersion] | None = None
        """Offsets of this replica that the master has not sent yet, during the comparison."""
        self._lost_by_master: list[OffsetChange] = []
        """Changes for the master, which lost them by a kill."""
        self._failed = False

    # --- a master that is rmqha ---------------------------------------------------------------------------------------
    async def follow(self, master: FollowedMaster) -> None:
        """Follow a master until there is another. May be cancelled at any await."""
        self._begin()
        retry_ms = RETRY_MS
        while self._master() == master:
            try:
                self._compare_from_here()
                await self._save_tables()
                asked = self._received
                reply = await self._poll(master)
                if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    await self._pull_periodically(master)
                    return
                if reply.code != ResponseCode.SUCCESS:
                    raise RemoteError(reply.code, reply.remark or "", master.address)
                await self._take(master, reply, asked)
            except (*_FAULTS, OSError) as error:  # a disk that takes no table is no reason to end
                self._note_failure(master, error)
                self._begin()  # it may have been killed and be back, with older tables
                await self._port.sleep(retry_ms)
                retry_ms = min(2 * retry_ms, MAX_RETRY_MS)
            else:
                self._failed = False
                retry_ms = RETRY_MS

    def log_cut(self) -> None:
        """Ask for all offsets again after a cut lowered some."""
        self._begin()

    def _begin(self) -> None:
        self._received, self._compared, self._unconfirmed, self._lost_by_master = NO_VERSION, False, None, []
        self._delay_offsets.drop_future_states()
        self._delays_received = self._delay_offsets.version.stamp

    def _compare_from_here(self) -> None:
        """Begin the comparison of offsets, after the logs are aligned: offsets beyond a fork do not count."""
        if not self._compared and self._holds(0):
            self._begin()
            self._compared, self._unconfirmed = True, self._offsets.stamps()

    async def _poll(self, master: FollowedMaster) -> Command:
        wait_ms = MAX_HOLD_MS
        if not self._compared:
            wait_ms = UNALIGNED_HOLD_MS
        elif self._unconfirmed is not None:
            wait_ms = 0
        ext = {
            "version": str(VERSION),
            "masterEpoch": str(master.epoch),
            "brokerId": str(master.own_id),
            "topics": str(self._topics.version.stamp),
            "groups": str(self._groups.version.stamp),
            "offsets": str(self._received),
            "delays": str(self._delays_received),
            "users": str(self._users.version.stamp),
            "modes": self._modes.digest,
            "waitMs": str(wait_ms),
        }
        body = lenient_json.dumps(to_body(self._lost_by_master)) if self._lost_by_master else b""
        command = Command(RequestCode.RMQHA_FOLLOW_TABLES, ext, body)
        return await self._port.call(master.address, command, MAX_HOLD_MS + CALL_TIMEOUT_MS)

    async def _take(self, master: FollowedMaster, reply: Command, asked: TableVersion) -> None:
        """Apply an answer. `asked`: newest offset change at the time of the poll. Raises as `_ask`, ValueError or
        TypeError for a malformed body."""
        body = object_of(master.address, reply)
        if int(body.get("version", 0)) != VERSION:
            raise RemoteProtocolError(f"{master.address} answered request 52030 with version {body.get('version')}")
        if self._master() != master:
            return
        if "delays" in body:
            self._delays_received = DataVersion.from_json(mapping(body["delays"], "delays").get("dataVersion")).stamp
            if self._compared:  # else it is told again: of a log with a fork it is not true, however long that is
                self._delay_offsets.replace(body["delays"])
        offsets = from_body(body) if body.get("offsets") else []
        if not offsets or await self._reaches(master, int(reply.ext.get(OFFSETS_LOG_END) or 0)):
            await self._take_offsets(offsets, asked)
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
        if "users" in body and self._master() == master:
            self._users.replace(mapping(body["users"], "users"))
        if "modes" in body:
            await self._take_modes(master, mapping(body["modes"], "modes"))
        await self._save_tables()

    async def _reaches(self, master: FollowedMaster, log_end: int) -> bool:
        """Wait for the log to reach `log_end`: an offset must not skip a popped message whose checkpoint is missing
        here."""
        for _ in range((LOG_WAIT_MS if self._compared else UNALIGNED_HOLD_MS) // POLL_MS):
            if self._master() != master or self._holds(log_end):
                break
            await self._port.sleep(POLL_MS)
        return self._master() == master and self._holds(log_end)

    async def _take_offsets(self, offsets: list[OffsetChange], asked: TableVersion) -> None:
        if asked == self._received:  # else all is told anew
            if offsets:
                self._received = offsets[-1].stamp
            self._compare(offsets)
        if offsets:
            self._offsets.merge(offsets)
            await self._save_offsets(offsets)

    def _compare(self, offsets: list[OffsetChange]) -> None:
        """Compare with `offsets`, the next part of all offsets of the master; after the last part the newer ones here
        are known."""
        self._lost_by_master = []
        if self._unconfirmed is None:
            return
        for change in offsets:
            offset_key = change.key, change.queue_id
            if change.stamp >= self._unconfirmed.get(offset_key, NO_VERSION):
                self._unconfirmed.pop(offset_key, None)
        if len(offsets) < MAX_OFFSETS_PER_ANSWER:
            self._lost_by_master = self._offsets.changes_of(self._unconfirmed, MAX_OFFSETS_PER_ANSWER)
            self._unconfirmed = None

    async def _take_modes(self, master: FollowedMaster, body: Mapping[str, Any]) -> None:
        """Apply all modes of the master. Raises ValueError, with the modes unchanged, and OSError."""
        modes = parse_modes(body)
        if self._master() == master:
            self._modes.replace(modes)
            if (data := self._modes.unsaved(in_flight=True)) is not None:
                await self._port.write(self._modes.write, data)

    async def _save_offsets(self, changes: list[OffsetChange]) -> None:
        """Save offsets that an operator has set back or removed: like topics they survive a kill of all replicas."""
        is_ordered = any(change.is_reset or change.offset is None for change in changes)
        data = self._offsets.unsaved() if self._saves_offsets or is_ordered else None
        if data is not None:
            await self._port.write(self._offsets.write, data)

    async def _save_tables(self) -> None:
        """Save the tables, which the next poll acknowledges. A change of the version alone may be saved later."""
        for table in (self._topics, self._groups, self._users):
            data = None if table.file.is_saved else table.unsaved(in_flight=True)
            if data is not None:
                await self._port.write(table.file.write, data)

    def _note_failure(self, master: FollowedMaster, error: Exception) -> None:
        if not self._failed:
            self._tracer.event("metadata_not_synced", address=master.address, reason=str(error))
        self._failed = True

    # --- a master that is Apache's ------------------------------------------------------------------------------------
    async def _pull_periodically(self, master: FollowedMaster) -> None:
        pause_ms = FIRST_INTERVAL_MS
        while self._master() == master:
            if await self.pull(master):
                pause_ms = INTERVAL_MS
            await self._port.sleep(pause_ms)

    async def pull(self, master: FollowedMaster) -> bool:
        """Read all tables once; False, traced once, after a failure."""
        try:
            await self._pull_topics(master)
            await self._pull_groups(master)
            await self._save_tables()
            await self._pull_offsets(master)
            await self._pull_modes(master)
            await self._pull_delay_offsets(master)
            await self._pull_timer_counts(master)
        except (*_FAULTS, OSError) as error:
            self._note_failure(master, error)
            return False
        self._failed = False
        return True

    async def _ask(
        self, master: FollowedMaster, code: RequestCode, ext: dict[str, str] | None = None
    ) -> tuple[Command, Any]:
        reply = await self._port.call(master.address, Command(code, ext), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RemoteError(reply.code, reply.remark or "", master.address)
        return reply, object_of(master.address, reply)

    async def _whole(self, master: FollowedMaster, code: RequestCode, what: str, count: int) -> list[dict[str, Any]]:
        """All slices of one version of a table; `what` is Topic or Group, as in the names of the fields."""
        for _ in range(MAX_TABLE_TRIES):
            bodies = await self._slices(master, code, what, count)
            if all(body.get("dataVersion") == bodies[0].get("dataVersion") for body in bodies):
                return bodies
        raise RemoteProtocolError(f"{master.address} changes its table too often to be read: request {code}")

    async def _slices(self, master: FollowedMaster, code: RequestCode, what: str, count: int) -> list[dict[str, Any]]:
        bodies: list[dict[str, Any]] = []
        for offset_key in range(MAX_SLICES):
            first = offset_key * count
            ext = {f"{what.lower()}Seq": str(first), f"max{what}Num": str(count), "dataVersion": ""}
            reply, body = await self._ask(master, code, ext)
            bodies.append(body)
            if first + count >= int(reply.ext.get(f"total{what}Num") or 0):
                break
        return bodies

    async def _pull_topics(self, master: FollowedMaster, count: int = SLICE_COUNT) -> None:
        bodies = await self._whole(master, RequestCode.GET_ALL_TOPIC_CONFIG, "Topic", count)
        table = {name: topic for body in bodies for name, topic in topic_table.parse_table(body).items()}
        if self._master() == master and table:
            deleted = topic_table.parse_deleted(bodies[-1]), topic_table.parse_deleted_ends(bodies[-1])
            self._topics.replace(table, DataVersion.from_json(bodies[-1].get("dataVersion")), *deleted)

    async def _pull_groups(self, master: FollowedMaster, count: int = SLICE_COUNT) -> None:
        bodies = await self._whole(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "Group", count)
        table = {name: group for body in bodies for name, group in group_table.parse_table(body).items()}
        if self._master() == master:
            self._groups.replace(bodies[-1], table)

    async def _pull_offsets(self, master: FollowedMaster) -> None:
        _, body = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET)
        if self._master() == master:
            self._offsets.replace(body)

    async def _pull_delay_offsets(self, master: FollowedMaster) -> None:
        """Read the log's end after the table: the copies that the table counts on lie before it."""
        _, body = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET)
        timer = await self._timer_progress(master)
        _, runtime = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)
        log_end = mapping(runtime.get("table"), "table").get("commitLogMaxOffset", 0)
        if self._master() == master and self._holds(0):
            self._delay_offsets.replace({**body, **timer, "logEnd": log_end})

    async def _pull_modes(self, master: FollowedMaster) -> None:
        """Read the modes, if the master knows them."""
        command = Command(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        reply = await self._port.call(master.address, command, CALL_TIMEOUT_MS)
        if reply.code == ResponseCode.SUCCESS:
            body = object_of(master.address, reply)
            if parse_modes(body) != self._modes.all:
                await self._take_modes(master, body)

    async def _pull_timer_counts(self, master: FollowedMaster) -> None:
        """Read the counts of waiting timers, if the master has a timer wheel."""
        reply = await self._port.call(master.address, Command(RequestCode.GET_TIMER_METRICS), CALL_TIMEOUT_MS)
        if self._master() != master:
            return
        if reply.code == ResponseCode.SUCCESS:
            self._timer_counts.hold(master, object_of(master.address, reply))
        else:
            self._timer_counts.forget()

    async def _timer_progress(self, master: FollowedMaster) -> dict[str, Any]:
        """Progress of timers of a master with a timer wheel, else {}: everything is then delivered again. It is set
        back by the time since the last scan, since the wheel may store a message that waits for more than one round
        later than this replica expects."""
        reply = await self._port.call(master.address, Command(RequestCode.GET_TIMER_CHECK_POINT), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            return {}
        found = timer_check.decode(bytes(reply.body))
        return {"timer": list(found._replace(read_ms=max(0, found.read_ms - TIMER_MARGIN_MS)))}


def object_of(address: str, reply: Command) -> dict[str, Any]:
    body = lenient_json.loads(reply.body)
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{address} answered with something else than an object")
    return body
