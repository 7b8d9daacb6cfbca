"""The topic table: config/topics.json, automatic creation from TBW102, restoration from the queues on disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.tables.table_bounds import LOG_END, NO_ENDS, DeletedNames, Ends, TopicBounds
from rmqha.broker.tables.table_file import ROWS, PendingTableWrite, TableFile
from rmqha.broker.tables.table_version import TableChanges, TableVersion
from rmqha.model.code import PERM_INHERIT, PERM_READ, PERM_WRITE, ResponseCode
from rmqha.model.config.delay_level import SCHEDULE_TOPIC, parse_delay_levels
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    REPLY_TOPIC_POSTFIX,
    REVIVE_QUEUE_COUNT,
    REVIVE_TOPIC_PREFIX,
    ROCKSDB_TRANSACTION_TOPICS,
    TIMER_TOPIC,
)
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.model.quota import TokenBucket
from rmqha.port import Clock, Disk
from rmqha.wire.lenient_json import Entries, Items, dumps
from rmqha.wire.registration import pack
from rmqha.wire.steps import sorted_in_steps

DELETED = "rmqhaDeletedTopics"
DELETED_ENDS = "rmqhaDeletedQueueEnds"
BEGINS = "rmqhaQueueBegins"
_MEMBERS = frozenset(
    {
        "attributes",
        "order",
        "perm",
        BEGINS,
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    }
)
_GRANTS_ALL = PERM_READ | PERM_WRITE
DEFAULT_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SYNC_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
_TABLE = "topicConfigTable"

QUEUE_TYPE = "queue.type"
BATCH_QUEUE = "BatchCQ"
MESSAGE_TYPE, PRIORITY_TYPE = "message.type", "PRIORITY"
SIMPLE_QUEUE = "SimpleCQ"
CLEANUP_POLICY, COMPACTION = "cleanup.policy", "COMPACTION"
_VALUES = {
    QUEUE_TYPE: (BATCH_QUEUE, SIMPLE_QUEUE),
    CLEANUP_POLICY: ("DELETE", COMPACTION),
    MESSAGE_TYPE: ("DELAY", "FIFO", "MIXED", "NORMAL", PRIORITY_TYPE, "TRANSACTION", "UNSPECIFIED"),
    "reserve.time": (),
}
"""RocketMQ's attributes of topics with their values; the last one is a number of hours, or -1."""
_UNCHANGEABLE = (QUEUE_TYPE, CLEANUP_POLICY)
_HOURS = re.compile("-1|[0-9]{1,18}")
MAX_TOPIC_LENGTH = 127
MAX_QUEUE_COUNT = 1024
ENCODED_PER_STEP = 256
"""Topics of a registration that are encoded in one step."""
NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
"""Characters of a topic or a group."""

BROKER_ONLY_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        *ROCKSDB_TRANSACTION_TOPICS,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics to which clients may not send; `is_broker_only` adds others."""
SYSTEM_NAMES = BROKER_ONLY_TOPICS | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC"}
"""System topics of all brokers, whether they have them or not. The last one is of Apache's queues in RocksDB."""
TRANSACTION_TOPICS = (HALF_TOPIC, OP_TOPIC)
"""Topics of every table from the start. A slave of Apache's drops topics that its master lacks; without the first one
it hangs for 90 s when a master becomes a slave."""


def is_broker_only(name: str) -> bool:
    return name in BROKER_ONLY_TOPICS or name.startswith(REVIVE_TOPIC_PREFIX)


def resource_name_refusal(kind: str, name: str, max_length: int) -> str:
    """Reason why `name` cannot be a topic or a group (`kind`), in RocketMQ's words; "" if it can."""
    if not name.strip():
        return f"The specified {kind} is blank."
    if not NAME.fullmatch(name):
        return f"The specified {kind}: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > max_length:
        return f"The specified {kind}: {name}, is longer than {kind} max length: {max_length}"
    return ""


def topic_name_refusal(name: str) -> str:
    """Reason why `name` cannot be a topic, in RocketMQ's words; "" if it can."""
    return resource_name_refusal("topic", name, MAX_TOPIC_LENGTH)


_WAITING = {
    SCHEDULE_TOPIC: MAX_QUEUE_COUNT,
    TIMER_TOPIC: 1,
    HALF_TOPIC: 1,
    **dict.fromkeys(ROCKSDB_TRANSACTION_TOPICS, 1),
}
"""Numbers of queues of the topics where messages wait for their own."""
_NO_MAPPINGS: Mapping[str, Any] = {"topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {}}
_PERM_LETTERS = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))


def _offsets_to_json(offsets: Mapping[int, int]) -> dict[str, str]:
    """Quoted keys and strings, over which Apache's programs pass (ruling 32)."""
    return {str(queue_id): str(offset) for queue_id, offset in sorted(offsets.items())}


def _offsets_from_json(value: Any, name: str) -> dict[int, int]:
    """Raises ValueError or TypeError."""
    return {int(queue_id): int(offset) for queue_id, offset in mapping(value, name).items()}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    read_queue_count: int
    write_queue_count: int
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    filter_type: str = "SINGLE_TAG"
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Members that this release does not know and writes back unchanged."""
    begins: Mapping[int, int] = field(default_factory=dict)
    """First offset by queue id, and the log's end at the time of the deletion (LOG_END): earlier messages were sent to
    a deleted topic of that name."""

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @property
    def has_priorities(self) -> bool:
        """True if its queues are priorities, the highest id first."""
        return self.attributes.get(MESSAGE_TYPE) == PRIORITY_TYPE

    @property
    def is_batch(self) -> bool:
        """True if its queues count messages and its records hold several."""
        return self.attributes.get(QUEUE_TYPE) == BATCH_QUEUE

    def text(self) -> str:
        """Text of the topic in RocketMQ's remarks."""
        perm = "".join(letter if self.perm & bit else "-" for bit, letter in _PERM_LETTERS)
        attributes = ", ".join(f"{name}={value}" for name, value in self.attributes.items())
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queue_count}, "
            f"writeQueueNums={self.write_queue_count}, perm={perm}, topicFilterType={self.filter_type}, "
            f"topicSysFlag={self.sys_flag}, order={str(self.order).lower()}, attributes={{{attributes}}}]"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_count,
            **({BEGINS: _offsets_to_json(self.begins)} if self.begins else {}),
            **self.unknown,
        }

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> TopicConfig:
        return cls(
            str(value.get("topicName", name)),
            int(value.get("readQueueNums", 0)),
            int(value.get("writeQueueNums", 0)),
            int(value.get("perm", PERM_READ | PERM_WRITE)),
            int(value.get("topicSysFlag", 0)),
            bool(value.get("order", False)),
            str(value.get("topicFilterType", "SINGLE_TAG")),
            {str(key): str(item) for key, item in mapping(value.get("attributes"), "attributes").items()},
            {key: item for key, item in value.items() if key not in _MEMBERS},
            _offsets_from_json(value.get(BEGINS), BEGINS),
        )


class TopicRegistration(NamedTuple):
    """Topics as they are registered with a name server."""

    body: bytes
    digest: str
    """Digest of the topics without their version: a name server with the same digest need not parse the body."""
    version: dict[str, int]


class TopicTable:
    """Topics of this replica's group. Changes take effect at once and reach the disk together (`file`); a request whose
    change must be durable waits for that.

    `epoch` is the master epoch of changes.
    """

    def __init__(
        self,
        disk: Disk,
        config: BrokerConfig,
        clock: Clock,
        events: TableEvents,
        batch_queue_topics: Set[str] = frozenset(),
        queue_ends: Callable[[str, int], Mapping[int, int]] = lambda topic, queue_count: {},
        log_end: Callable[[], int] = lambda: 0,
        *,
        is_synced: bool = True,
    ) -> None:
        """`batch_queue_topics`: the store's own set. `queue_ends`: the ends of the first so many queues of a topic, by
        queue id. `log_end`: the physical offset of the next record. `is_synced`: the file is known to be on the disk;
        else it is written again."""
        self._disk = disk
        self._clock = clock
        self._topics: dict[str, TopicConfig] = {}
        self.version = DataVersion(0, 0, clock.wall_ms())
        self.epoch = 0
        self._events = events
        self._texts: dict[str, tuple[TopicConfig, bytes]] = {}
        """Encoded member of each topic in a registration, with the topic that it was made from."""
        self._table_text = b""
        """All encoded members; empty after a change of the table."""
        self._table_digest = ""
        self._granted = config.broker_permission
        self._queue_ends, self._log_end = queue_ends, log_end
        self.begins: dict[str, Mapping[int, int]] = {}
        """First offsets of queues, by topic and queue id, where a deleted topic has left messages in front."""
        self.batch_queue_topics = batch_queue_topics
        """Topics, deleted ones too, whose queues have the BatchCQ form, which does not change."""
        self._bounds = TopicBounds()
        self.configure(config)
        for topic in _system_topics(config):
            self._topics[topic.name] = topic
        self.system_topics = SYSTEM_NAMES | self._topics.keys()
        found = config_table.load(disk, "topics", _parse, (_TABLE, DELETED, DELETED_ENDS))
        self.findings, self._unknown = found.findings, found.unknown
        if found.version != DataVersion():
            self.version = found.version
            self.epoch = found.version.state_version
        self._table_changes = TableChanges(self.version.stamp)
        table, deleted, ends = found.table
        self._deleted = DeletedNames(deleted, ends)
        self._topics.update(table)
        self._note_begins(table)
        self._bounds.recount(self._topics)
        self.file = TableFile(disk, "topics", (_TABLE, DELETED_ENDS), _row_to_json, (DELETED_ENDS,))
        self.file.holds(_TABLE, self._topics)
        self.file.holds(DELETED_ENDS, self._deleted.ends)
        if not is_synced and table:
            self.file.doubt()

    def configure(self, config: BrokerConfig) -> None:
        self._auto_create = config.auto_create_topic_enable
        self._bounds.configure(config.max_topic_count)
        self._creations = TokenBucket(config.auto_create_max_per_second, self._clock.now_ms())
        if config.broker_permission != self._granted:
            self._granted = config.broker_permission
            self._texts, self._table_text = {}, b""
            self._events.topics_changed()

    def permission_changed(self) -> None:
        """Advance the version of a master's table after a change of brokerPermission: name servers skip known
        versions."""
        self._advance([])
        self.file.touch()
        self._events.topics_changed()

    @property
    def granted(self) -> int:
        """brokerPermission that limits the permissions in registrations."""
        return self._granted

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def names(self) -> list[str]:
        return sorted(self._topics)

    @property
    def deleted(self) -> Set[str]:
        """Deleted topics, which `restore` must not create again from the log."""
        return self._deleted.names

    @property
    def deleted_ends(self) -> dict[str, Ends]:
        """The ends of their queues, by topic and queue id."""
        return self._deleted.ends

    def begin_of(self, name: str, queue_id: int) -> int:
        """The first offset that a queue of the topic has had."""
        begins = self.begins.get(name)
        return 0 if begins is None else begins.get(queue_id, 0)

    def is_of_deleted(self, name: str, queue_id: int, queue_offset: int) -> bool:
        """True if the message at that place was sent to a deleted topic of that name."""
        return name in self.deleted or queue_offset < self.begin_of(name, queue_id)

    def is_for_deleted(self, name: str, phy_offset: int, *, if_unknown: bool = False) -> bool:
        """True if the message that stands there in the log, and waits for a topic of that name, was sent to a deleted
        one. `if_unknown`: the answer if the release before has deleted it, which did not note the log's end."""
        ends = self.begins.get(name) or self.deleted_ends.get(name)
        if ends is None:
            return False
        log_end = ends.get(LOG_END)
        return if_unknown if log_end is None else phy_offset < log_end

    def read_queue(self, name: str, queue_id: int) -> int:
        """Queue for a delayed message: its original one, or one that consumers read if the topic has fewer queues
        now."""
        topic = self._topics.get(name)
        count = 0 if topic is None else topic.read_queue_count
        return queue_id if queue_id < count or not count else queue_id % count

    def creation_refusal(self, name: str, principal: Principal = UNRESTRICTED) -> str:
        """Reason why the account can create no topic of that name, "" if it exists or can be created."""
        return "" if name in self._topics else self._bounds.refusal(name, principal)

    def retry_refusal(self, name: str, principal: Principal) -> str:
        """Reason why a pop of the account may give no message that would come again in this retry topic, or ""."""
        if name in self._topics:
            return ""
        self._bounds.expect(name, principal)
        return self.creation_refusal(name, principal)

    def has_retry_room(self, name: str) -> bool:
        """True if `create_retry` may create this topic, or it is there."""
        return not self.creation_refusal(name, self._bounds.expected_for(name))

    def create_retry(self, name: str) -> None:
        """Create a retry topic, if it is missing, for the account that has popped what comes again in it."""
        self.create_internal(name, 1, self._bounds.expected_for(name))

    def take_creation_quota(self) -> str:
        """Reason why no send may create a topic now, "" if one may; that counts against the rate limit."""
        if not self._creations.has(self._clock.now_ms()):
            return "first sends make topics faster than autoCreateMaxPerSecond allows; try again later"
        self._creations.take(1)
        return ""

    # --- changes ----------------------------------------------------------------------------------------------------
    def create_for_send(
        self, name: str, default_topic: str, client_queue_count: int, principal: Principal
    ) -> TopicConfig | None:
        """Topic that a first send of an account creates from the pattern `default_topic`; None if that forbids it."""
        pattern = self._topics.get(default_topic)
        if pattern is None or not pattern.perm & PERM_INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self._auto_create:
            return None
        count = max(0, min(client_queue_count, pattern.write_queue_count))
        attributes = {QUEUE_TYPE: BATCH_QUEUE} if name in self.batch_queue_topics else {}
        topic = TopicConfig(name, count, count, pattern.perm & ~PERM_INHERIT, pattern.sys_flag, attributes=attributes)
        self.put(topic, principal)
        return topic

    def _begins_behind(self, name: str, ended: Ends) -> Ends:
        """First offsets of a topic of a deleted one's name, by queue id; records of the deleted one may be lost."""
        ends, log_end = self._queue_ends(name, max(ended, default=-1) + 1), self._log_end()
        begins = {queue_id: min(end, ends[queue_id]) for queue_id, end in ended.items() if queue_id in ends}
        return {**begins, LOG_END: min(ended.get(LOG_END, log_end), log_end)}

    def create_internal(self, name: str, queue_count: int, principal: Principal = UNRESTRICTED) -> TopicConfig:
        """Retry or dead letter topic of that name, created for an account without a pattern if it is missing."""
        present = self._topics.get(name)
        if present is not None:
            return present
        topic = TopicConfig(name, queue_count, queue_count)
        self.put(topic, principal)
        return topic

    def put(self, topic: TopicConfig, principal: Principal = UNRESTRICTED) -> None:
        """Add or replace a topic for an account. After a deleted one of that name, its queues begin behind that one's
        messages."""
        present, begins = self._topics.get(topic.name), topic.begins
        if present is None:
            self._bounds.created(topic.name, principal)
        if topic.name in self.deleted:
            begins = self._begins_behind(topic.name, self._deleted.discard(topic.name))
        elif present is not None:
            begins = present.begins
        self._topics[topic.name] = topic if topic.begins == begins else replace(topic, begins=begins)
        self._table_text = b""
        self._note_begins([topic.name])
        self._commit([topic.name])
        if topic.is_batch:
            self._events.batch_topics_changed({topic.name})

    def remove(self, name: str) -> None:
        """Remove a topic. It is remembered if its queues have held messages, which stay, or if a message may wait for
        it. Raises StoreError, with nothing changed, if the ends of the queues cannot be read."""
        topic = self._topics.get(name)
        if topic is not None:
            ends = self._queue_ends(name, max(MAX_QUEUE_COUNT, topic.read_queue_count, topic.write_queue_count))
            is_remembered = ends or any(self._queue_ends(*queues) for queues in _WAITING.items())
            del self._topics[name]
            self._bounds.removed(name)
            if is_remembered:
                self._deleted.add(name, {LOG_END: self._log_end(), **ends})
            self._table_text = b""
            self._note_begins([name])
            self._commit([name])

    def _note_begins(self, names: Iterable[str]) -> None:
        """Update the first offsets of topics that were changed or removed."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and topic.begins:
                self.begins[name] = topic.begins
            else:
                self.begins.pop(name, None)

    def clamp_begins(self, end_of: Callable[[str, int], int]) -> bool:
        """Limit each queue's first offset to its end (`end_of(topic, queue_id)`), and what is known of the log's end to
        that, which a loss of data moves back; else consumers would not see new messages. Called by a new master. True
        if that changed any."""
        log_end = self._log_end()
        behind = self._deleted.clamp(log_end)
        for name, known in self.begins.items():
            begins = {key: min(at, log_end if key == LOG_END else end_of(name, key)) for key, at in known.items()}
            if begins != known:
                self._topics[name] = replace(self._topics[name], begins=begins)
                behind.append(name)
        if behind:
            self._table_text = b""
            self._note_begins(behind)
            self._commit(behind)
        return bool(behind)

    def restore(self, queues: Mapping[str, list[int]], batch_topics: Set[str] = frozenset()) -> list[str]:
        """Create topics that have queues on disk but no entry here, too few read queues or another type (ruling 16).
        Write queues are not added: an operator may have removed them. A deleted topic is created again if its queues
        have grown since: it was made anew, and this replica has not heard so. `queues`: ids in ascending order. Returns
        the topics' names."""
        missing = []
        topic_of = self._topics.get
        for name, ids in queues.items():
            needed = ids[-1] + 1 if ids else 0
            present = topic_of(name)
            if present is not None and present.read_queue_count >= needed and name not in batch_topics:
                continue  # a failover waits for this loop, and nearly every topic is so
            begins: Mapping[int, int] = {}
            if name in self.deleted:
                begins = self.deleted_ends.get(name, {})
                if not begins or all(begins.get(n, 0) >= end for n, end in self._queue_ends(name, needed).items()):
                    continue
                self._deleted.discard(name)
            elif present is None and len(self._topics) >= self._bounds.most:
                continue  # with more than that a name server may take none
            present = present or TopicConfig(name, 0, needed, begins=begins)
            attributes = {**present.attributes, QUEUE_TYPE: BATCH_QUEUE} if name in batch_topics else present.attributes
            if present.read_queue_count < needed or present.attributes != attributes:
                if name not in self._topics:
                    self._bounds.added(name)
                self._topics[name] = replace(
                    present,
                    read_queue_count=max(needed, present.read_queue_count),
                    attributes=attributes,
                )
                missing.append(name)
        if missing:
            missing.sort()
            self._table_text = b""
            self._note_begins(missing)
            self._commit(missing)
        return missing

    def new_epoch(self, epoch: int) -> None:
        """Begin a master epoch, whose versions are higher than those of older masters. The file follows with the next
        change or `save`, so that a failover waits for no disk. If the master was killed and restarts in its old epoch,
        slaves may have changes that its file lacks: no version is used twice (`DataVersion.new_epoch`)."""
        self._bounds.clear()
        self.epoch = epoch
        self.version.new_epoch(epoch)
        self._advance([])
        self.file.touch()
        self._events.topics_changed()

    def replace(
        self,
        table: Mapping[str, TopicConfig],
        version: DataVersion,
        deleted: Set[str] = frozenset(),
        deleted_ends: Mapping[str, Ends] = NO_ENDS,
    ) -> None:
        """Replace a slave's table by its master's. The file must be written before the next poll acknowledges it."""
        if version == self.version and table == self._topics:
            return
        self._deleted = DeletedNames(deleted, deleted_ends)
        self._topics, self._table_text = dict(table), b""
        self._bounds.recount(self._topics)
        self.begins.clear()
        self._note_begins(table)
        self.version = version
        self._table_changes.restart(version.stamp)
        self.file.replace(_TABLE, self._topics)
        self.file.replace(DELETED_ENDS, self._deleted.ends)
        self._events.batch_topics_changed(self.batch_topics())
        self._events.topics_changed()

    def changes_since(self, stamp: TableVersion) -> dict[str, Any] | None:
        """Entries that a slave with version `stamp` lacks, for `apply`; None if it must take the whole table."""
        names = self._table_changes.since(stamp)
        if names is None:
            return None
        present = {name: self._topics[name].to_json() for name in names if name in self._topics}
        removed = [name for name in names if name not in present]
        changes = {"dataVersion": self.version.to_json(), "removed": removed, _TABLE: present}
        return changes | self._deleted_part(self.deleted & set(removed))

    def has_changed_since(self, stamp: TableVersion) -> bool:
        """True if a table with version `stamp` may differ from this one."""
        return self._table_changes.since(stamp) != []

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Apply the master's `changes_since` on a slave. The file must be written before the next poll acknowledges it,
        unless only the version changed. Raises ValueError if malformed."""
        present = parse_table(changes)
        removed = {str(name) for name in changes.get("removed") or ()}
        version = DataVersion.from_json(changes.get("dataVersion"))
        for name in removed & self._topics.keys():
            del self._topics[name]
            self._bounds.removed(name)
        for name in present.keys() - self._topics.keys():
            self._bounds.added(name)
        self._topics.update(present)
        if present or removed:
            self._table_text = b""
        self._note_begins([*present, *removed])
        remembered = parse_deleted(changes) if DELETED in changes else removed  # the release before remembers all
        ends = parse_deleted_ends(changes)
        for name in sorted(remembered):
            self._deleted.add(name, ends.get(name, {}))
        for name in present:
            self._deleted.discard(name)
        self.version = version
        self._table_changes.advance(version.stamp, [*present, *removed])
        self.file.touch()
        if present or removed:
            self.file.change(_TABLE, {**dict.fromkeys(removed), **present})
            self.file.change(DELETED_ENDS, self._deleted.take_changed())
            self._events.batch_topics_changed({name for name, topic in present.items() if topic.is_batch})
        self._events.topics_changed()

    def batch_topics(self) -> set[str]:
        return {topic.name for topic in self._topics.values() if topic.is_batch}

    def save(self) -> None:
        """Write the file if it lacks changes. Raises OSError."""
        self.file.save(self._members)

    def unsaved(self, *, in_flight: bool = False) -> PendingTableWrite | None:
        """Content that the file lacks, for `file.write`."""
        return self.file.unsaved(self._members, in_flight=in_flight)

    def _commit(self, names: Collection[str]) -> None:
        self._advance(names)
        self.file.change(_TABLE, {name: self._topics.get(name) for name in names})
        if deleted := self._deleted.take_changed():
            self.file.change(DELETED_ENDS, deleted)
        self._events.save_tables_soon()
        self._events.topics_changed()
        self._events.table_changed()

    def _advance(self, names: Iterable[str]) -> None:
        self.version.advance(self.epoch, self._clock.wall_ms())
        self._table_changes.advance(self.version.stamp, names)

    # --- bodies -----------------------------------------------------------------------------------------------------
    def to_json(self, first: int = 0, count: int | None = None) -> dict[str, Any]:
        """Body of request 21 and of a registration: topics [first, first+count) in order of name."""
        names = self.names()[first : None if count is None else first + count]
        table = {name: self._topics[name].to_json() for name in names}
        return {**self._stamps(), _TABLE: table, **_NO_MAPPINGS} | (
            self._deleted_part(self.deleted) if self.deleted else {}
        )

    def members(self, first: int, count: int | None, *, is_last: bool) -> Generator[None, None, dict[str, Any]]:
        """Members of `to_json`, in steps, for `dumps_in_steps`; what is known of deleted topics with the last part."""
        names, find = (yield from sorted_in_steps(self._topics)), self._topics.get
        names = names[first : None if count is None else first + count]
        table = Entries((name, topic.to_json()) for name in names if (topic := find(name)) is not None)
        members = {**self._stamps(), _TABLE: table, **_NO_MAPPINGS}
        if is_last and (deleted := dict(self.deleted_ends)):
            ends = Entries((name, _offsets_to_json(of_name)) for name, of_name in deleted.items())
            members |= {DELETED: Items(deleted), DELETED_ENDS: ends}
        return members

    def _stamps(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "mappingDataVersion": DataVersion(0, 0, self.version.timestamp).to_json(),
        }

    def registration(self) -> Generator[None, None, TopicRegistration]:
        """Make the body of request 103 in steps. A failover waits for it, so only changes since the last one are
        encoded. Its version is that of the first step; rows may be newer, and the next registration has their
        version."""
        stamps = self._stamps()
        table, digest = yield from self._encoded_table()
        parts = (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":',
            dumps(stamps)[:-1],
            b',"topicConfigTable":{',
            table,
            b"},",
            dumps(_NO_MAPPINGS)[1:],
            b"}",
        )
        return TopicRegistration(b"".join(parts), digest, stamps["dataVersion"])

    def packed_registration(self) -> Generator[None, None, bytes]:
        """Compressed registration, in steps; its topics are those of one moment."""
        version, now = self.version.to_json(), dict(self._topics)
        names = yield from sorted_in_steps(now)
        return (yield from pack(version, len(names), (self._as_granted(now[name]).to_json() for name in names)))

    def _as_granted(self, topic: TopicConfig) -> TopicConfig:
        """Topic in registrations: its permissions are limited by brokerPermission; `begins` is left out."""
        if topic.begins:
            topic = replace(topic, begins={})
        if self._granted & _GRANTS_ALL == _GRANTS_ALL:
            return topic
        return replace(topic, perm=topic.perm & self._granted)

    def _encoded_table(self) -> Generator[None, None, tuple[bytes, str]]:
        """All encoded members and their digest. They are kept unless the table changes meanwhile."""
        if self._table_text:
            return self._table_text, self._table_digest
        began_with, texts, now = self.version.stamp, dict[str, tuple[TopicConfig, bytes]](), self._topics
        granted = self._granted
        for place, name in enumerate((yield from sorted_in_steps(now)), start=1):
            topic, known = self._topics.get(name), self._texts.get(name)
            if topic is not None:
                if known is None or known[0] is not topic:
                    known = topic, dumps({name: self._as_granted(topic).to_json()})[1:-1]
                texts[name] = known
            if place % ENCODED_PER_STEP == 0:
                yield
        text = b",".join(text for _, text in texts.values())
        yield
        digest = blake2b(text, digest_size=16).hexdigest()
        if self._granted == granted:
            self._texts = texts
            if self.version.stamp == began_with and self._topics is now:
                self._table_text, self._table_digest = text, digest
        return text, digest

    def _members(self) -> dict[str, Any]:
        """Members of the file."""
        return {"dataVersion": self.version.to_json(), _TABLE: ROWS, **self._unknown, DELETED_ENDS: ROWS}

    def _deleted_part(self, names: Collection[str]) -> dict[str, Any]:
        """Members of rmqha for these names of deleted topics; Apache's brokers ignore them."""
        ends = {name: _offsets_to_json(self.deleted_ends[name]) for name in sorted(names)}
        return {DELETED: list(ends), DELETED_ENDS: ends}


class _Loaded(NamedTuple):
    """The content of topics.json."""

    topics: dict[str, TopicConfig]
    deleted: frozenset[str]
    deleted_ends: dict[str, Ends]


def _row_to_json(row: TopicConfig | Ends) -> dict[str, Any]:
    """A row of topics.json: a topic, or the ends of a deleted one."""
    return row.to_json() if isinstance(row, TopicConfig) else _offsets_to_json(row)


def _parse(body: Mapping[str, Any]) -> _Loaded:
    ends = parse_deleted_ends(body)
    return _Loaded(parse_table(body), parse_deleted(body) | ends.keys(), ends)


def parse_table(body: Mapping[str, Any]) -> dict[str, TopicConfig]:
    """Topics of topics.json or of a body of request 21."""
    table = mapping(body.get("topicConfigTable"), "topicConfigTable")
    return {str(name): TopicConfig.from_json(str(name), mapping(item, str(name))) for name, item in table.items()}


def parse_deleted(body: Mapping[str, Any]) -> frozenset[str]:
    """Deleted topics of topics.json or of a body of request 21."""
    return frozenset(str(name) for name in body.get(DELETED) or ())


def parse_deleted_ends(body: Mapping[str, Any]) -> dict[str, Ends]:
    """The ends of the queues of deleted topics, of the same or of `TopicTable.changes_since`. Raises ValueError or
    TypeError."""
    ends = mapping(body.get(DELETED_ENDS), DELETED_ENDS)
    return {str(name): _offsets_from_json(value, str(name)) for name, value in ends.items()}


def merge_attributes(present: Mapping[str, str] | None, change: str) -> dict[str, str]:
    """Attributes after a change "+name=value,-name" of mqadmin; `present` is None for a new topic. As in RocketMQ, type
    of queues and cleanup policy are set only at creation. Raises ValueError with a sentence."""
    merged = dict(present or {})
    for piece in filter(None, change.split(",")):
        name, equals, value = piece[1:].partition("=")
        if not name or piece[0] not in "+-" or bool(equals) != (piece[0] == "+"):
            raise ValueError(f"attribute {piece!r} must be +name=value or -name")
        if name in _UNCHANGEABLE and present is not None:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name}")
        if equals:
            _check_attribute(name, value)
            merged[name] = value
        elif merged.pop(name, None) is None and name not in _VALUES:
            raise ValueError(f"unsupported key: {name}")
    return merged


def _check_attribute(name: str, value: str) -> None:
    """Check an attribute. Raises ValueError."""
    values = _VALUES.get(name)
    if values is None:
        raise ValueError(f"unsupported key: {name}")
    if values and value not in values:
        raise ValueError(f"{name} must be {' or '.join(values)}, not {value!r}")
    if not values and not _HOURS.fullmatch(value):
        raise ValueError(f"{name} must be a number of hours or -1, not {value!r}")
    if value == COMPACTION:
        # what an operator would rely on is that the newest message of a key stays, however old it is
        raise ValueError(f"{name}={value} is not offered: this broker removes whole log files by their age alone")


def refusal_to_send(name: str) -> tuple[ResponseCode, str] | None:
    """Reason why no client may send to a topic of that name, whether it exists or not."""
    fault = topic_name_refusal(name)
    if fault:
        return ResponseCode.INVALID_PARAMETER, fault
    if is_broker_only(name):
        return ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
    return None


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Topics that Apache's broker creates at its start, in the same shapes, also for features that rmqha lacks: tools
    count topics, and a slave of Apache's drops those that its master lacks."""
    inherit = PERM_READ | PERM_WRITE | PERM_INHERIT
    level_count = len(parse_delay_levels(config.message_delay_level))
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(BENCHMARK_TOPIC, MAX_QUEUE_COUNT, MAX_QUEUE_COUNT),
        TopicConfig(SCHEDULE_TOPIC, level_count, level_count),
        *(TopicConfig(name, 1, 1) for name in (*TRANSACTION_TOPICS, *ROCKSDB_TRANSACTION_TOPICS)),
        TopicConfig(config.broker_cluster_name, 16, 16, inherit),
        TopicConfig(config.broker_name, 1, 1, inherit),
        TopicConfig(config.broker_cluster_name + REPLY_TOPIC_POSTFIX, 1, 1),
        TopicConfig(REVIVE_TOPIC_PREFIX + config.broker_cluster_name, REVIVE_QUEUE_COUNT, REVIVE_QUEUE_COUNT),
        TopicConfig(SYNC_MEMBER_TOPIC_PREFIX + config.broker_name, 1, 1, PERM_INHERIT),
    ]
    if config.timer_wheel_enable:
        topics.append(TopicConfig(TIMER_TOPIC, 1, 1))
    if config.trace_topic_enable:
        topics.append(TopicConfig(TRACE_TOPIC, 1, 1))
    if config.auto_create_topic_enable:
        count = config.default_topic_queue_nums
        topics.append(TopicConfig(DEFAULT_TOPIC, count, count, inherit))
    return topics
