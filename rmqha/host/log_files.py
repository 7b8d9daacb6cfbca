"""A server's own log files, sent piece by piece to a remote admin (request 52018). Shell.

Each answer has MAX_PIECE_BYTES at most, so a request costs the server one short read, however long the log is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from rmqha.host.tracer import AUDIT_FILE, KEPT_FILE_COUNT
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import ServerConfig
from rmqha.wire.command import Command

MAX_PIECE_BYTES = 64 * 1024
"""Most bytes of one answer; the client asks again for more."""
VERSION = "1"


class LogFiles:
    """Log and audit log of a server; `log` None: lines go to standard error."""

    def __init__(self, log: Path | None, audit: Path | None) -> None:
        self._log = log
        self._audit = audit

    @classmethod
    def of(cls, config: ServerConfig) -> Self:
        """Log files by a server's configuration."""
        log = Path(config.log_file) if config.log_file else None
        beside = log.with_name(AUDIT_FILE) if log is not None else None
        return cls(log, Path(config.audit_log_file) if config.audit_log_file else beside)

    def answer(self, command: Command) -> Command:
        """Answer with a piece of a file, or an error with its reason. The request cannot contain a path."""
        wants_audit = command.ext.get("audit") == "true"
        path = self._audit if wants_audit else self._log
        try:
            if path is None:
                raise ValueError("this server writes its log to standard error; set logFile")
            wanted = _number(command, "maxBytes")
            count = MAX_PIECE_BYTES if wanted is None else min(wanted, MAX_PIECE_BYTES)
            offset = _number(command, "offset")
            holding, start = _holding(path, command.ext.get("file", ""), offset)
            return _piece(command, holding, start, count)
        except FileNotFoundError:
            what = "audit log; it keeps one with aclEnable or auditLogLevel" if wants_audit else "log yet"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"this server has no {what}")
        except OSError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=f"the log cannot be read: {error.strerror}")
        except ValueError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))


def _number(command: Command, name: str) -> int | None:
    text = command.ext.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"{name} is a number from 0 on")
    return int(text)


def _holding(path: Path, file: str, offset: int | None) -> tuple[Path, int | None]:
    """The file to read and the offset. It is an old (rotated) file if `file` is its inode and it has bytes from
    `offset` on; if it has none, the next newer file from 0 on; else the log."""
    newer = path
    for number in range(1, KEPT_FILE_COUNT + 1) if offset is not None and file else ():
        old = path.with_name(f"{path.name}.{number}")
        try:
            found = old.stat()
        except OSError:
            continue
        if file == str(found.st_ino):
            return (old, offset) if offset is not None and offset < found.st_size else (newer, 0)
        newer = old
    return path, offset


def _piece(command: Command, path: Path, offset: int | None, count: int) -> Command:
    """Answer with bytes from `offset` on, or with the last `count` bytes. The field `file` changes when the log is
    rotated."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        start = max(0, found.st_size - count) if offset is None else min(offset, found.st_size)
        data = os.pread(descriptor, count, start)
    finally:
        os.close(descriptor)
    told = {"version": VERSION, "file": str(found.st_ino), "offset": str(start), "end": str(found.st_size)}
    return command.reply(ext=told, body=data)
