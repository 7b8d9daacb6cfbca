"""The files config/*.json in RocketMQ's form: a data version, and JSON as fastjson prints it.

fastjson indents with tabs, puts no space after ":", prints an empty object over three lines and leaves integer keys
unquoted (formats.md §9). The bytes are those that a Java broker would have written in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rmqha.broker.tables.table_version import TableVersion
from rmqha.port import Disk
from rmqha.store.meta import config_file

LOST_CHANGE_COUNT = 100_000
"""Bound on the changes that a master can have sent to slaves and not saved before a kill."""
MAX_COUNTER = 2**31 - 1

T = TypeVar("T")


class TableEvents(Protocol):
    """Port to which tables report their changes."""

    def table_changed(self) -> None:
        """The version of a table has changed: send it to slaves."""

    def save_tables_soon(self) -> None:
        """The file of topics or groups lacks a change for which a request may wait."""

    def topics_changed(self) -> None:
        """The topics have changed: tell the name servers."""

    def batch_topics_changed(self, topics: set[str]) -> None:
        """Set of all topics with queue.type=BatchCQ, before any client can send to a new one."""


@dataclass(slots=True)
class DataVersion:
    """Version of one table. `state_version` is the master epoch of the last change."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    @property
    def stamp(self) -> TableVersion:
        return TableVersion(self.state_version, self.counter)

    def advance(self, state_version: int, wall_ms: int) -> None:
        self.counter += 1
        self.state_version = state_version
        self.timestamp = wall_ms

    def new_epoch(self, epoch: int) -> None:
        """Begin master epoch `epoch`. A master that was killed may have sent changes that its file lacks: the counter
        skips them, so that no version is used twice. It stays a Java int: fastjson2 reads no larger one."""
        if epoch == self.state_version:
            self.counter += LOST_CHANGE_COUNT
        elif self.counter > MAX_COUNTER // 2:
            self.counter = 0

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> DataVersion:
        given = value if isinstance(value, Mapping) else {}
        return cls(
            int(given.get("counter", 0)), int(given.get("stateVersion", given.get("stateMachineVersion", 0))),
            int(given.get("timestamp", 0)),
        )  # fmt: skip


class LoadedTable(NamedTuple, Generic[T]):
    """A table of a file. `unknown` are members that this release does not know and writes back unchanged. `findings`
    has one sentence for each fault."""

    table: T
    version: DataVersion
    unknown: dict[str, Any]
    findings: list[str]


def load(disk: Disk, name: str, parse: Callable[[Mapping[str, Any]], T], known: Collection[str]) -> LoadedTable[T]:
    """Table `name` of the file or its .bak, or `parse({})` without them. `parse` takes the members `known`. Raises
    StoreError if the content is unreadable."""

    def whole(body: Mapping[str, Any]) -> LoadedTable[T]:
        unknown = {key: item for key, item in body.items() if key not in known and key != "dataVersion"}
        return LoadedTable(parse(body), DataVersion.from_json(body.get("dataVersion")), unknown, [])

    loaded = config_file.load(disk, name, whole)
    found = whole({}) if loaded.value is None else loaded.value
    return found._replace(findings=loaded.lines)


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """Object member of that name, empty if missing. Raises ValueError for another type."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, not {type(value).__name__}")
    return value


def save(disk: Disk, name: str, value: Mapping[str, Any]) -> None:
    """Replace the file; the old one becomes the .bak. Durable on return. Raises OSError."""
    write(disk, name, encode(value))


def encode(value: Mapping[str, Any]) -> bytes:
    return pretty(value).encode()


def write(disk: Disk, name: str, data: bytes) -> None:
    config_file.replace(disk, name, data)


class Encoded(NamedTuple):
    """Text that `pretty` has made before for the same position."""

    text: str


def pretty(value: Any, line: str = "\n") -> str:
    """JSON as fastjson prints it. `line`: line feed and the present indentation."""
    parts: list[str] = []
    _put(value, line, parts.append)
    return "".join(parts)


def _put(value: Any, line: str, put: Callable[[str], object]) -> None:
    """Append JSON text, the common types first: 20,000 topics have 200,000 values, and broker loops wait for this."""
    kind = type(value)
    if kind is str:
        put(encode_basestring(value))
    elif kind is int:
        put(str(value))
    elif kind is Encoded:
        put(value.text)
    elif isinstance(value, Mapping):
        inner = line + "\t"
        put("{" + inner)
        separator = ""
        for key, item in value.items():
            put(f"{separator}{key}:" if isinstance(key, int) else separator + encode_basestring(key) + ":")
            _put(item, inner, put)
            separator = "," + inner
        put(line + "}")
    elif isinstance(value, (list, tuple)):
        inner = line + "\t"
        put("[" + inner)
        separator = ""
        for item in value:
            put(separator)
            _put(item, inner, put)
            separator = "," + inner
        put(line + "]")
    else:
        put(json.dumps(value, ensure_ascii=False))
