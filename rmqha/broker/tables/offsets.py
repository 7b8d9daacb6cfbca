"""Consumer offsets: progress of each group in each queue. config/consumerOffset.json, written when dirty.

Each offset has the version (stamp: master epoch, sequence) of its last change. Replicas merge by version, never by
size: an older offset does not replace a newer one, and a reset backwards is a change like any other. A removed offset
leaves its version, so that no replica brings it back. Resets and removals leave their time too: earlier pops do not
advance the group any more, whichever replica reads their checkpoints in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from rmqha.broker.tables import config_table, table_file
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.tables.offset_index import OffsetKey, Removals, ResetTimes, TopicGroupIndex, last_stamp, newer_than
from rmqha.broker.tables.table_bounds import Creators
from rmqha.broker.tables.table_file import ROWS, TableFile
from rmqha.broker.tables.table_version import NO_VERSION, TableVersion
from rmqha.model.message import RETRY_PREFIX
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.port import Disk
from rmqha.store.meta import config_file
from rmqha.wire.lenient_json import Entries
from rmqha.wire.state.receipt import RETRY_V1, RETRY_V2, normal_topic, retry_topic
from rmqha.wire.steps import RUN_COUNT, sorted_in_steps

MAX_ENTRY_COUNT = 1_000_000
"""Bound on (group, topic) pairs, since any client may name new ones."""
REMOVED_PER_STEP = 256
"""Keys that are removed in one step."""
MAX_REMOVED_COUNT = 100_000
"""Bound on remembered removals; the oldest are forgotten first."""

MAX_TOLD_COUNT = 16
"""A reset is told so often at most: some clients go where they like."""

LOST_COMMIT_COUNT = 1_000_000
"""Bound on the changes that a master can have sent to slaves and not saved before a kill."""
LIVES_MS = 1_000_000
"""Range (ms) of wall times that distinguishes starts of a master, whatever its clock shows."""

FOREIGN_LAG_MS = 60_000
"""Bound (ms) on the delay of an Apache broker's offsets behind its pops: it writes the file each 5 s, and keeps a
checkpoint in memory for 10 s before it counts."""

CUT_VERSION = TableVersion(0, 0)
"""Version of an offset that a cut of this replica's log has lowered."""

_TABLE = "consumerOffset"
_VERSIONS = "rmqhaOffsetVersions"
_REMOVED = "rmqhaRemovedOffsets"
_SET_BACK = "rmqhaSetBackMillis"
_RESET = "reset"
_TOPICS = "groupTopicMap"
_OFFSETS = "offsetTable"
_ROW_TABLES = (_TOPICS, _OFFSETS, _VERSIONS, _REMOVED, _SET_BACK)
_CHANGES, _TIMES = "offsets", "setBackMillis"
"""Members of request 52030's bodies."""
_UNQUOTED_ID = re.compile(rb"[{,]\s*[0-9]+\s*:")


class OffsetChange(NamedTuple):
    """Change of one offset between replicas. `offset` None: it was removed. `is_reset`: an operator has set it, and the
    group's members do not know yet. `set_back_ms`: time of the last reset or removal, 0 for none."""

    key: str
    queue_id: int
    offset: int | None
    stamp: TableVersion
    is_reset: bool = False
    set_back_ms: int = 0

    def to_json(self) -> list[Any]:
        offset = -1 if self.offset is None else self.offset
        return [self.key, self.queue_id, offset, self.stamp.epoch, self.stamp.sequence, self.is_reset]

    @classmethod
    def from_json(cls, value: Any) -> OffsetChange:
        """Change of a JSON row. Raises ValueError or TypeError."""
        key, queue_id, offset, epoch, sequence, is_reset = value
        known = int(offset) if int(offset) >= 0 else None
        return cls(str(key), int(queue_id), known, TableVersion(int(epoch), int(sequence)), is_reset is True)


def to_body(changes: Sequence[OffsetChange]) -> dict[str, Any]:
    """Members of a body of request 52030; earlier releases ignore the times."""
    times = [change.set_back_ms for change in changes]
    return {_CHANGES: [change.to_json() for change in changes], **({_TIMES: times} if any(times) else {})}


def from_body(body: Mapping[str, Any]) -> list[OffsetChange]:
    """Changes of a body of request 52030. Raises KeyError, ValueError or TypeError."""
    changes = [OffsetChange.from_json(item) for item in body[_CHANGES]]
    times = body.get(_TIMES)
    if times is None:
        return changes
    if len(times) != len(changes) or any(type(item) is not int or not 0 <= item < 2**63 for item in times):
        raise ValueError(f"{_TIMES} are no times of {len(changes)} offsets")
    return [change._replace(set_back_ms=time) for change, time in zip(changes, times, strict=True)]


class PendingOffsetWrite(NamedTuple):
    """Content that the file must have, for `write`: no later commit touches it."""

    file: table_file.PendingTableWrite
    stamp: TableVersion
    """Version of its newest change."""


def _no_log_ms() -> int:
    return 0


class OffsetTable:
    """Offsets by "topic@group" and queue id. A commit may lower an offset, which counts as a reset.

    `epoch` is the master epoch of changes; `events.table_changed` is called for changes that slaves must get at once.
    """

    def __init__(
        self, disk: Disk, events: TableEvents, log_ms: Callable[[], int] = _no_log_ms, *, is_synced: bool = True
    ) -> None:
        """`log_ms`: a time (ms) not before that of any record in the log. `is_synced`: the file is known to be on the
        disk; else it is written again, and until then nothing counts as saved."""
        found = config_table.load(disk, _TABLE, _parse, _ROW_TABLES)
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self.epoch = self.version.state_version
        self._floor = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._creators = Creators()
        """Accounts that have committed the first offset of a (group, topic) pair."""
        self._creators.most = MAX_ENTRY_COUNT
        self._stamps: dict[OffsetKey, TableVersion] = {}
        """Versions of the present offsets, the newest last."""
        self._removed = Removals()
        self._pairs = TopicGroupIndex()
        self._resets: dict[OffsetKey, int] = {}
        """Offsets of resets that the group's members do not know yet; until then their own commits are ignored."""
        self._told_counts: dict[OffsetKey, int] = {}
        """Number of times that members were told of each reset."""
        self._set_backs = ResetTimes()
        self._log_ms = log_ms
        self._last_pop_ms = 0
        self.is_foreign = bool(found.table.changes) and not found.table.is_stamped
        """True if an Apache broker was the last to write the file."""
        self.foreign_until_ms = 0
        """Time (ms) up to which pops in the log are ignored, since an Apache broker has supplied the offsets: it stores
        no times of resets, so a pop before one would advance the group again. 0: no such broker."""
        self._events = events
        self._changed: set[str] = set()
        """Keys whose rows the file lacks."""
        self._file = TableFile(disk, _TABLE, _ROW_TABLES, optional=(_VERSIONS, _REMOVED, _SET_BACK))
        self._save_lock = Lock()
        self._told_order = 0
        for change in sorted(found.table.changes, key=_stamp_of):
            self._take(change)
        for name, row_of in self._row_makers.items():
            known: Iterable[str] = self._pairs.take_changed() if name == _TOPICS else self._changed
            self._file.load(name, ((key, row) for key in known if (row := row_of(key)) is not None))
        self._changed.clear()
        if _lacks_quotes(disk) or (not is_synced and self._knows_any):
            self._file.touch()
        self.saved_stamp = self.stamp if is_synced else NO_VERSION
        """Version of the newest change that is on the disk."""
        self._begun = self.stamp
        """Version at the begin of this mastership; later changes are new here, or restored."""
        self._taken_back: dict[OffsetKey, tuple[TableVersion, TableVersion]] = {}
        """Versions of restored changes: the new one here, and the original."""

    @property
    def stamp(self) -> TableVersion:
        """Version of the newest change."""
        return max(last_stamp(self._stamps), self._removed.last)

    @property
    def ordered_stamp(self) -> TableVersion:
        """Version of the newest reset or removal by an operator that members may not know."""
        return max((self._removed.last, *(self._stamps[offset_key] for offset_key in self._resets)))

    @property
    def _knows_any(self) -> bool:
        return bool(self._stamps) or bool(self._removed)

    # --- what consumers and operators do ------------------------------------------------------------------------------
    def commit(self, group: str, topic: str, queue_id: int, offset: int, principal: Principal = UNRESTRICTED) -> bool:
        """Commit an offset for an account. False if the table is full, or if half of it is of that account. Ignored
        while a reset waits for the group's member."""
        offset_key = f"{topic}@{group}", queue_id
        if self._resets and offset_key in self._resets:
            return True
        return self._put(offset_key, offset, principal)

    def has_half(self, principal: Principal) -> bool:
        """True if half of the table is of this account, which can then commit no first offset."""
        return self._creators.has_half(principal)

    def _put(self, offset_key: OffsetKey, offset: int, principal: Principal = UNRESTRICTED) -> bool:
        key, queue_id = offset_key
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) >= MAX_ENTRY_COUNT or self._creators.has_half(principal):
                return False
            queues = self._offsets[key] = {}
            self._pairs.add(key)
            self._creators.created(key, principal)
        before = queues.get(queue_id)
        if before != offset:
            queues[queue_id] = offset
            if before is not None and offset < before:
                self._set_backs.put(offset_key, self._set_back_ms())
            self._touch(offset_key)
        return True

    # --- times of pops and resets -------------------------------------------------------------------------------------
    def pop_ms(self, wall_ms: int) -> int:
        """Time (ms) of a pop, later than every reset before it, even one with another broker's clock."""
        found = max(wall_ms, self._set_backs.last_ms + 1)
        self._last_pop_ms = max(self._last_pop_ms, found)
        return found

    def _set_back_ms(self) -> int:
        """Time (ms) of a reset, not before any earlier pop in the log or any pop that an earlier reset has delayed."""
        return max(self._log_ms(), self._last_pop_ms, self._set_backs.last_ms)

    @property
    def set_back_count(self) -> int:
        """Count that changes with every reset or removal."""
        return self._set_backs.put_count

    def set_back_ms(self, group: str, topic: str, queue_id: int) -> int:
        """Time (ms) of the group's last reset or removal in the queue, 0 for none. Pops up to it do not advance the
        group."""
        return self._set_backs.get((f"{topic}@{group}", queue_id))

    def _touch(self, offset_key: OffsetKey) -> None:
        stamp = self._next_stamp()
        self._stamps.pop(offset_key, None)
        self._removed.pop(offset_key)
        self._stamps[offset_key] = stamp
        self._changed.add(offset_key[0])

    def _next_stamp(self) -> TableVersion:
        return TableVersion(self.epoch, max(self.stamp.sequence, self._floor) + 1)

    def new_epoch(self, epoch: int, wall_ms: int) -> None:
        """Begin a master epoch. Sequences continue from the wall time in microseconds: a master that restarts in its
        old epoch has lost its last sequences and must not reuse them. If its clock is behind, it skips a number of
        sequences and an amount that depends on the start."""
        self._creators.clear()
        last = self.stamp
        least = last.sequence + (LOST_COMMIT_COUNT if last.epoch == epoch else 0)
        floor = wall_ms * 1000
        self.epoch, self._floor = epoch, floor if floor > least else least + wall_ms % LIVES_MS * 1000
        self._begun = TableVersion(epoch, self._floor)
        self._taken_back.clear()
        self._last_pop_ms = max(self._last_pop_ms, self._set_backs.last_ms + 1)  # the one before may have popped then

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, group: str, topic: str) -> Mapping[int, int]:
        """Offsets of the group in the topic, by queue id; not to be kept."""
        return self._offsets.get(f"{topic}@{group}", {})

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset by an operator's order; `reset_for` tells the group's member with its next pull."""
        offset_key = f"{topic}@{group}", queue_id
        if self._put(offset_key, offset) and len(self._resets) < MAX_ENTRY_COUNT:
            self._resets[offset_key] = offset
            self._told_counts.pop(offset_key, None)
            self._set_backs.put(offset_key, self._set_back_ms())
            self._touch(offset_key)
            self._events.table_changed()

    def reset_for(self, group: str, topic: str, queue_id: int, pull_offset: int) -> int | None:
        """Offset at which a member that pulls at `pull_offset` must go on; None if it may go on where it is. An answer
        may be lost: members are told until one of them pulls there (Apache's broker tells once)."""
        if not self._resets:
            return None
        offset_key = f"{topic}@{group}", queue_id
        offset, told_count = self._resets.get(offset_key), self._told_counts.get(offset_key, 0)
        if offset is None:
            return None
        if told_count and (pull_offset == offset or told_count >= MAX_TOLD_COUNT):
            self.take_reset(group, topic, queue_id)
            return None
        self._told_counts[offset_key] = told_count + 1
        return offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Offset at which a member must go on, returned once; None without a reset."""
        if not self._resets:
            return None
        offset_key = f"{topic}@{group}", queue_id
        offset = self._resets.pop(offset_key, None)
        self._told_counts.pop(offset_key, None)
        if offset is not None:
            self._touch(offset_key)
        return offset

    def first_pairs(self, limit: int) -> tuple[list[tuple[str, str, Mapping[int, int]]], int]:
        """(topic, group, offsets by queue id) of the first groups with an offset in a topic, and the number of
        others."""
        found: list[tuple[str, str, Mapping[int, int]]] = []
        for key in islice(self._offsets, limit):
            topic, _, group = key.rpartition("@")
            found.append((topic, group, dict(self._offsets[key])))
        return found, len(self._offsets) - len(found)

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has an offset, in the order of insertion."""
        return self._pairs.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups with an offset in the topic, in the order of insertion."""
        return self._pairs.groups_of(topic)

    def has(self, group: str, topic: str) -> bool:
        """True if the group has an offset in the topic."""
        return f"{topic}@{group}" in self._offsets

    def remove_group(self, group: str) -> Generator[None, None, None]:
        """Remove the group's offsets, in steps."""
        return self._remove([f"{topic}@{group}" for topic in self.topics_of(group)])

    def remove_topic(self, topic: str) -> Generator[None, None, None]:
        """Remove the offsets in the topic, in steps."""
        return self._remove([f"{topic}@{group}" for group in self.groups_of(topic)])

    def _remove(self, keys: list[str]) -> Generator[None, None, None]:
        for start in range(0, len(keys), REMOVED_PER_STEP):
            stamp, at_ms = self._next_stamp(), self._set_back_ms()
            for key in keys[start : start + REMOVED_PER_STEP]:
                for queue_id in list(self._offsets.get(key, ())):
                    self._forget((key, queue_id))
                    self._removed.put((key, queue_id), stamp)
                    self._set_backs.put((key, queue_id), at_ms)
                    stamp = stamp._replace(sequence=stamp.sequence + 1)
            for offset_key in self._removed.pop_oldest(max(0, len(self._removed) - MAX_REMOVED_COUNT)):
                self._set_backs.put(offset_key, 0)
                self._changed.add(offset_key[0])
            yield
        if keys:
            self._events.table_changed()

    def _forget(self, offset_key: OffsetKey) -> None:
        key, queue_id = offset_key
        queues = self._offsets.get(key)
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._offsets[key]
                self._pairs.remove(key)
                self._creators.removed(key)
        self._changed.add(key)
        self._stamps.pop(offset_key, None)
        self._resets.pop(offset_key, None)
        self._told_counts.pop(offset_key, None)

    def clamp(self, end_of: Callable[[str, int], int], *, stamped: bool = False) -> int:
        """Lower offsets beyond the ends of their queues (`end_of(topic, queue_id)`), as after a cut of the log: new
        messages there would never be consumed. `stamped`: a change for all replicas, as of a new master. Else it is
        older than every change, so that the master's offsets win. Returns the number of changes."""
        behind = []
        for key, queues in self._offsets.items():
            topic = key.rpartition("@")[0]
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if offset > end:
                    behind.append((key, queue_id, end))
        if not stamped:
            return self._lower({(key, queue_id): end for key, queue_id, end in behind})
        for key, queue_id, end in behind:
            self._offsets[key][queue_id] = end
            self._touch((key, queue_id))
        return len(behind)

    def lower(self, limits: Mapping[OffsetKey, int]) -> int:
        """Lower offsets to `limits`, below 0: remove them, after a cut of this replica's log. Older than every change.
        Returns the number of changes."""
        known = (
            (offset_key, limit, self._offsets.get(offset_key[0], {}).get(offset_key[1]))
            for offset_key, limit in limits.items()
        )
        return self._lower(
            {offset_key: limit for offset_key, limit, offset in known if offset is not None and offset > limit}
        )

    def _lower(self, found: Mapping[OffsetKey, int]) -> int:
        for offset_key, offset in found.items():
            if offset < 0:
                self._forget(offset_key)
            else:
                self._offsets[offset_key[0]][offset_key[1]] = offset
                self._changed.add(offset_key[0])
        if found:
            cut = {offset_key: CUT_VERSION for offset_key, offset in found.items() if offset >= 0}
            self._stamps = cut | {
                offset_key: stamp for offset_key, stamp in self._stamps.items() if offset_key not in cut
            }
        return len(found)

    # --- replication --------------------------------------------------------------------------------------------------
    def changes_since(self, stamp: TableVersion, limit: int) -> list[OffsetChange]:
        """Changes newer than `stamp`, the oldest first, at most `limit`; NO_VERSION returns all."""
        newer = [*newer_than(stamp, self._stamps, limit), *newer_than(stamp, self._removed.stamps, limit)]
        newer.sort(key=lambda item: item[1])
        return [self._change(offset_key, changed) for offset_key, changed in newer[:limit]]

    def _change(self, offset_key: OffsetKey, stamp: TableVersion) -> OffsetChange:
        key, queue_id = offset_key
        offset = self._offsets.get(key, {}).get(queue_id)
        return OffsetChange(key, queue_id, offset, stamp, offset_key in self._resets, self._set_backs.get(offset_key))

    def merge(self, changes: Iterable[OffsetChange]) -> None:
        """Apply those of the master's changes that are newer than this slave's."""
        ordered = True
        for change in changes:
            offset_key = change.key, change.queue_id
            if change.stamp > (self._stamps.get(offset_key) or self._removed.get(offset_key) or NO_VERSION):
                ordered = ordered and change.stamp > self.stamp
                self._take(change)
        if not ordered:
            self._stamps = dict(sorted(self._stamps.items(), key=lambda item: item[1]))
            self._removed.sort()

    def _take(self, change: OffsetChange) -> None:
        offset_key = change.key, change.queue_id
        self._forget(offset_key)
        self._removed.pop(offset_key)
        self._set_backs.put(offset_key, change.set_back_ms)
        if change.offset is None:
            self._removed.put(offset_key, change.stamp)
            return
        self._offsets.setdefault(change.key, {})[change.queue_id] = change.offset
        self._pairs.add(change.key)
        self._stamps[offset_key] = change.stamp
        if change.is_reset:
            self._resets[offset_key] = change.offset

    def stamps(self) -> dict[OffsetKey, TableVersion]:
        """Versions of every offset, removed ones included."""
        return self._stamps | dict(self._removed.stamps)

    def changes_of(self, offset_keys: Iterable[OffsetKey], limit: int) -> list[OffsetChange]:
        """Last known change of each of `offset_keys`, the oldest first; of too many the newest."""
        known = (
            (offset_key, self._stamps.get(offset_key) or self._removed.get(offset_key)) for offset_key in offset_keys
        )
        found = [self._change(offset_key, stamp) for offset_key, stamp in known if stamp is not None]
        return sorted(found, key=_stamp_of)[-limit:]

    def take_back(self, changes: Iterable[OffsetChange], end_of: Callable[[str, int, int], int]) -> int:
        """Restore changes that this master's file lacks after a kill, from a slave. They become new changes for all
        replicas, none beyond `end_of(topic, queue_id, epoch of the change)`. An offset that has been changed here since
        keeps its value, whatever a wrong clock says, and becomes a new change. Returns the number of new changes."""
        count = 0
        for change in changes:
            offset_key = change.key, change.queue_id
            stamp = self._stamps.get(offset_key) or self._removed.get(offset_key) or NO_VERSION
            told, had = self._taken_back.get(offset_key, (NO_VERSION, NO_VERSION))
            if change.stamp <= (had if told == stamp else stamp):
                continue
            # If the wall clock was set back, new sequences would be lower, and slaves would ignore them. Other slaves
            # may have later ones.
            self._floor = max(self._floor, change.stamp.sequence + LOST_COMMIT_COUNT)
            if stamp > self._begun and stamp.epoch == change.stamp.epoch and told != stamp:
                self._take(self._change(offset_key, stamp)._replace(stamp=self._next_stamp()))
            else:
                offset, anew = change.offset, self._next_stamp()
                if offset is not None:
                    offset = min(offset, end_of(change.key.rpartition("@")[0], change.queue_id, change.stamp.epoch))
                self._take(change._replace(offset=offset, stamp=anew))
                self._taken_back[offset_key] = anew, change.stamp
            count += 1
        return count

    def replace(self, body: Mapping[str, Any]) -> None:
        """Replace a slave's table by that of a master without versions (Apache's), which counts as newer."""
        table = parse_table(body)
        self.foreign_until_ms = max(self.foreign_until_ms, self._log_ms() - FOREIGN_LAG_MS)
        self.version = DataVersion.from_json(body.get("dataVersion"))
        if table == self._offsets and not self._resets:
            return
        self._changed.update(self._offsets, self._removed.keys())
        new = [
            change._replace(set_back_ms=self._set_backs.get((change.key, change.queue_id)))
            for change in _unstamped(table, self.version)
        ]
        for part in (self._offsets, self._stamps, self._removed, self._pairs, self._set_backs):
            part.clear()
        self._resets.clear()
        self._told_counts.clear()
        for change in new:
            self._take(change)
        self._file.touch()

    # --- file and bodies ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Body of request 43; queue ids stay integers."""
        return _to_json(self.version.to_json(), self._offsets)

    def members(self) -> Generator[None, None, dict[str, Any]]:
        """Members of `to_json`, in steps, for `dumps_in_steps`."""
        keys, find = (yield from sorted_in_steps(self._offsets)), self._offsets.get
        topics: dict[str, list[str]] = {}
        for number, key in enumerate(keys):
            topic, _, group = key.rpartition("@")
            topics.setdefault(group, []).append(topic)
            if number % RUN_COUNT == 0:
                yield
        return {
            "dataVersion": self.version.to_json(),
            "groupTopicMap": Entries(topics.items()),
            "offsetTable": Entries((key, dict(sorted(found.items()))) for key in keys if (found := find(key))),
        }

    def unsaved(self) -> PendingOffsetWrite | None:
        """Content for `write`, in any thread; None if the file has it. The cost is that of the changes."""
        groups = self._pairs.take_changed()
        for name, row_of in self._row_makers.items():
            if rows := {key: row_of(key) for key in (groups if name == _TOPICS else self._changed)}:
                self._file.change(name, rows)
        self._changed.clear()
        data = self._file.unsaved(self._members)
        return None if data is None else PendingOffsetWrite(data, self.stamp)

    @property
    def _row_makers(self) -> dict[str, Callable[[str], Any]]:
        """Function for each table of the file that makes the row of a group or key, None for no row. Queue ids of
        rmqha's own members are text: fastjson2 cannot skip an unquoted integer key in a member that it does not know
        (ruling 32)."""
        return {
            _TOPICS: lambda group: sorted(self._pairs.topics_of(group)) or None,
            _OFFSETS: lambda key: dict(sorted(self._offsets.get(key, {}).items())) or None,
            _VERSIONS: self._versions_row,
            _REMOVED: lambda key: (
                {str(queue_id): str(stamp) for queue_id, stamp in sorted(self._removed.of(key).items())} or None
            ),
            _SET_BACK: lambda key: (
                {str(queue_id): str(at_ms) for queue_id, at_ms in sorted(self._set_backs.of(key).items())} or None
            ),
        }

    def _versions_row(self, key: str) -> dict[str, str] | None:
        return {
            str(queue_id): self._stamp_text((key, queue_id)) for queue_id in sorted(self._offsets.get(key, ()))
        } or None

    def _stamp_text(self, offset_key: OffsetKey) -> str:
        return str(self._stamps[offset_key]) + (f":{_RESET}" if offset_key in self._resets else "")

    def _members(self) -> dict[str, Any]:
        """Members of the file. Apache's brokers ignore unknown ones."""
        return {"dataVersion": self.version.to_json(), **dict.fromkeys(_ROW_TABLES, ROWS), **self._unknown}

    def write(self, data: PendingOffsetWrite) -> None:
        """Write the file: on return it has `data`, or something newer of another thread. Raises OSError; `unsaved` then
        returns it again."""
        self._file.write(data.file)
        with self._save_lock:
            if data.file.order > self._told_order:
                self._told_order = data.file.order
                self.saved_stamp = data.stamp


def pop_retry_topics(offsets: OffsetTable, is_group: Callable[[str], bool], group: str, topic: str = "") -> list[str]:
    """Topics in which messages come again to a group that pops, those of `topic` if it is named. None that another
    group reads: the name `%RETRY%a_b_T` may be that of group a and topic b_T, of group a_b and topic T, or of what the
    group a_b_T has sent back (`is_group`), which commits no offset before it reads there."""
    if topic:
        found = [retry_topic(topic, group, kind) for kind in (RETRY_V1, RETRY_V2)]
    else:
        found = [name for name in offsets.topics_of(group) if normal_topic(name, group) != name]
    found = [name for name in found if not is_group(name.removeprefix(RETRY_PREFIX))]
    return [name for name in found if offsets.groups_of(name) == [group]]


def _to_json(version: dict[str, int], offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    topics: dict[str, list[str]] = {}
    keys = sorted(offsets)
    for key in keys:
        topic, _, group = key.rpartition("@")
        topics.setdefault(group, []).append(topic)
    return {
        "dataVersion": version,
        "groupTopicMap": topics,
        "offsetTable": {key: dict(sorted(offsets[key].items())) for key in keys},
    }


def _lacks_quotes(disk: Disk) -> bool:
    """True if an earlier release has written the file: queue ids in rmqha's members have no quotes, on which Apache's
    broker fails and leaves an empty table."""
    path = config_file.path_of(_TABLE)
    data = disk.read(path) if disk.exists(path) else b""
    begins = data.find(f'"{_VERSIONS}"'.encode())
    return begins >= 0 and _UNQUOTED_ID.search(data, begins) is not None


def _stamp_of(change: OffsetChange) -> TableVersion:
    return change.stamp


def _unstamped(table: Mapping[str, Mapping[int, int]], version: DataVersion) -> Iterator[OffsetChange]:
    """Offsets of a peer or a file without versions: each gets one of the file's epoch."""
    sequence = 0
    for key in sorted(table):
        for queue_id, offset in sorted(table[key].items()):
            sequence += 1
            yield OffsetChange(key, queue_id, offset, TableVersion(version.state_version, sequence))


class _Loaded(NamedTuple):
    """Content of consumerOffset.json. `is_stamped`: rmqha was the last to write it."""

    changes: list[OffsetChange]
    is_stamped: bool


def _parse(body: Mapping[str, Any]) -> _Loaded:
    """Offsets of consumerOffset.json; without versions if Apache's broker was the last to write it."""
    table, version = parse_table(body), DataVersion.from_json(body.get("dataVersion"))
    versions = mapping(body.get(_VERSIONS), _VERSIONS)
    changes = []
    for change in _unstamped(table, version):
        text = mapping(versions.get(change.key), change.key).get(str(change.queue_id))
        changes.append(change if text is None else _stamped(change, str(text)))
    for key, queues in mapping(body.get(_REMOVED), _REMOVED).items():
        for queue_id, text in mapping(queues, str(key)).items():
            changes.append(OffsetChange(str(key), int(queue_id), None, TableVersion.parse(str(text))))
    times = mapping(body.get(_SET_BACK), _SET_BACK)
    changes = [
        change
        if (found := mapping(times.get(change.key), change.key).get(str(change.queue_id))) is None
        else change._replace(set_back_ms=int(found))
        for change in changes
    ]
    return _Loaded(changes, bool(versions))


def _stamped(change: OffsetChange, text: str) -> OffsetChange:
    stamp, colon, mark = text.rpartition(":")
    if colon and mark == _RESET:
        return change._replace(stamp=TableVersion.parse(stamp), is_reset=True)
    return change._replace(stamp=TableVersion.parse(text))


def parse_table(body: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Offsets of consumerOffset.json or of a body of request 43."""
    return {
        str(key): {int(queue_id): int(offset) for queue_id, offset in mapping(queues, str(key)).items()}
        for key, queues in mapping(body.get("offsetTable"), "offsetTable").items()
    }
