"""Request 52030: slaves follow their master's tables by a long poll; strict changes wait until the set holds them.

A slave says which versions it holds, and that they are on its disk; the master answers with what is newer, at once for
topics and groups, within 100 ms for offsets. So the next poll is the acknowledgement of the last answer. Under
metadataSync=strict an operator is answered when every rmqha member of the SyncStateSet has acknowledged, and a slave is
proposed for the set only once it holds the tables: whoever can be elected has every change that was answered (ruling
16). No trio; the caller is the one thread of the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rmqha.broker.access.user_table import UserTable
from rmqha.broker.pop.modes import ModeTable
from rmqha.broker.requests.request import Channel, Handler, RequestError, Work, number, text
from rmqha.broker.tables.delay_offsets import DelayOffsetTable
from rmqha.broker.tables.groups import GroupTable
from rmqha.broker.tables.offsets import OffsetTable, from_body, to_body
from rmqha.broker.tables.table_file import TableFile
from rmqha.broker.tables.table_version import NO_STAMP, TableVersion
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
"""A slave that has not asked for so long may have been replaced by another program under its id."""
MAX_OFFSETS_PER_ANSWER = 20_000
OFFSETS_LOG_END = "offsetsLogEnd"
"""Field of an answer: a slave's log must reach that far before the offsets count there."""
TAKEN_BACK_AT_A_TIME = 64
"""Offsets, in one step; each may take a search for the end of its queue."""
MAX_FOLLOWER_COUNT = 64
"""Ids that may follow in one epoch; anyone can claim one."""


Line = tuple[bool, bool, bool]
"""A kind of wait: for the set, for its offsets, for this replica's offsets."""


class _Versions(NamedTuple):
    """Versions that a set is to hold."""

    topics: TableVersion = NO_STAMP
    groups: TableVersion = NO_STAMP
    users: TableVersion = NO_STAMP
    offsets: TableVersion = NO_STAMP


@dataclass(slots=True)
class _Follower:
    """The versions that a slave holds, by its last poll in this epoch."""

    topics: TableVersion
    groups: TableVersion
    offsets: TableVersion
    delays: TableVersion
    users: TableVersion | None
    """None: a release that does not know of users."""
    modes: str | None
    """A digest; None: a release that does not know of modes."""
    asked_at_ms: int


@dataclass(slots=True)
class _Hold:
    channel: Channel
    command: Command
    deadline_ms: int


@dataclass(slots=True)
class _Wait:
    """An answer that waits: `done("")` when the set holds these versions, and this replica's own disk these changes
    (it may be killed, come back and still be the master); else with the reason."""

    of_set: _Versions | None
    """None: the set is not waited for."""
    own: tuple[int, int, int]
    """Changes of topics, groups and users, as their files count them."""
    own_offsets: TableVersion
    deadline_ms: int
    done: Callable[[str], None]

    @property
    def line(self) -> Line:
        of_set_offsets = NO_STAMP if self.of_set is None else self.of_set.offsets
        return self.of_set is not None, of_set_offsets > NO_STAMP, self.own_offsets > NO_STAMP


class TableGroup(Protocol):
    """Port of what is known, and told, of the group and its log."""

    @property
    def epoch(self) -> Epoch: ...

    def may_follow_tables(self, epoch: int) -> bool:
        """True if this replica is the master of `epoch`, or of a group without epochs."""
        ...

    def other_members(self) -> tuple[BrokerId, ...] | None:
        """All but this replica that are, or may by now be, in the SyncStateSet; None while the set is too small for
        anything to be answered."""
        ...

    @property
    def log_end(self) -> int:
        """The end of the log on which the offsets of this replica count."""
        ...

    def end_of(self, topic: str, queue_id: int, epoch: int) -> int:
        """The end of a queue: behind it no offset may lie that a consumer told a master of that epoch. No bound while
        this replica does not serve yet."""
        ...

    def slave_is_level(self) -> None:
        """A slave has come level: it may be proposed for the set."""


class TableSaver(Protocol):
    """Writes files that are waited for soon, then calls `MetadataLeader.saved`; a `BrokerShell` is one."""

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
        self._holds: dict[BrokerId, _Hold] = {}
        self._lines: dict[Line, deque[_Wait]] = {}
        """Waits of one kind, in the order of what they wait for: while the first waits, so do the others."""
        self._answered = NO_STAMP
        """Offsets that were answered under offsetSync=strict or to an operator, or may have been by a master before."""

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
        for start in range(0, len(changes), TAKEN_BACK_AT_A_TIME):
            self._require_master(command)
            count += self._offsets.take_back(changes[start : start + TAKEN_BACK_AT_A_TIME], self._group.end_of)
            yield
        if count:
            self._tracer.event("offsets_taken_back", count=count)
            command.ext["offsets"] = str(NO_STAMP)
        self._require_master(command)
        self._hold(channel, command)
        return None

    def _hold(self, channel: Channel, command: Command) -> None:
        """Answer at once if there is news, else when some comes."""
        now_ms, broker_id = self._clock.now_ms(), BrokerId(number(command, "brokerId"))
        topics, groups, offsets, delays = (_stamp(command, name) for name in ("topics", "groups", "offsets", "delays"))
        users = _stamp(command, "users") if "users" in command.ext else None
        follower = _Follower(topics, groups, offsets, delays, users, command.ext.get("modes"), now_ms)
        if broker_id not in self._followers and len(self._followers) >= MAX_FOLLOWER_COUNT:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{MAX_FOLLOWER_COUNT} replicas follow already")
        self._followers[broker_id] = follower
        self._foreign.discard(broker_id)
        wait_ms = max(0, min(number(command, "waitMs", 0), MAX_HOLD_MS))
        self._release(broker_id)
        self._holds[broker_id] = _Hold(channel, command, now_ms + wait_ms)
        if self._has_news(follower, offsets=self.waiting_count > 0) or wait_ms == 0:
            self._answer(broker_id)
        self._settle()
        if self._holds_tables(follower):
            self._group.slave_is_level()

    def _has_news(self, follower: _Follower, *, offsets: bool) -> bool:
        """`offsets`: consumer offsets too, which change all the time."""
        if not self._is_current(follower) or follower.delays != self._delays.version.stamp:
            return True
        if follower.modes not in (None, self._modes.digest):
            return True
        return offsets and follower.offsets < self._offsets.stamp

    def _holds_tables(self, follower: _Follower) -> bool:
        """By content: the version alone moves with each election, and a failover need not wait for that."""
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
        """Everything that is newer than what the slave holds."""
        hold, follower = self._holds.pop(broker_id), self._followers[broker_id]
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

    def _release(self, broker_id: BrokerId) -> None:
        """A slave asks anew before its last poll was answered: that one's connection is gone or nobody waits."""
        if broker_id in self._holds:
            self._answer(broker_id)

    def changed(self) -> None:
        """Anything but a commit has changed: slaves hear of it now."""
        for broker_id in list(self._holds):
            if self._has_news(self._followers[broker_id], offsets=True):
                self._answer(broker_id)

    # --- who holds what -----------------------------------------------------------------------------------------------
    @property
    def is_strict(self) -> bool:
        return self._config.metadata_strict

    @property
    def waits_for_slaves(self) -> bool:
        """True if some answer is given only when the set's members have something."""
        return self.is_strict or self._config.offset_sync == "strict"

    def may_join(self, broker_id: BrokerId) -> bool:
        """True if the slave may be proposed for the SyncStateSet: strict needs all tables and all offsets that were
        answered, or that it is foreign."""
        if not self.waits_for_slaves or broker_id in self._foreign:
            return True
        follower = self._followers.get(broker_id)
        return follower is not None and self._holds_tables(follower)

    def unknown(self, connected: list[BrokerId]) -> list[BrokerId]:
        """Slaves in `connected` that do not follow the tables though they could be ones of ours."""
        now_ms = self._clock.now_ms()
        silent = []
        for broker_id in connected:
            follower = self._followers.get(broker_id)
            if broker_id not in self._foreign and (follower is None or follower.asked_at_ms + STALE_MS < now_ms):
                silent.append(broker_id)
        return silent

    def mark_foreign(self, broker_id: BrokerId) -> None:
        """The slave is no rmqha: nothing waits for it."""
        self._foreign.add(broker_id)
        self._followers.pop(broker_id, None)
        self._tracer.event("metadata_not_strict", broker_id=broker_id, reason="the replica does not know request 52030")
        self._settle()
        self._group.slave_is_level()

    @property
    def level(self) -> list[BrokerId]:
        """Slaves whose tables are as these."""
        return sorted(item for item, follower in self._followers.items() if self._is_current(follower))

    def tell(self, state: ReplicaState) -> None:
        """Fill in its part of an answer to 52000."""
        state.metadata_sync = "strict" if self.is_strict else "periodic"
        state.offset_sync = self._config.offset_sync
        state.metadata_versions = MetadataVersions(
            topics=str(self._topics.version.stamp),
            groups=str(self._groups.version.stamp),
            offsets=str(self._offsets.stamp),
            delays=str(self._delays.version.stamp),
        )
        state.metadata_level = self.level
        state.metadata_foreign = sorted(self._foreign)
        state.metadata_waiting_count = self.waiting_count

    # --- strict changes -----------------------------------------------------------------------------------------------
    def wait(self, done: Callable[[str], None]) -> None:
        """Call `done("")` when this replica's disk holds topics, groups and users as they are now, and so does the set
        if metadataSync is strict; else `done(reason)`."""
        self._wait_tables(NO_STAMP, done)

    def wait_reset(self, done: Callable[[str], None]) -> None:
        """Wait as `wait` does, and for the offsets too: an operator has set or removed some."""
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
            offsets if self.is_strict else NO_STAMP,
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
        """Files were to be written."""
        self._settle(after_save=True)

    def _wait(
        self,
        of_set: _Versions | None,
        own: tuple[int, int, int],
        own_offsets: TableVersion,
        done: Callable[[str], None],
    ) -> None:
        deadline_ms = self._clock.now_ms() + self._config.metadata_sync_timeout_ms
        wait = _Wait(of_set, own, own_offsets, deadline_ms, done)
        line = self._lines.setdefault(wait.line, deque())
        line.append(wait)
        if self._unsaved(wait):
            self._saver.save_tables_soon()
        if len(line) == 1:
            self._settle()

    def _unsaved(self, wait: _Wait) -> list[TableFile]:
        """Files of this replica that lack what is waited for."""
        files = self._topics.file, self._groups.file, self._users.file
        return [file for file, count in zip(files, wait.own, strict=True) if file.saved_count < count]

    def _missing(self, wait: _Wait) -> str:
        """Names of those that do not hold what is waited for, "" for nobody."""
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
        return f"replica {', '.join(lacking)}" if lacking else ""

    def _settle(self, *, after_save: bool = False) -> None:
        """Each kind up to the first that still waits; after files were to be written all: some may have to hear of
        trouble."""
        now_ms = self._clock.now_ms()
        for line in list(self._lines.values()):
            still: list[_Wait] = []
            for _ in range(len(line)):
                if not line or (still and not after_save):
                    break
                wait = line.popleft()
                if not self._is_ended(wait, now_ms, after_save):
                    still.append(wait)
            line.extendleft(reversed(still))

    def _is_ended(self, wait: _Wait, now_ms: int, after_save: bool) -> bool:
        """Answers, if it is time."""
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
        return sum(map(len, self._lines.values()))

    @property
    def topic_waiting_count(self) -> int:
        """Number of waits for topics and groups alone; offsets are waited for all the time."""
        return sum(len(self._lines.get((of_set, False, False), ())) for of_set in (True, False))

    # --- time and role ------------------------------------------------------------------------------------------------
    def timeout(self) -> None:
        """Call each 100 ms: offsets go out, polls and waits end."""
        now_ms = self._clock.now_ms()
        for broker_id, hold in list(self._holds.items()):
            if now_ms >= hold.deadline_ms or self._has_news(self._followers[broker_id], offsets=True):
                self._answer(broker_id)
        self._settle()

    def role_changed(self) -> None:
        """Forget what was said in another epoch."""
        is_each = self._config.offset_sync == "strict"
        self._answered = self._offsets.stamp if is_each else self._offsets.ordered_stamp
        for hold in self._holds.values():
            remark = "the master has changed"
            hold.channel.send(hold.command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=remark))
        self._holds.clear()
        self._followers.clear()
        self._foreign.clear()
        lines, self._lines = self._lines, {}
        for wait in (wait for line in lines.values() for wait in line):
            wait.done("this broker is no longer the master; whether the change survives is not known, ask again")


def _stamp(command: Command, name: str) -> TableVersion:
    try:
        return TableVersion.parse(text(command, name))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code}: {error}") from None
