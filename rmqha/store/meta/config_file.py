"""The files config/*.json: which of the file and its .bak is taken, and how one is replaced. Control plane.

As RocketMQ does: the old file becomes the .bak before the new one is written, and the .bak is read where the file is
missing, empty or damaged. A damaged file is kept as .damaged, so that it never becomes the .bak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from rmqha.model.error import RemoteProtocolError, StoreError
from rmqha.model.offset import Buffer
from rmqha.port import Disk, ReadDisk
from rmqha.store.meta.problem import disk_errors, place
from rmqha.wire import lenient_json

T = TypeVar("T")


class LoadedFile(NamedTuple, Generic[T]):
    """A table as it was loaded. `value` is None if there is no file; `lines` has one sentence per finding."""

    value: T | None
    lines: list[str]


def path_of(name: str) -> str:
    return f"config/{name}.json"


def load(disk: Disk, name: str, parse: Callable[[Mapping[str, Any]], T]) -> LoadedFile[T]:
    """The value that `parse` makes of the table `name`. Content that it refuses (by ValueError, TypeError, KeyError or
    AttributeError) is as damaged as content that is no JSON. Raises StoreError if nothing that is there can be read."""
    path, backup = path_of(name), path_of(name) + ".bak"
    wrong: dict[str, str] = {}
    for candidate in (path, backup):
        with disk_errors(disk, candidate, "read the file"):
            data = disk.read(candidate) if disk.exists(candidate) else None
        if data is None:
            continue
        if not data.strip():
            wrong[candidate] = "is empty"
            continue
        try:
            value = parse(_object(data))
        except (RemoteProtocolError, ValueError, TypeError, KeyError, AttributeError) as error:
            wrong[candidate] = f"cannot be read ({error})"
            continue
        if path not in wrong:
            return LoadedFile(value, [])
        with disk_errors(disk, path, "put the damaged file aside"):
            disk.rename(path, f"{path}.damaged")
        return LoadedFile(value, [f"{path} {wrong[path]}: it is {path}.damaged now and {backup} was taken instead."])
    return _nothing(disk, path, wrong)


def _object(data: bytes) -> Mapping[str, Any]:
    value = lenient_json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _nothing(disk: Disk, path: str, wrong: dict[str, str]) -> LoadedFile[Any]:
    """The result if no file holds a table. Empty files count as none: RocketMQ leaves such behind."""
    if all(reason == "is empty" for reason in wrong.values()):
        return LoadedFile(None, [f"{known} {reason}." for known, reason in wrong.items()])
    reasons = " and ".join(f"{place(disk, known)} {reason}" for known, reason in wrong.items())
    raise StoreError(
        f"{reasons}; restore {path} from another replica or a copy, or remove what is there to begin without it"
    )


TABLE_LIMIT_BYTES = 256 * 1024 * 1024
OWN_PREFIX = "rmqha"
"""Prefix of members of a table that Apache's brokers do not know."""


def unreadable_members(data: bytes) -> list[str]:
    """Members of a table that keep Apache's broker from starting: it ends and, on its way out, writes an empty table.
    Releases of rmqha before 2026-11-23 wrote such files. Raises RemoteProtocolError for what is no JSON."""
    members = lenient_json.unquoted_members(data) if data.strip() else []
    return [name for name in members if name.startswith(OWN_PREFIX)]


def unreadable_tables(disk: ReadDisk) -> Iterator[str]:
    """A sentence for each table of a store that would keep Apache's broker from starting."""
    for name in disk.list("config") if disk.is_directory("config") else ():
        path = f"config/{name}"
        if not name.endswith(".json") or disk.is_directory(path):
            continue
        try:
            members = unreadable_members(disk.read(path, TABLE_LIMIT_BYTES))
        except (RemoteProtocolError, OSError) as error:
            yield f"{path} cannot be read ({error})"
            continue
        if members:
            yield f"{path} has integer keys without quotes in {', '.join(members)}, on which Apache's broker ends"


def with_quoted_keys(data: bytes) -> bytes:
    """The table with quoted keys in our own members; Apache's keep theirs. Raises RemoteProtocolError."""
    table = lenient_json.loads(data, integer_keys=True)
    for name in table:
        if str(name).startswith(OWN_PREFIX):
            table[name] = lenient_json.loads(lenient_json.dumps(table[name]))
    return lenient_json.dumps(table, unquoted_integer_keys=True)


def replace(disk: Disk, name: str, data: Buffer) -> None:
    """Make `data` the file and the file the .bak; durable when it returns. Raises OSError."""
    path = path_of(name)
    disk.make_dirs("config")
    if disk.exists(path):
        disk.rename(path, f"{path}.bak")
    disk.write_atomic(path, data)
