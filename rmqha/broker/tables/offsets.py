"""Consumer offsets: how far each group has read each queue. config/consumerOffset.json, written when dirty.

Each offset carries the stamp (master epoch, sequence) of its last change. Replicas merge by stamp, never by size: what
is older does not replace what is newer, and a reset backwards is a change like any other. A removed offset leaves
its stamp behind, so that no replica brings it back. With both stands when that was: what was popped before it does
not move the group any more, whichever replica looks through the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from rmqha.broker.tables import config_table, table_file
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.tables.offset_places import Place, Removals, SetBacks, TopicGroupIndex, last_stamp, newer_than
from rmqha.broker.tables.table_file import ROWS, TableFile
from rmqha.broker.tables.table_version import NO_STAMP, TableVersion
from rmqha.port import Disk
from rmqha.store.meta import config_file
from rmqha.wire.lenient_json import Entries
from rmqha.wire.state.receipt import RETRY_V1, RETRY_V2, normal_topic, retry_topic
from rmqha.wire.steps import RUN_COUNT, sorted_in_steps

MAX_ENTRY_COUNT = 1_000_000
"""Bound on (group, topic) pairs, since any client may name new ones."""
REMOVED_AT_A_TIME = 256
"""Keys, in one step."""
MAX_REMOVED_COUNT = 100_000
"""Bound on remembered removals; the oldest are forgotten first."""

LOST_COMMIT_COUNT = 1_000_000
"""More changes than a life of a master can have told and not saved."""
LIVES_MS = 1_000_000
"""By the clock, whatever it shows, lives of a master are told apart within so much."""

FOREIGN_LAG_MS = 60_000
"""Longest time by which the offsets that an Apache broker tells, or has in its file while it runs, are behind its pops:
it writes the file each 5 s, and keeps a checkpoint in memory for 10 s before it counts."""

CUT_STAMP = TableVersion(0, 0)
"""Stamp of an offset that a cut of this replica's log has lowered."""

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
    """One offset as replicas tell each other. `offset` None: it was removed. `is_reset`: an operator has set it, and
    the group's members have not been told yet. `set_back_ms`: when it was last set back or removed, 0: never."""

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
        """Raises ValueError or TypeError."""
        key, queue_id, offset, epoch, sequence, is_reset = value
        known = int(offset) if int(offset) >= 0 else None
        return cls(str(key), int(queue_id), known, TableVersion(int(epoch), int(sequence)), is_reset is True)


def to_body(changes: Sequence[OffsetChange]) -> dict[str, Any]:
    """Members of a body of request 52030; replicas of earlier releases pass over the times."""
    times = [change.set_back_ms for change in changes]
    return {_CHANGES: [change.to_json() for change in changes], **({_TIMES: times} if any(times) else {})}


def from_body(body: Mapping[str, Any]) -> list[OffsetChange]:
    """The changes of a body of request 52030. Raises KeyError, ValueError or TypeError."""
    changes = [OffsetChange.from_json(item) for item in body[_CHANGES]]
    times = body.get(_TIMES)
    if times is None:
        return changes
    if len(times) != len(changes) or any(type(item) is not int or not 0 <= item < 2**63 for item in times):
        raise ValueError(f"{_TIMES} are no times of {len(changes)} offsets")
    return [change._replace(set_back_ms=time) for change, time in zip(changes, times, strict=True)]


class PendingOffsetWrite(NamedTuple):
    """The content that the file must hold, for `write`: no later commit touches it."""

    file: table_file.PendingTableWrite
    stamp: TableVersion
    """Stamp of the newest change in it."""


def _no_log_ms() -> int:
    return 0


class OffsetTable:
    """Offsets by "topic@group" and queue id. A commit takes the offset as it is, backwards too: a reset is one.

    `epoch` is the master epoch that stamps changes; `events.moved` is told of each change that slaves want to know at
    once.
    """

    def __init__(
        self, disk: Disk, events: TableEvents, log_ms: Callable[[], int] = _no_log_ms, *, is_synced: bool = True
    ) -> None:
        """`log_ms`: the time (ms), which does not lie before that of any record in the log. `is_synced`: what the file
        holds is known to be on the disk. Else it is written again, and until then nothing counts as saved."""
        found = config_table.load(disk, _TABLE, _parse, _ROW_TABLES)
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self.epoch = self.version.state_version
        self._floor = 0
        self._offsets: dict[str, dict[int, int]] = {}
        self._stamps: dict[Place, TableVersion] = {}
        """Stamps of the present offsets, in order: what changed last stands last."""
        self._removed = Removals()
        self._pairs = TopicGroupIndex()
        self._resets: dict[Place, int] = {}
        """To where a group's members must go; their own commits do not count until they know."""
        self._set_backs = SetBacks()
        self._log_ms = log_ms
        self._last_pop_ms = 0
        self.is_foreign = bool(found.table.changes) and not found.table.is_stamped
        """An Apache broker has written the file last."""
        self.foreign_until_ms = 0
        """Time (ms) up to which the log says nothing new of pops: an Apache broker has told the offsets since. It notes
        no times of set-backs: what was popped before one would take the group on again. 0: none has."""
        self._events = events
        self._changed: set[str] = set()
        """Keys whose rows the file lacks."""
        self._file = TableFile(disk, _TABLE, _ROW_TABLES, optional=(_VERSIONS, _REMOVED, _SET_BACK))
        self._telling = Lock()
        self._told_order = 0
        for change in sorted(found.table.changes, key=_stamp_of):
            self._take(change)
        for name, row_of in self._row_makers.items():
            known: Iterable[str] = self._pairs.take_changed() if name == _TOPICS else self._changed
            self._file.load(name, ((key, row) for key in known if (row := row_of(key)) is not None))
        self._changed.clear()
        if _lacks_quotes(disk) or (not is_synced and self._knows_any):
            self._file.touch()
        self.saved_stamp = self.stamp if is_synced else NO_STAMP
        """Stamp of the newest change that is on the disk."""
        self._begun = self.stamp
        """Changes with a higher stamp were made here since this replica became master, or taken back."""
        self._taken_back: dict[Place, tuple[TableVersion, TableVersion]] = {}
        """Stamps of changes that were taken back since: those here, and those that they had."""

    @property
    def stamp(self) -> TableVersion:
        """Stamp of the newest change."""
        return max(last_stamp(self._stamps), self._removed.last)

    @property
    def ordered_stamp(self) -> TableVersion:
        """Stamp of the newest order of an operator that members may not know: an offset that was set back, or one that
        was removed."""
        return max((self._removed.last, *(self._stamps[place] for place in self._resets)))

    @property
    def _knows_any(self) -> bool:
        return bool(self._stamps) or bool(self._removed)

    # --- what consumers and operators do ------------------------------------------------------------------------------
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """False if the table is full. Nothing changes while a reset waits to be told."""
        place = f"{topic}@{group}", queue_id
        if self._resets and place in self._resets:
            return True
        return self._put(place, offset)

    def _put(self, place: Place, offset: int) -> bool:
        key, queue_id = place
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) >= MAX_ENTRY_COUNT:
                return False
            queues = self._offsets[key] = {}
            self._pairs.add(key)
        before = queues.get(queue_id)
        if before != offset:
            queues[queue_id] = offset
            if before is not None and offset < before:
                self._set_backs.put(place, self._set_back_ms())
            self._touch(place)
        return True

    # --- times of pops and of what is set back ------------------------------------------------------------------------
    def pop_ms(self, wall_ms: int) -> int:
        """Time (ms) of a pop: behind whatever was set back before it, though another broker's clock told that."""
        found = max(wall_ms, self._set_backs.last_ms + 1)
        self._last_pop_ms = max(self._last_pop_ms, found)
        return found

    def _set_back_ms(self) -> int:
        """No pop of before lies behind it: its record in the log does not, nor one that a set-back had put off."""
        return max(self._log_ms(), self._last_pop_ms, self._set_backs.last_ms)

    @property
    def set_back_count(self) -> int:
        """It changes whenever something is set back or removed."""
        return self._set_backs.put_count

    def set_back_ms(self, group: str, topic: str, queue_id: int) -> int:
        """Time (ms) when the group was last set back there, or its offset removed; 0: never. Pops up to it do not move
        it."""
        return self._set_backs.get((f"{topic}@{group}", queue_id))

    def _touch(self, place: Place) -> None:
        stamp = self._next_stamp()
        self._stamps.pop(place, None)
        self._removed.pop(place)
        self._stamps[place] = stamp
        self._changed.add(place[0])

    def _next_stamp(self) -> TableVersion:
        return TableVersion(self.epoch, max(self.stamp.sequence, self._floor) + 1)

    def new_epoch(self, epoch: int, wall_ms: int) -> None:
        """This replica became master. Sequences go on from the wall time in microseconds: a master that restarts in its
        old epoch has lost the last ones it gave, and may not give them again. Where its clock is behind what is known
        they leave out what it may have lost, and begin elsewhere in each life."""
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
        """An operator's order; `take_reset` tells the group's member with its next pull."""
        place = f"{topic}@{group}", queue_id
        if self._put(place, offset) and len(self._resets) < MAX_ENTRY_COUNT:
            self._resets[place] = offset
            self._set_backs.put(place, self._set_back_ms())
            self._touch(place)
            self._events.moved()

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Offset at which a member must go on, once; None if it may go on where it is."""
        if not self._resets:
            return None
        place = f"{topic}@{group}", queue_id
        offset = self._resets.pop(place, None)
        if offset is not None:
            self._touch(place)
        return offset

    def first_pairs(self, limit: int) -> tuple[list[tuple[str, str, Mapping[int, int]]], int]:
        """(topic, group, offsets by queue id) of groups that have an offset in a topic, and how many more there are."""
        found: list[tuple[str, str, Mapping[int, int]]] = []
        for key in islice(self._offsets, limit):
            topic, _, group = key.rpartition("@")
            found.append((topic, group, dict(self._offsets[key])))
        return found, len(self._offsets) - len(found)

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has an offset, in the order in which they came."""
        return self._pairs.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups with an offset in the topic, in the order in which they came."""
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
        for start in range(0, len(keys), REMOVED_AT_A_TIME):
            stamp, at_ms = self._next_stamp(), self._set_back_ms()
            for key in keys[start : start + REMOVED_AT_A_TIME]:
                for queue_id in list(self._offsets.get(key, ())):
                    self._forget((key, queue_id))
                    self._removed.put((key, queue_id), stamp)
                    self._set_backs.put((key, queue_id), at_ms)
                    stamp = stamp._replace(sequence=stamp.sequence + 1)
            for place in self._removed.pop_oldest(max(0, len(self._removed) - MAX_REMOVED_COUNT)):
                self._set_backs.put(place, 0)
                self._changed.add(place[0])
            yield
        if keys:
            self._events.moved()

    def _forget(self, place: Place) -> None:
        key, queue_id = place
        queues = self._offsets.get(key)
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._offsets[key]
                self._pairs.remove(key)
        self._changed.add(key)
        self._stamps.pop(place, None)
        self._resets.pop(place, None)

    def clamp(self, end_of: Callable[[str, int], int], *, stamped: bool = False) -> int:
        """No offset may lie behind its queue (`end_of(topic, queue_id)`), as after a cut of the log: messages that come
        to stand there would never be consumed. `stamped`: it is a change for all replicas, as a new master makes it.
        Else it is older than every change: what the master has counts. Returns how many did."""
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

    def lower(self, limits: Mapping[Place, int]) -> int:
        """No offset of these may be higher; below 0: none may be there. What a cut of this replica's log takes: older
        than every change. Returns how many were."""
        known = ((place, limit, self._offsets.get(place[0], {}).get(place[1])) for place, limit in limits.items())
        return self._lower({place: limit for place, limit, offset in known if offset is not None and offset > limit})

    def _lower(self, found: Mapping[Place, int]) -> int:
        for place, offset in found.items():
            if offset < 0:
                self._forget(place)
            else:
                self._offsets[place[0]][place[1]] = offset
                self._changed.add(place[0])
        if found:
            cut = {place: CUT_STAMP for place, offset in found.items() if offset >= 0}
            self._stamps = cut | {place: stamp for place, stamp in self._stamps.items() if place not in cut}
        return len(found)

    # --- what replicas tell each other --------------------------------------------------------------------------------
    def changes_since(self, stamp: TableVersion, limit: int) -> list[OffsetChange]:
        """Changes newer than `stamp`, the oldest first; NO_STAMP: everything. At most `limit` of them."""
        newer = [*newer_than(stamp, self._stamps, limit), *newer_than(stamp, self._removed.stamps, limit)]
        newer.sort(key=lambda item: item[1])
        return [self._change(place, changed) for place, changed in newer[:limit]]

    def _change(self, place: Place, stamp: TableVersion) -> OffsetChange:
        key, queue_id = place
        offset = self._offsets.get(key, {}).get(queue_id)
        return OffsetChange(key, queue_id, offset, stamp, place in self._resets, self._set_backs.get(place))

    def merge(self, changes: Iterable[OffsetChange]) -> None:
        """A slave takes those of its master's offsets that are newer than its own."""
        ordered = True
        for change in changes:
            place = change.key, change.queue_id
            if change.stamp > (self._stamps.get(place) or self._removed.get(place) or NO_STAMP):
                ordered = ordered and change.stamp > self.stamp
                self._take(change)
        if not ordered:
            self._stamps = dict(sorted(self._stamps.items(), key=lambda item: item[1]))
            self._removed.sort()

    def _take(self, change: OffsetChange) -> None:
        place = change.key, change.queue_id
        self._forget(place)
        self._removed.pop(place)
        self._set_backs.put(place, change.set_back_ms)
        if change.offset is None:
            self._removed.put(place, change.stamp)
            return
        self._offsets.setdefault(change.key, {})[change.queue_id] = change.offset
        self._pairs.add(change.key)
        self._stamps[place] = change.stamp
        if change.is_reset:
            self._resets[place] = change.offset

    def stamps(self) -> dict[Place, TableVersion]:
        """Stamps of every offset, those removed included."""
        return self._stamps | dict(self._removed.stamps)

    def changes_of(self, places: Iterable[Place], limit: int) -> list[OffsetChange]:
        """The last change of each of `places` that is still known, the oldest first; of too many the newest."""
        known = ((place, self._stamps.get(place) or self._removed.get(place)) for place in places)
        found = [self._change(place, stamp) for place, stamp in known if stamp is not None]
        return sorted(found, key=_stamp_of)[-limit:]

    def take_back(self, changes: Iterable[OffsetChange], end_of: Callable[[str, int, int], int]) -> int:
        """A master that was killed takes from a slave what its own file lacks: what is newer there, as a change of its
        own, which all replicas hear of. None lies behind `end_of(topic, queue_id, epoch of the change)`. What has been
        changed here since is newer, whatever a clock that was set back says, and becomes that. Returns how many are
        told anew."""
        count = 0
        for change in changes:
            place = change.key, change.queue_id
            stamp = self._stamps.get(place) or self._removed.get(place) or NO_STAMP
            told, had = self._taken_back.get(place, (NO_STAMP, NO_STAMP))
            if change.stamp <= (had if told == stamp else stamp):
                continue
            # A wall clock that was set back since gives lower sequences: slaves would take none of them. Other slaves
            # may have later ones.
            self._floor = max(self._floor, change.stamp.sequence + LOST_COMMIT_COUNT)
            if stamp > self._begun and stamp.epoch == change.stamp.epoch and told != stamp:
                self._take(self._change(place, stamp)._replace(stamp=self._next_stamp()))
            else:
                offset, anew = change.offset, self._next_stamp()
                if offset is not None:
                    offset = min(offset, end_of(change.key.rpartition("@")[0], change.queue_id, change.stamp.epoch))
                self._take(change._replace(offset=offset, stamp=anew))
                self._taken_back[place] = anew, change.stamp
            count += 1
        return count

    def replace(self, body: Mapping[str, Any]) -> None:
        """A slave takes the whole table of a master without stamps (Apache's): by definition it is the newer one."""
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
        for places in (self._offsets, self._stamps, self._removed, self._pairs, self._resets, self._set_backs):
            places.clear()
        for change in new:
            self._take(change)
        self._file.touch()

    # --- file and bodies ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Body of request 43; queue ids stay integers."""
        return _to_json(self.version.to_json(), self._offsets)

    def members(self) -> Generator[None, None, dict[str, Any]]:
        """The members of `to_json`, for `dumps_in_steps`; in steps."""
        keys, find = (yield from sorted_in_steps(self._offsets)), self._offsets.get
        topics: dict[str, list[str]] = {}
        for place, key in enumerate(keys):
            topic, _, group = key.rpartition("@")
            topics.setdefault(group, []).append(topic)
            if place % RUN_COUNT == 0:
                yield
        return {
            "dataVersion": self.version.to_json(),
            "groupTopicMap": Entries(topics.items()),
            "offsetTable": Entries((key, dict(sorted(found.items()))) for key in keys if (found := find(key))),
        }

    def unsaved(self) -> PendingOffsetWrite | None:
        """The content that the file must hold, None if it holds it; the caller writes it with `write`, in a thread if
        it likes. Costs what has changed."""
        groups = self._pairs.take_changed()
        for name, row_of in self._row_makers.items():
            if rows := {key: row_of(key) for key in (groups if name == _TOPICS else self._changed)}:
                self._file.change(name, rows)
        self._changed.clear()
        data = self._file.unsaved(self._members)
        return None if data is None else PendingOffsetWrite(data, self.stamp)

    @property
    def _row_makers(self) -> dict[str, Callable[[str], Any]]:
        """For each table of the file what its row of a group or key is, None if there is none. Queue ids of our own
        members are text: fastjson2 cannot pass over an unquoted integer key in a member that it does not know (ruling
        32)."""
        return {
            _TOPICS: lambda group: sorted(self._pairs.topics_of(group)) or None,
            _OFFSETS: lambda key: dict(sorted(self._offsets.get(key, {}).items())) or None,
            _VERSIONS: self._versions_row,
            _REMOVED: lambda key: (
                {str(place): str(stamp) for place, stamp in sorted(self._removed.of(key).items())} or None
            ),
            _SET_BACK: lambda key: (
                {str(place): str(at_ms) for place, at_ms in sorted(self._set_backs.of(key).items())} or None
            ),
        }

    def _versions_row(self, key: str) -> dict[str, str] | None:
        return {
            str(queue_id): self._stamp_text((key, queue_id)) for queue_id in sorted(self._offsets.get(key, ()))
        } or None

    def _stamp_text(self, place: Place) -> str:
        return str(self._stamps[place]) + (f":{_RESET}" if place in self._resets else "")

    def _members(self) -> dict[str, Any]:
        """Members of the file. Apache's brokers pass over those that they do not know."""
        return {"dataVersion": self.version.to_json(), **dict.fromkeys(_ROW_TABLES, ROWS), **self._unknown}

    def write(self, data: PendingOffsetWrite) -> None:
        """Write the file: when it returns, the file holds `data`, or something newer that another thread has written.
        Raises OSError; `unsaved` then has it again."""
        self._file.write(data.file)
        with self._telling:
            if data.file.order > self._told_order:
                self._told_order = data.file.order
                self.saved_stamp = data.stamp


def pop_retry_topics(offsets: OffsetTable, group: str, topic: str = "") -> list[str]:
    """Topics in which messages come again to a group that pops, those of `topic` if it is named. None that another
    group reads: the name `%RETRY%a_b_T` may be that of group a and topic b_T, or of group a_b and topic T."""
    if topic:
        found = [retry_topic(topic, group, kind) for kind in (RETRY_V1, RETRY_V2)]
    else:
        found = [name for name in offsets.topics_of(group) if normal_topic(name, group) != name]
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
    """True if an earlier release has written the file: its queue ids in our own members have no quotes, on which
    Apache's broker ends and leaves an empty table."""
    path = config_file.path_of(_TABLE)
    data = disk.read(path) if disk.exists(path) else b""
    begins = data.find(f'"{_VERSIONS}"'.encode())
    return begins >= 0 and _UNQUOTED_ID.search(data, begins) is not None


def _stamp_of(change: OffsetChange) -> TableVersion:
    return change.stamp


def _unstamped(table: Mapping[str, Mapping[int, int]], version: DataVersion) -> Iterator[OffsetChange]:
    """Offsets of a peer or a file without stamps: each gets one of the version's epoch."""
    sequence = 0
    for key in sorted(table):
        for queue_id, offset in sorted(table[key].items()):
            sequence += 1
            yield OffsetChange(key, queue_id, offset, TableVersion(version.state_version, sequence))


class _Loaded(NamedTuple):
    """The content of consumerOffset.json. `is_stamped`: ours has written it last."""

    changes: list[OffsetChange]
    is_stamped: bool


def _parse(body: Mapping[str, Any]) -> _Loaded:
    """The offsets of consumerOffset.json. Where Apache's broker has written it last there are no stamps."""
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
    """The offsets of consumerOffset.json or of a body of request 43."""
    return {
        str(key): {int(queue_id): int(offset) for queue_id, offset in mapping(queues, str(key)).items()}
        for key, queues in mapping(body.get("offsetTable"), "offsetTable").items()
    }
