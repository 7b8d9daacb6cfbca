"""Subscription groups: config/subscriptionGroup.json; created on first use, as RocketMQ does by default."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

from rmqha.broker.tables import config_table
from rmqha.broker.tables.config_table import DataVersion, TableEvents, mapping
from rmqha.broker.tables.table_bounds import Creators
from rmqha.broker.tables.table_file import ROWS, PendingTableWrite, TableFile
from rmqha.broker.tables.table_version import TableChanges, TableVersion
from rmqha.broker.tables.topics import MAX_QUEUE_COUNT, MAX_TOPIC_LENGTH, resource_name_refusal
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.message import RETRY_PREFIX
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.model.quota import TokenBucket
from rmqha.port import Clock, Disk
from rmqha.wire.lenient_json import Entries
from rmqha.wire.steps import sorted_in_steps

_INT64 = re.compile("[+-]?[0-9]{1,18}")
MAX_GROUP_LENGTH = MAX_TOPIC_LENGTH - len(RETRY_PREFIX)
"""Bound that leaves a valid name for the retry topic."""
MAX_GROUP_BYTES = 64 * 1024
"""Bound on the settings of one group, as JSON."""
_TABLE = "subscriptionGroupTable"
_FORBIDDEN = "forbiddenTable"
_FORBIDS_READING = 4
"""Permission bit of RocketMQ that forbids a group to read a topic."""
MAX_FORBIDDEN_COUNT = 1000
"""Bound on the topics that one group may be forbidden to read."""


SYSTEM_GROUPS = (
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "TOOLS_CONSUMER",
)
"""Groups that Apache's broker has from its start: tools list and count groups."""


def default_group(name: str) -> dict[str, Any]:
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def group_name_refusal(name: str) -> str:
    """Reason why `name` cannot be a consumer group, in RocketMQ's words; "" if it can."""
    return resource_name_refusal("group", name, MAX_GROUP_LENGTH)


_INT32_MAX = 2**31 - 1
_INT64_BOUNDS = -(2**63), 2**63 - 1
_BOUNDS = {
    "consumeTimeoutMinute": (-(2**31), _INT32_MAX),
    "groupSysFlag": (-(2**31), _INT32_MAX),
    "retryMaxTimes": (-1, _INT32_MAX),
    "retryQueueNums": (0, MAX_QUEUE_COUNT),
}
_RETRY_POLICIES = ("CUSTOMIZED", "EXPONENTIAL")


def settings_refusal(group: Mapping[str, Any]) -> str:
    """Reason why these cannot be the settings of a group; "" if they can. A value of another type would make the table
    of all groups unreadable for Apache's slaves and tools."""
    for key, default in default_group("").items():
        value = group.get(key, default)
        if isinstance(default, bool):
            if not isinstance(value, bool):
                return f"{key} must be true or false"
        elif isinstance(default, int):
            low, high = _BOUNDS.get(key, _INT64_BOUNDS)
            if not isinstance(value, int) or not low <= value <= high:
                return f"{key} must be a whole number from {low} to {high}"
    policy = group.get("groupRetryPolicy") or {}
    if not isinstance(policy, Mapping) or (policy.get("type") or _RETRY_POLICIES[0]) not in _RETRY_POLICIES:
        return f"groupRetryPolicy must be an object whose type is one of {', '.join(_RETRY_POLICIES)}"
    subscriptions = group.get("subscriptionDataSet") or []
    if not isinstance(subscriptions, list) or not all(isinstance(item, Mapping) for item in subscriptions):
        return "subscriptionDataSet must be a list of objects"
    return ""


PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: percentage of pops of a priority topic that begin with the highest priority."""
MAX_PRIORITY_FACTOR = 100


def priority_factor(group: Mapping[str, Any]) -> int:
    """Value of that attribute, as RocketMQ reads it."""
    value = str((group.get("attributes") or {}).get(PRIORITY_FACTOR, ""))
    return int(value) if _INT64.fullmatch(value) else MAX_PRIORITY_FACTOR


def merge_attributes(present: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes after RocketMQ's changes {"+name": "value", "-name": ""}. Raises ValueError with its sentences."""
    merged = dict(present)
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if sign not in "+-" or not name:
            raise ValueError(f"wrong format key: {key}")
        if name != PRIORITY_FACTOR:
            raise ValueError(f"unsupported key: {name}")
        if sign == "+":
            if not _INT64.fullmatch(str(value)) or not 0 <= int(value) <= MAX_PRIORITY_FACTOR:
                raise ValueError(f"value is not in range(0, {MAX_PRIORITY_FACTOR})")
            merged[name] = str(value)
        elif merged.pop(name, None) is None:
            raise ValueError(f"attempt to delete a nonexistent key: {name}")
    return merged


CREATION_SHARE = 5
"""First uses that may create groups, per topic that may be created: a group needs no file of its own."""


class GroupTable:
    """Settings of consumer groups, in the form of the file and the wire. Changes take effect at once and reach the disk
    together (`file`); a request that must be durable waits for that."""

    def __init__(
        self, disk: Disk, clock: Clock, config: BrokerConfig, events: TableEvents, *, is_synced: bool = True
    ) -> None:
        """`is_synced`: the file is known to be on the disk; else it is written again."""
        self._clock = clock
        self._creators = Creators()
        self.configure(config)
        found = config_table.load(disk, "subscriptionGroup", _parse, (_TABLE, _FORBIDDEN))
        self.version, self._unknown, self.findings = found.version, found.unknown, found.findings
        self.epoch = self.version.state_version
        table, self._forbidden = found.table
        self._groups = {name: default_group(name) for name in SYSTEM_GROUPS} | table
        self._table_changes = TableChanges(self.version.stamp)
        self._events = events
        self.file = TableFile(disk, "subscriptionGroup", (_TABLE,))
        self.file.holds(_TABLE, self._groups)
        if not is_synced and table:
            self.file.doubt()

    def configure(self, config: BrokerConfig) -> None:
        self._auto_create = config.auto_create_subscription_group
        self._max_count = self._creators.most = config.max_group_count
        self._creations = TokenBucket(CREATION_SHARE * config.auto_create_max_per_second, self._clock.now_ms())

    def has(self, name: str) -> bool:
        """True if the group has settings here."""
        return self.get(name) is not None

    def get(self, name: str) -> Mapping[str, Any] | None:
        return self._groups.get(name)

    def creation_refusal(self, name: str, principal: Principal = UNRESTRICTED) -> str:
        """Reason why the account can create no group of that name, "" if it exists or can be created."""
        if name in self._groups:
            return ""
        made_count = len(self._groups) - sum(item in self._groups for item in SYSTEM_GROUPS)
        if made_count < self._max_count:
            return self._creators.refusal(principal, "groups", "maxGroupCount")
        return f"this broker has as many groups as maxGroupCount allows, {self._max_count}: delete some or raise it"

    def get_or_create(self, name: str, principal: Principal = UNRESTRICTED) -> Mapping[str, Any] | None:
        """Settings of `name`, created with defaults on first use by that account; None for an invalid name, beyond the
        bounds, and where only operators create groups."""
        group = self._groups.get(name)
        may_create = self._auto_create and not group_name_refusal(name)
        if group is None and may_create and not self.creation_refusal(name, principal):
            if not self._creations.has(self._clock.now_ms()):
                return None  # it shows itself again
            self._creations.take(1)
            group = default_group(name)
            self.put(group, principal)
        return group

    def put(self, group: Mapping[str, Any], principal: Principal = UNRESTRICTED) -> None:
        """Add or replace a group for an account; missing settings take their defaults, attributes change by
        `merge_attributes`. Raises ValueError."""
        name = str(group["groupName"])
        made = {**default_group(name), **group, "attributes": self.attributes_with(group)}
        if name not in self._groups:
            self._creators.created(name, principal)
        self._groups[name] = made
        self._commit(name)

    def attributes_with(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes of a group after these changes. Raises ValueError."""
        present = self._groups.get(str(group["groupName"])) or {}
        changes = mapping(group.get("attributes"), "attributes")
        return merge_attributes(present.get("attributes") or {}, changes)

    def remove(self, name: str) -> None:
        """Remove a group's settings; it is created with defaults if it is used again."""
        if self._groups.pop(name, None) is not None:
            self._creators.removed(name)
            self._set_forbidden(name, {})
            self._commit(name)

    def is_forbidden(self, group: str, topic: str) -> bool:
        """True if an operator forbids the group to read the topic."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & _FORBIDS_READING)

    def forbid(self, group: str, topic: str, forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again. Raises ValueError if too many are forbidden."""
        if self.is_forbidden(group, topic) == forbidden:
            return
        row = dict(self._forbidden.get(group, {}))
        if forbidden and len(row) >= MAX_FORBIDDEN_COUNT:
            raise ValueError(f"the group {group} is forbidden to read {MAX_FORBIDDEN_COUNT} topics, which is the most")
        bits = row.pop(topic, 0) ^ _FORBIDS_READING
        self._set_forbidden(group, row | ({topic: bits} if bits else {}))
        self._commit(group)

    def _set_forbidden(self, group: str, row: Mapping[str, int]) -> None:
        """Replace the table, which a thread may be writing."""
        rest = {name: other for name, other in self._forbidden.items() if name != group}
        self._forbidden = rest | ({group: dict(row)} if row else {})

    def new_epoch(self, epoch: int) -> None:
        """Begin a master epoch. The file follows with the next change or `save`; the counter goes on as that of the
        topics."""
        self._creators.clear()
        self.epoch = epoch
        self.version.new_epoch(epoch)
        self.version.advance(epoch, self._clock.wall_ms())
        self._table_changes.advance(self.version.stamp, [])
        self.file.touch()

    def _commit(self, name: str) -> None:
        self.version.advance(self.epoch, self._clock.wall_ms())
        self._table_changes.advance(self.version.stamp, [name])
        self.file.change(_TABLE, {name: self._groups.get(name)})
        self._events.save_tables_soon()
        self._events.table_changed()

    def replace(self, body: Mapping[str, Any], groups: Mapping[str, dict[str, Any]]) -> None:
        """Replace a slave's table by its master's; `body` is one of the answers with it. The file must be written
        before the next poll acknowledges it."""
        version = DataVersion.from_json(body.get("dataVersion"))
        if version == self.version and groups == self._groups:
            return
        self.version = version
        self._forbidden = _forbidden_rows(body)
        self._groups = dict(groups)
        self._table_changes.restart(version.stamp)
        self.file.replace(_TABLE, self._groups)

    def changes_since(self, stamp: TableVersion) -> dict[str, Any] | None:
        """Entries that a slave with version `stamp` lacks, for `apply`; None if it must take the whole table."""
        names = self._table_changes.since(stamp)
        if names is None:
            return None
        present = {name: self._groups[name] for name in names if name in self._groups}
        removed = [name for name in names if name not in present]
        forbidden = {name: self._forbidden.get(name, {}) for name in names}
        return {
            "dataVersion": self.version.to_json(),
            _FORBIDDEN: forbidden,
            "removed": removed,
            "subscriptionGroupTable": present,
        }

    def has_changed_since(self, stamp: TableVersion) -> bool:
        """True if a table with version `stamp` may differ from this one."""
        return self._table_changes.since(stamp) != []

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Apply the master's `changes_since` on a slave. The file must be written before the next poll acknowledges it,
        unless only the version changed. Raises ValueError."""
        present = parse_table(changes)
        removed = [str(name) for name in changes.get("removed") or ()]
        for name in removed:
            self._groups.pop(name, None)
        self._groups.update(present)
        for name, row in _forbidden_rows(changes).items():
            self._set_forbidden(name, row)
        self.version = DataVersion.from_json(changes.get("dataVersion"))
        self._table_changes.advance(self.version.stamp, [*present, *removed])
        self.file.touch()
        if present or removed:
            self.file.change(_TABLE, {**dict.fromkeys(removed), **present})

    def to_json(self, first: int = 0, count: int | None = None) -> dict[str, Any]:
        names = sorted(self._groups)[first : None if count is None else first + count]
        return {
            "dataVersion": self.version.to_json(),
            _FORBIDDEN: self._forbidden,
            "subscriptionGroupTable": {name: self._groups[name] for name in names},
        }

    def members(self, first: int, count: int | None) -> Generator[None, None, dict[str, Any]]:
        """Members of `to_json`, in steps, for `dumps_in_steps`."""
        names, find = (yield from sorted_in_steps(self._groups)), self._groups.get
        names = names[first : None if count is None else first + count]
        table = Entries((name, group) for name in names if (group := find(name)) is not None)
        return {**self.to_json(0, 0), "subscriptionGroupTable": table}

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        return sorted(self._groups)

    def save(self) -> None:
        """Write the file if it lacks changes. Raises OSError."""
        self.file.save(self._members)

    def unsaved(self, *, in_flight: bool = False) -> PendingTableWrite | None:
        """Content that the file lacks, for `file.write`."""
        return self.file.unsaved(self._members, in_flight=in_flight)

    def _members(self) -> dict[str, Any]:
        """Members of the file."""
        return {
            "dataVersion": self.version.to_json(),
            _FORBIDDEN: self._forbidden,
            _TABLE: ROWS,
            **self._unknown,
        }


def _parse(body: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    return parse_table(body), _forbidden_rows(body)


def _forbidden_rows(body: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Permission bits by topic, by group. Raises ValueError."""
    rows = mapping(body.get(_FORBIDDEN), _FORBIDDEN)
    return {
        str(group): {str(topic): int(bits) for topic, bits in mapping(row, _FORBIDDEN).items()}
        for group, row in rows.items()
    }


def parse_table(body: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Groups of subscriptionGroup.json or of a body of request 201."""
    table = mapping(body.get("subscriptionGroupTable"), "subscriptionGroupTable")
    return {str(name): {**default_group(str(name)), **item} for name, item in table.items()}
