"""The Tracer port: one structured line per event, and the last events for RMQHA_GET_HISTORY. Shell.

A line is `2026-11-21T07:55:37.123Z name key=value …`; a value with white space, quotes or "=" is written as JSON. With
logFormat=json it is one JSON object: time, level, event, server, group where there is one, the event's fields, and
cause_id, "group/epoch", which ties what all nodes say about one election.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from rmqha.host.clock import ClockStepDetector, HostClock
from rmqha.host.disk import FILE_MODE, make_directories
from rmqha.host.event_file import KEPT_EVENTS, EventFile
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import UsageError
from rmqha.port import Clock

if TYPE_CHECKING:
    from rmqha.host.json_lines import JsonLines

HISTORY_COUNT = 1000
WARNINGS = frozenset(
    {
        "audit_lost",
        "config_overrides_ignored",
        "connections_not_accepted",
        "connections_refused",
        "controller_paused",
        "controller_refuses",
        "controller_unfit",
        "controller_unreachable",
        "damage_not_repaired",
        "damaged",
        "disk_full",
        "disk_problem",
        "election_failed",
        "election_waits",
        "elections_not_followed",
        "epoch_not_accepted",
        "group_masterless",
        "ha_broken",
        "ha_refused",
        "hand_over_failed",
        "insecure",
        "log_lacks_room",
        "log_truncated",
        "master_dead",
        "name_server_paused",
        "name_server_suspects_itself",
        "name_server_unreachable",
        "old_files_not_removed",
        "queues_lack_room",
        "raft_message_dropped",
        "record_refused",
        "request_failed",
        "security_file_refused",
        "tables_not_saved",
        "unclean_election",
    }
)
"""Events that a person should see; in JSON lines their level is warning."""
KEPT_FILE_COUNT = 3
PIECE_CHARS = 400
"""Most characters of one write. A writable pipe takes 4 KiB at once; a character has 10 bytes at most, as an escape."""
AUDIT_FILE = "audit.log"
"""Name of the audit log in the log's directory."""


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


class RotatingLogFile(RotatingFileHandler):
    """Log file with the standard library's rotation and reopening. If the disk is full or fails, lines are lost and
    counted (`HostTracer.statistics`), and the server continues."""

    lost_count = 0

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_open_private)

    @classmethod
    def open(cls, path: str, max_bytes: int, kept_file_count: int) -> Self:
        """Open a log file; missing directories are created. Raises OSError."""
        make_directories(Path(path).parent.absolute())
        return cls(path, maxBytes=max_bytes, backupCount=kept_file_count, encoding="utf-8")

    def doRollover(self) -> None:  # noqa: N802 (the library's name)
        path, aside = Path(self.baseFilename), Path(f"{self.baseFilename}.0")
        try:
            # if the file cannot be renamed (an append-only one), the older files must not be rotated away
            path.rename(aside)
            aside.rename(path)
            super().doRollover()
        except OSError:
            # this process may write the file but not its directory: a log above its bound is better than none
            if self.stream is None or self.stream.closed:
                self.stream = self._open()

    def line(self, text: str) -> None:
        """Write a line; thread-safe."""
        self.handle(logging.LogRecord("", logging.INFO, "", 0, text, None, None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the library's name)
        self.lost_count += 1

    def close(self) -> None:
        try:
            super().close()
        except OSError:
            # the lines that were still buffered
            self.lost_count += 1


class ErrorStream:
    """Standard error as a log. Lines for which it has no room, or whose reader is gone, are lost and counted; the
    server continues and never waits."""

    _lock = Lock()
    """Lock of all instances: of two writers that poll at the same time, only one may have room."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._poll: select.poll | None = None
        self.lost_count = 0
        try:
            descriptor = self._stream.fileno()
        except OSError:
            # in memory, as tests have it
            return
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def line(self, text: str) -> None:
        """Write a line; thread-safe."""
        text += "\n"
        with self._lock:
            try:
                for start in range(0, len(text), PIECE_CHARS):
                    if self._poll is not None and not self._poll.poll(0):
                        self.lost_count += 1
                        return
                    self._stream.write(text[start : start + PIECE_CHARS])
                    self._stream.flush()
            except OSError:
                self.lost_count += 1

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""


class HostTracer:
    """Tracer that writes events to a log and keeps the last ones. Implements port.Tracer. Thread-safe."""

    def __init__(
        self,
        log_file: str = "",
        max_bytes: int = 16 * 1024 * 1024,
        *,
        clock: Clock | None = None,
        write: Callable[[str], object] | None = None,
        json_of: Mapping[str, str] | None = None,
        kept: EventFile | None = None,
    ) -> None:
        """Lines go to `log_file`, rotated at `max_bytes` with KEPT_FILE_COUNT old ones, or to standard error if it is
        empty; `write` replaces standard error. `json_of`: lines are JSON with these members (`server`, `group`).
        `kept`: the file of the events that outlive the process. Raises UsageError if the log cannot be opened."""
        self._json_lines: JsonLines | None = None
        if json_of is not None:
            from rmqha.host.json_lines import JsonLines

            self._json_lines = JsonLines(json_of)
        self._clock: Clock = HostClock() if clock is None else clock
        self._steps = ClockStepDetector(self._clock)
        self._history: deque[dict[str, Any]] = deque()
        self._history_lock = Lock()
        self._kept = kept
        self._write = None if log_file else write
        self.listeners: list[Callable[[int, str, Mapping[str, Any]], None]] = []
        """Functions called with the monotonic time (ms), the name and the fields (JSON values) of each event."""
        self._file: RotatingLogFile | ErrorStream
        if not log_file:
            self._file = ErrorStream()
        else:
            try:
                self._file = RotatingLogFile.open(log_file, max_bytes, KEPT_FILE_COUNT)
            except OSError as error:
                raise UsageError(f"cannot write the log file {log_file}: {error.strerror}; set logFile") from None

    @classmethod
    def of(
        cls, config: ServerConfig, server: str, group: str = "", *, write: Callable[[str], object] | None = None
    ) -> Self:
        """Tracer by a server's configuration. It traces warnings about missing security, and keys without effect."""
        own = {"server": server, **({"group": group} if group else {})}
        json_of = own if config.log_format == "json" else None
        kept = EventFile(Path(config.history_file)) if config.history_file else None
        made = cls(config.log_file, config.log_max_bytes, json_of=json_of, write=write, kept=kept)
        for sentence in config.warnings():
            made.event("insecure", reason=sentence)
        for keys, reason in config.keys_without_effect():
            made.event("keys_without_effect", keys=keys, reason=reason)
        return made

    def event(self, name: str, **fields: Any) -> None:
        at_ms = self._clock.wall_ms()
        known = {key: _plain(value) for key, value in fields.items()}
        self._keep({"at_ms": at_ms, "event": name, **known})
        for listener in self.listeners:
            listener(self._clock.now_ms(), name, known)
        if self._json_lines is None:
            line = " ".join([stamp(at_ms), name, *(f"{key}={_text(value)}" for key, value in known.items())])
        else:
            line = self._json_lines.line(stamp(at_ms), name, known, warning=name in WARNINGS)
        if self._write is not None:
            self._write(line + "\n")
        else:
            self._file.line(line)

    def _keep(self, event: dict[str, Any]) -> None:
        with self._history_lock:
            self._history.append(event)
            if len(self._history) > HISTORY_COUNT:
                first = self._history.popleft()
                if self._kept is not None and first["event"] in KEPT_EVENTS:
                    self._kept.remember(first)
            if self._kept is not None and event["event"] in KEPT_EVENTS:
                self._kept.put(event)

    def history(self) -> list[dict[str, Any]]:
        """The last HISTORY_COUNT events of this process, oldest first, as JSON objects: `at_ms`, `event` and the
        event's fields. Before them are older events of KEPT_EVENTS from the event file."""
        with self._history_lock:
            before = self._kept.events() if self._kept is not None else []
            return [*before, *self._history]

    def history_answer(self) -> dict[str, Any]:
        """Answer to request 52001: `events`, and the members of `ClockStepDetector.view`."""
        return {"events": self.history(), **self._steps.view()}

    def statistics(self) -> dict[str, int]:
        lost = (self._file, self._kept)
        return {"lost_line_count": sum(file.lost_count for file in lost if file is not None)}

    def reopen(self) -> None:
        """Go on in a new file if the present one was moved away (SIGHUP)."""
        self._file.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._file.close()


def stamp(at_ms: int) -> str:
    seconds, milliseconds = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _plain(value: Any) -> Any:
    """JSON value of a field: an enum's name, a sorted set, the text of any other type."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return str(value)


def _text(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable() and not any(mark in value for mark in ' "='):
        return value
    return json.dumps(value, separators=(",", ":"))
