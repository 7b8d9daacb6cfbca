"""The files config/*.json in RocketMQ's form: a version stamp, and JSON as fastjson prints it.

fastjson indents with tabs, puts no space after ":", prints an empty object over three lines and leaves integer keys
unquoted (formats.md §9). A file written here is byte for byte what a Java broker would have written in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rmqha.model.error import RemoteProtocolError, StoreError
from rmqha.port import Disk
from rmqha.wire import lenient_json


@dataclass(slots=True)
class DataVersion:
    """Version of one table. `state_version` is the master epoch under which it was last changed."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def advance(self, state_version: int, wall_ms: int) -> None:
        self.counter += 1
        self.state_version = state_version
        self.timestamp = wall_ms

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> DataVersion:
        given = value if isinstance(value, Mapping) else {}
        return cls(
            int(given.get("counter", 0)), int(given.get("stateVersion", given.get("stateMachineVersion", 0))),
            int(given.get("timestamp", 0)),
        )  # fmt: skip


def path_of(name: str) -> str:
    return f"config/{name}.json"


def load(disk: Disk, name: str) -> dict[str, Any] | None:
    """The table `name`, from the file or, where Java left only that, its .bak; None if there is neither.

    Raises StoreError if a file is there and is not JSON.
    """
    for path in (path_of(name), path_of(name) + ".bak"):
        data = disk.read(path) if disk.exists(path) else b""
        if not data.strip():
            continue
        try:
            value = lenient_json.loads(data)
        except RemoteProtocolError as error:
            raise StoreError(f"{disk.label}/{path} cannot be read ({error}); restore it or remove it") from None
        if not isinstance(value, dict):
            raise StoreError(f"{disk.label}/{path} must hold a JSON object; restore it or remove it")
        return value
    return None


def save(disk: Disk, name: str, value: Mapping[str, Any]) -> None:
    """Replace the file; durable when it returns. Raises OSError."""
    write(disk, name, encode(value))


def encode(value: Mapping[str, Any]) -> bytes:
    return pretty(value).encode()


def write(disk: Disk, name: str, data: bytes) -> None:
    disk.make_dirs("config")
    disk.write_atomic(path_of(name), data)


def pretty(value: Any) -> str:
    return "".join(_pieces(value, "\n"))


def _pieces(value: Any, line: str) -> Iterator[str]:
    """`line` is a line feed and the indentation of the value's own closing bracket."""
    inner = line + "\t"
    if isinstance(value, Mapping):
        yield "{" + inner
        for place, (key, item) in enumerate(value.items()):
            if place:
                yield "," + inner
            yield (f"{key}:" if isinstance(key, int) else json.dumps(key, ensure_ascii=False) + ":")
            yield from _pieces(item, inner)
        yield line + "}"
    elif isinstance(value, (list, tuple)):
        yield "[" + inner
        for place, item in enumerate(value):
            if place:
                yield "," + inner
            yield from _pieces(item, inner)
        yield line + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
