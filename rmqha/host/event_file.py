"""Important events on disk, so that a server still has them after a restart. Shell.

There are two files of MAX_FILE_BYTES at most, with one JSON object per line. A separate thread writes them: if the disk
hangs or is full, lines are lost, but nothing waits.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from rmqha.host.disk import FILE_MODE, make_directories

VERSION = 1
MAX_FILE_BYTES = 128 * 1024
"""Most bytes of a file; one that would grow beyond is renamed to the old file."""
MAX_LINE_BYTES = 4 * 1024
"""Most bytes of an event; a longer one is kept without its fields."""
KEPT_COUNT = 300
"""Most events of earlier processes that are read."""
MAX_WAITING_COUNT = 1_000
CLOSE_S = 1.0
"""Longest wait of an ending process for its last lines."""
KEPT_EVENTS = frozenset(
    {
        "broker_expired",
        "controller_leads",
        "controller_resigned",
        "controller_started",
        "damaged",
        "disk_full",
        "disk_has_room",
        "disk_problem",
        "disk_well",
        "group_masterless",
        "hand_over_begins",
        "hand_over_failed",
        "listening",
        "log_lacks_room",
        "log_restarted",
        "log_truncated",
        "maintenance_begins",
        "maintenance_ends",
        "master_dead",
        "master_elected",
        "member_removed",
        "name_server_started",
        "name_server_stopping",
        "recovery",
        "replica_back",
        "replica_drained",
        "role_changed",
        "route_changed",
        "set_changed",
        "stopped",
        "stopping",
        "unclean_accepted",
        "unclean_election",
        "whole_again",
        "writable",
    }
)
"""Events that outlive the process: elections, role and set changes, cuts of the log, starts and ends."""


class EventFile:
    """The file at `path` and its old one, `path`.1. The constructor reads the events of earlier processes; a file that
    cannot be read counts as missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: deque[bytes] = deque(maxlen=KEPT_COUNT)
        for file in (self._old_path, path):
            self._lines.extend(_lines_of(file))
        self._waiting: Queue[bytes | None] = Queue(MAX_WAITING_COUNT)
        self._thread: Thread | None = None
        self._has_directory = False
        """True once the directory was created. It is created once, as an operator may move it away with the store."""
        self.lost_count = 0

    @property
    def _old_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def events(self) -> list[dict[str, Any]]:
        """Events that the tracer no longer has in memory, the oldest first, in the form of `HostTracer.history`."""
        return [found for line in self._lines if (found := _event_of(line)) is not None]

    def remember(self, event: Mapping[str, Any]) -> None:
        """Keep an event that the tracer drops from its memory."""
        self._lines.append(line_of(event))

    def put(self, event: Mapping[str, Any]) -> None:
        """Queue an event for the writing thread. Only one thread may call it at a time."""
        if self._thread is None:
            self._thread = Thread(target=self._write_all, name="event-file", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(line_of(event))
        except Full:
            self.lost_count += 1

    def close(self) -> None:
        """Wait until the last lines are written, CLOSE_S at most for each of two steps."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except Full:
            return
        self._thread.join(CLOSE_S)

    # --- the thread -------------------------------------------------------------------------------------------------
    def _write_all(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._write(line)
            except OSError:
                self.lost_count += 1

    def _write(self, line: bytes) -> None:
        """Append a line; the file is opened for each one, so that a file which is moved away is replaced by a new
        one."""
        if not self._has_directory:
            make_directories(self._path.parent)
            self._has_directory = True
        if not self._append(line):
            self._path.replace(self._old_path)
            if not self._append(line):
                self.lost_count += 1

    def _append(self, line: bytes) -> bool:
        """Append a line to the current file. False, and nothing is written, if the file would be too large."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, FILE_MODE)
        try:
            if os.fstat(descriptor).st_size + len(line) > MAX_FILE_BYTES:
                return False
            os.write(descriptor, line)
            return True
        finally:
            os.close(descriptor)


def line_of(event: Mapping[str, Any]) -> bytes:
    """Line of an event, with the format's version and a line feed."""
    line = json.dumps({"v": VERSION, **event}, separators=(",", ":")).encode() + b"\n"
    if len(line) <= MAX_LINE_BYTES:
        return line
    short = {key: event[key] for key in ("at_ms", "event", "epoch") if key in event}
    return json.dumps({"v": VERSION, **short}, separators=(",", ":")).encode() + b"\n"


def _event_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None for an incomplete one, which a kill leaves, and for one of a later release."""
    try:
        found = json.loads(line)
        version = found.pop("v")
        is_event = isinstance(found["at_ms"], int) and isinstance(found["event"], str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if version == VERSION and is_event else None


def _lines_of(path: Path) -> list[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(2 * MAX_FILE_BYTES)
    except OSError:
        return []
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES]
