"""Request 52030: slaves follow their master's tables by a long poll; strict changes wait until the set has them.

A slave sends the versions that it has on its disk. The master answers with newer entries, at once for topics and
groups, within 100 ms for offsets. So the next poll acknowledges the last answer. With metadataSync=strict an operator
is answered when every rmqha member of the SyncStateSet has acknowledged, and a slave is proposed for the set only once
it has the tables: every replica that can be elected has every answered change (ruling 16). No trio; all calls come from
the one thread of the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rmqha.broker.access.user_table import UserTable
from rmqha.broker.pop.modes import ModeTable
from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, Work, number, text
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable, from_body, to_body
from rmqha.broker.tables.table_file import TableFile
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import BrokerId, Epoch
from rmqha.port import Clock, Tracer
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.state.replica_state import MetadataVersions, ReplicaState

VERSION = 1
MAX_HOLD_MS = 10_000
STALE_MS = MAX_HOLD_MS + 5_000
"""Time (ms) without a poll after which another program may have replaced a slave under its id."""
MAX_OFFSETS_PER_ANSWER = 20_000
OFFSETS_LOG_END = "offsetsLogEnd"
"""Field of an answer: end of the log that a slave must have before it uses the offsets."""
RESTORED_PER_STEP = 64
"""Offsets that are restored in one step; each may need a search for the end of its queue."""
MAX_FOLLOWER_COUNT = 64
"""Slaves in one epoch; any peer can claim an id."""


WaitKind = tuple[bool, bool, bool]
"""Kind of wait: True for tables of the set, offsets of the set, offsets of this replica."""


class _Versions(NamedTuple):
    """Versions that the set must have."""

    topics: TableVersion = NO_VERSION
    groups: TableVersion = NO_VERSION
    users: TableVersion = NO_VERSION
    offsets: TableVersion = NO_VERSION


@dataclass(slots=True)
class _Follower:
    """Versions that a slave has, by its last poll in this epoch."""

    topics: TableVersion
    groups: TableVersion
    offsets: TableVersion
    delays: TableVersion
    users: TableVersion | None
    """None for a release without users."""
    modes: str | None
    """Digest; None for a release without modes."""
    asked_at_ms: int


@dataclass(slots=True)
class _HeldPoll:
    channel: Channel
    command: Command
    deadline_ms: int


@dataclass(slots=True)
class _Wait:
    """Pending answer. `done("")` follows when the set has these versions and this replica's disk these changes (the
    replica may be killed and become master again); `done(reason)` after a failure."""

    of_set: _Versions | None
    """None if the set need not have them."""
    own: tuple[int, int, int]
    """Changes of topics, groups and users, by the counts of their files."""
    own_offsets: TableVersion
    deadline_ms: int
    done: Callable[[str], None]

    @property
    def kind(self) -> WaitKind:
        of_set_offsets = NO_VERSION if self.of_set is None else self.of_set.offsets
        return self.of_set is not None, of_set_offsets > NO_VERSION, self.own_offsets > NO_VERSION


class TableGroup(Protocol):
    """Port to the state of the group and its log."""

    @property
    def epoch(self) -> Epoch: ...

    def may_follow_tables(self, epoch: int) -> bool:
        """True if this replica is the master of `epoch`, or of a group without epochs."""
        ...

    def other_members(self) -> tuple[BrokerId, ...] | None:
        """Other replicas that are, or may be, in the SyncStateSet; None while the set is too small for an answer."""
        ...

    @property
    def log_end(self) -> int:
        """End of the log that a replica must have before it uses this replica's offsets."""
        ...

    def end_of(self, topic: str, queue_id: int, epoch: int) -> int:
        """Bound on a consumer offset that was committed to a master of that epoch: the end of the queue. No bound
        before this replica serves."""
        ...

    def slave_caught_up(self) -> None:
        """A slave has caught up: it may be proposed for the set."""


class TableSaver(Protocol):
    """Port that writes tables soon, then calls `MetadataLeader.saved`; a `BrokerShell` is one."""

    def save_offsets_soon(self) -> None: ...

    def save_tables_soon(self) -> None: ...


class MetadataLeader:
    def __init__(
        self,
        config: BrokerConfig,
        group: TableGroup,
        saver: TableSaver,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delays: DelayOffsetTable,
        users: UserTable,
        modes: ModeTable,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._config = config
        self._group = group
        self._saver = saver
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._users = users
        self._modes = modes
        self._clock = clock
        self._tracer = tracer
        self._followers: dict[BrokerId, _Follower] = {}
        self._foreign: set[BrokerId] = set()
        self._held_polls: dict[BrokerId, _HeldPoll] = {}
        self._waits: dict[WaitKind, deque[_Wait]] = {}
        """Waits by kind, in the order of their versions: while the first waits, so do the others."""
        self._answered = NO_VERSION
        """Newest offsets that were answered under offsetSync=strict or to an operator, here or perhaps by an earlier
        master."""

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.RMQHA_FOLLOW_TABLES: self._follow}

    # --- slaves -------------------------------------------------------------------------------------------------------
    def _follow(self, channel: Channel, command: Command) -> Work | None:
        version = number(command, "version")
        if version != VERSION:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"version {version} of request 52030 is not known here")
        self._require_master(command)
        if command.body:
            return self._follow_back(channel, command)
        self._hold(channel, command)
        return None

    def _require_master(self, command: Command) -> None:
        epoch = number(command, "masterEpoch")
        if not self._group.may_follow_tables(epoch):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is not the master of epoch {epoch}, its own is {self._group.epoch}",
            )

    def _follow_back(self, channel: Channel, command: Command) -> Work:
        """Take back, in steps, the commits that this replica lost when it was killed, and the slave still has. What it
        says to have heard may be older than these are: it hears all again before it counts."""
        body = lenient_json.loads(command.body, is_strict=True)
        try:
            changes = from_body(body)
        except (KeyError, TypeError, ValueError):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the body of request 52030 is not one") from None
        count = 0
        for start in range(0, len(changes), RESTORED_PER_STEP):
            self._require_master(command)
            count += self._offsets.take_back(changes[start : start + RESTORED_PER_STEP], self._group.end_of)
            yield
        if count:
            self._tracer.event("offsets_taken_back", count=count)
            command.ext["offsets"] = str(NO_VERSION)
        self._require_master(command)
        self._hold(channel, command)
        return None

    def _hold(self, channel: Channel, command: Command) -> None:
        """Answer at once if there are changes, else after the next one."""
        now_ms, broker_id = self._clock.now_ms(), BrokerId(number(command, "brokerId"))
        topics, groups, offsets, delays = (_stamp(command, name) for name in ("topics", "groups", "offsets", "delays"))
        users = _stamp(command, "users") if "users" in command.ext else None
        follower = _Follower(topics, groups, offsets, delays, users, command.ext.get("modes"), now_ms)
        if broker_id not in self._followers and len(self._followers) >= MAX_FOLLOWER_COUNT:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{MAX_FOLLOWER_COUNT} replicas follow already")
        self._followers[broker_id] = follower
        self._foreign.discard(broker_id)
        wait_ms = max(0, min(number(command, "waitMs", 0), MAX_HOLD_MS))
        self._drop_held_poll(broker_id)
        self._held_polls[broker_id] = _HeldPoll(channel, command, now_ms + wait_ms)
        if self._has_changes(follower, offsets=self.waiting_count > 0) or wait_ms == 0:
            self._answer(broker_id)
        self._end_waits()
        if self._holds_tables(follower):
            self._group.slave_caught_up()

    def _has_changes(self, follower: _Follower, *, offsets: bool) -> bool:
        """True if the slave lacks a change. `offsets`: consumer offsets too, which change all the time."""
        if not self._is_current(follower) or follower.delays != self._delays.version.stamp:
            return True
        if follower.modes not in (None, self._modes.digest):
            return True
        return offsets and follower.offsets < self._offsets.stamp

    def _holds_tables(self, follower: _Follower) -> bool:
        """True if the slave has the same content: versions change with each election, and a failover need not wait."""
        if follower.offsets < self._answered:
            return False
        if not self.is_strict:
            return True
        if follower.users not in (None, self._users.version.stamp):
            return False
        return not (self._topics.has_changed_since(follower.topics) or self._groups.has_changed_since(follower.groups))

    def _is_current(self, follower: _Follower) -> bool:
        if follower.users not in (None, self._users.version.stamp):
            return False
        return follower.topics == self._topics.version.stamp and follower.groups == self._groups.version.stamp

    def _answer(self, broker_id: BrokerId) -> None:
        """Answer with everything newer than the slave's versions."""
        hold, follower = self._held_polls.pop(broker_id), self._followers[broker_id]
        if was_refused(hold.channel, hold.command):
            return
        body: dict[str, Any] = {"version": VERSION}
        ext: dict[str, str] = {}
        if follower.topics != self._topics.version.stamp:
            body["topics"] = self._topics.changes_since(follower.topics) or {"whole": True}
        if follower.groups != self._groups.version.stamp:
            body["groups"] = self._groups.changes_since(follower.groups) or {"whole": True}
        changes = self._offsets.changes_since(follower.offsets, MAX_OFFSETS_PER_ANSWER)
        if changes:
            body |= to_body(changes)
            ext = {OFFSETS_LOG_END: str(self._group.log_end)}
        if follower.delays != self._delays.version.stamp:
            body["delays"] = self._delays.to_follower()
        if follower.users not in (None, self._users.version.stamp):
            body["users"] = self._users.to_json()
        if follower.modes not in (None, self._modes.digest):
            body["modes"] = self._modes.to_json()
        hold.channel.send(hold.command.reply(ext=ext, body=lenient_json.dumps(body)))

    def _drop_held_poll(self, broker_id: BrokerId) -> None:
        """Drop the held poll of a slave that polls again: its connection is gone or its time-out is over."""
        if broker_id in self._held_polls:
            self._answer(broker_id)

    def changed(self) -> None:
        """Answer held polls after a change of anything but offsets."""
        for broker_id in list(self._held_polls):
            if self._has_changes(self._followers[broker_id], offsets=True):
                self._answer(broker_id)

    # --- state of the slaves ----------------------------------------------------------------------------------------
    @property
    def is_strict(self) -> bool:
        return self._config.metadata_strict

    @property
    def waits_for_slaves(self) -> bool:
        """True if some answers wait for the members of the set."""
        return self.is_strict or self._config.offset_sync == "strict"

    def may_join(self, broker_id: BrokerId) -> bool:
        """True if the slave may be proposed for the SyncStateSet: with strict it needs all tables and all answered
        offsets, or runs no rmqha."""
        if not self.waits_for_slaves or broker_id in self._foreign:
            return True
        follower = self._followers.get(broker_id)
        return follower is not None and self._holds_tables(follower)

    def unknown(self, connected: list[BrokerId]) -> list[BrokerId]:
        """Slaves in `connected` that may run rmqha and do not follow the tables."""
        now_ms = self._clock.now_ms()
        silent = []
        for broker_id in connected:
            follower = self._followers.get(broker_id)
            if broker_id not in self._foreign and (follower is None or follower.asked_at_ms + STALE_MS < now_ms):
                silent.append(broker_id)
        return silent

    def mark_foreign(self, broker_id: BrokerId) -> None:
        """Note that the slave runs no rmqha: nothing waits for it."""
        self._foreign.add(broker_id)
        self._followers.pop(broker_id, None)
        self._tracer.event("metadata_not_strict", broker_id=broker_id, reason="the replica does not know request 52030")
        self._end_waits()
        self._group.slave_caught_up()

    @property
    def caught_up(self) -> list[BrokerId]:
        """Slaves that have the present tables."""
        return sorted(item for item, follower in self._followers.items() if self._is_current(follower))

    def add_state(self, state: ReplicaState) -> None:
        """Add its part to an answer to 52000."""
        state.metadata_sync = "strict" if self.is_strict else "periodic"
        state.offset_sync = self._config.offset_sync
        state.metadata_versions = MetadataVersions(
            topics=str(self._topics.version.stamp),
            groups=str(self._groups.version.stamp),
            offsets=str(self._offsets.stamp),
            delays=str(self._delays.version.stamp),
        )
        state.metadata_level = self.caught_up
        state.metadata_foreign = sorted(self._foreign)
        state.metadata_waiting_count = self.waiting_count

    # --- strict changes -----------------------------------------------------------------------------------------------
    def wait(self, done: Callable[[str], None]) -> None:
        """Call `done("")` when this replica's disk has the present topics, groups and users, and with
        metadataSync=strict the set too; else `done(reason)`."""
        self._wait_tables(NO_VERSION, done)

    def wait_reset(self, done: Callable[[str], None]) -> None:
        """Wait as `wait` does, and for the offsets too, which an operator has set or removed."""
        if self.is_strict:
            self._saver.save_offsets_soon()
        self._wait_tables(self._offsets.stamp, done)

    def _wait_tables(self, offsets: TableVersion, done: Callable[[str], None]) -> None:
        tables = self._topics, self._groups, self._users
        topics, groups, users = (table.version.stamp for table in tables)
        of_set = _Versions(topics, groups, users, offsets) if self.is_strict else None
        self._wait(
            of_set,
            (tables[0].file.changed_count, tables[1].file.changed_count, tables[2].file.changed_count),
            offsets if self.is_strict else NO_VERSION,
            done,
        )

    def wait_commit(self, done: Callable[[str], None]) -> None:
        """Wait as `wait` does, for offsets alone, under offsetSync=strict."""
        if self._config.offset_sync == "strict":
            self.changed()
            self._saver.save_offsets_soon()
            self._wait(_Versions(offsets=self._offsets.stamp), (0, 0, 0), self._offsets.stamp, done)
        else:
            done("")

    def saved(self) -> None:
        """Take note that a write of the files has ended."""
        self._end_waits(after_save=True)

    def _wait(
        self,
        of_set: _Versions | None,
        own: tuple[int, int, int],
        own_offsets: TableVersion,
        done: Callable[[str], None],
    ) -> None:
        deadline_ms = self._clock.now_ms() + self._config.metadata_sync_timeout_ms
        wait = _Wait(of_set, own, own_offsets, deadline_ms, done)
        kind = self._waits.setdefault(wait.kind, deque())
        kind.append(wait)
        if self._unsaved(wait):
            self._saver.save_tables_soon()
        if len(kind) == 1:
            self._end_waits()

    def _unsaved(self, wait: _Wait) -> list[TableFile]:
        """Files of this replica that lack the wait's changes."""
        files = self._topics.file, self._groups.file, self._users.file
        return [file for file, count in zip(files, wait.own, strict=True) if file.saved_count < count]

    def _missing(self, wait: _Wait) -> str:
        """Names of replicas that lack the wait's versions, "" for none."""
        lacking = self._lacking(wait.of_set) if wait.of_set is not None else ""
        if not lacking and (self._offsets.saved_stamp < wait.own_offsets or self._unsaved(wait)):
            return "this replica's disk"
        return lacking

    def _lacking(self, of_set: _Versions) -> str:
        members = self._group.other_members()
        if members is None:
            return "a majority of the group"
        lacking = [
            str(member)
            for member in members
            if member not in self._foreign
            and (
                (follower := self._followers.get(member)) is None
                or follower.topics < of_set.topics
                or follower.groups < of_set.groups
                or (follower.users is not None and follower.users < of_set.users)
                or follower.offsets < of_set.offsets
            )
        ]
        return ", ".join(f"replica {member}" for member in lacking)

    def _end_waits(self, *, after_save: bool = False) -> None:
        """End waits of each kind up to the first that must wait. After a write of files all are checked, since it may
        have failed."""
        now_ms = self._clock.now_ms()
        for kind in list(self._waits.values()):
            still: list[_Wait] = []
            for _ in range(len(kind)):
                if not kind or (still and not after_save):
                    break
                wait = kind.popleft()
                if not self._end_if_due(wait, now_ms, after_save):
                    still.append(wait)
            kind.extendleft(reversed(still))

    def _end_if_due(self, wait: _Wait, now_ms: int, after_save: bool) -> bool:
        """Answer a wait if it is complete, failed or late; True if so."""
        missing = self._missing(wait)
        if not missing:
            if wait.own_offsets > self._answered:
                self._answered = wait.own_offsets
            wait.done("")
        elif after_save and (trouble := next((file.trouble for file in self._unsaved(wait) if file.trouble), "")):
            wait.done(f"the change is made here but this replica's disk does not take it ({trouble}); ask again")
        elif now_ms >= wait.deadline_ms:
            timeout_ms = self._config.metadata_sync_timeout_ms
            wait.done(f"the change is made here but {missing} has not confirmed it within {timeout_ms} ms; ask again")
        else:
            return False
        return True

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waits.values()))

    @property
    def topic_waiting_count(self) -> int:
        """Number of waits for topics and groups alone; waits for offsets are always there."""
        return sum(len(self._waits.get((of_set, False, False), ())) for of_set in (True, False))

    # --- time and role ------------------------------------------------------------------------------------------------
    def timeout(self) -> None:
        """Send offsets and end late polls and waits; call every 100 ms."""
        now_ms = self._clock.now_ms()
        for broker_id, hold in list(self._held_polls.items()):
            if now_ms >= hold.deadline_ms or self._has_changes(self._followers[broker_id], offsets=True):
                self._answer(broker_id)
        self._end_waits()

    def role_changed(self) -> None:
        """Forget the state of another epoch."""
        is_each = self._config.offset_sync == "strict"
        self._answered = self._offsets.stamp if is_each else self._offsets.ordered_stamp
        for hold in self._held_polls.values():
            remark = "the master has changed"
            hold.channel.send(hold.command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=remark))
        self._held_polls.clear()
        self._followers.clear()
        self._foreign.clear()
        lines, self._waits = self._waits, {}
        for wait in (wait for kind in lines.values() for wait in kind):
            wait.done("this broker is no longer the master; whether the change survives is not known, ask again")


def _stamp(command: Command, name: str) -> TableVersion:
    try:
        return TableVersion.parse(text(command, name))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code}: {error}") from None
