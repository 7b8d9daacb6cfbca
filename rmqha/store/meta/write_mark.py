"""The length of the log before a write that must become visible whole or not at all: `rmqha.write`. Control plane.

A program that fills a store which no broker serves (Spark's writer) sets the mark before it appends and clears it when
all is durable. Whoever opens the store with the mark there cuts the log back to it; who only reads reads up to it.
"""

from __future__ import annotations

import re

from rmqha.model.error import StoreError
from rmqha.port import Disk
from rmqha.store.meta.problem import disk_errors, place

PATH = "rmqha.write"
VERSION = 1
_FORM = re.compile(r"(\d+) (\d+)\n")


def read(disk: Disk) -> int | None:
    """The log's length before the write that is under way or was broken off. StoreError for another content."""
    with disk_errors(disk, PATH, "read the file"):
        if not disk.exists(PATH):
            return None
        text = disk.read(PATH).decode("ascii", "replace")
    found = _FORM.fullmatch(text)
    if found is None or int(found[1]) > VERSION:
        raise StoreError(
            f"{place(disk, PATH)}: expected version {VERSION} and an offset, found {text[:60]!r}; "
            "use the release that wrote it, or restore the store from a copy"
        )
    return int(found[2])


def put(disk: Disk, length_bytes: int) -> None:
    """Set the mark, durably."""
    with disk_errors(disk, PATH, "write the file"):
        disk.write_atomic(PATH, f"{VERSION} {length_bytes}\n".encode())


def clear(disk: Disk) -> None:
    """Take the mark away: what was written counts."""
    with disk_errors(disk, PATH, "remove the file"):
        disk.remove(PATH)
