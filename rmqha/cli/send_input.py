"""What `rmqha send` sends: words, the lines of a file, or JSON records, checked whole before the first send."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rmqha.client.outgoing import MAX_BODY_BYTES, OutgoingMessage, check_message, message_properties
from rmqha.model.error import UsageError

InputFormat = Literal["lines", "jsonl"]
SPOOL_BYTES = 16 * 1024 * 1024
"""Standard input is read once and used twice; beyond this size it waits in a temporary file."""
UNIQUE_KEY_EXAMPLE = "0" * 32


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message and the line (or word) it comes from, counted from 1."""

    line: int
    message: OutgoingMessage


@dataclass(frozen=True)
class SendInput:
    """Where messages come from and how records are read. `path` None: the words; "-": standard input."""

    topic: str
    words: tuple[str, ...] = ()
    path: Path | None = None
    format: InputFormat = "lines"
    key_field: str | None = None
    tag_field: str | None = None
    order_by: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (not self.words):
            raise UsageError("give either messages or --file FILE ('-' reads standard input)")
        for option, value in (
            ("--key-field", self.key_field),
            ("--tag-field", self.tag_field),
            ("--order-by", self.order_by),
        ):
            if value is not None and self.format != "jsonl":
                raise UsageError(f"{option} names a field of JSON records: add --format jsonl")

    @contextmanager
    def open(self) -> Iterator[OpenInput]:
        """Raises UsageError if the file cannot be read."""
        if self.path is None:
            yield OpenInput(self, None, "word")
        elif str(self.path) == "-":
            with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
                shutil.copyfileobj(sys.stdin.buffer, spool)
                yield OpenInput(self, spool, "standard input")
        else:
            try:
                stream = self.path.open("rb")
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None
            with stream:
                yield OpenInput(self, stream, str(self.path))


class OpenInput:
    """The messages, as often as asked for. Iterating raises UsageError "SOURCE:LINE: …" for what is not as said."""

    def __init__(self, settings: SendInput, stream: IO[bytes] | None, name: str) -> None:
        self._settings = settings
        self._stream = stream
        self._name = name
        self.blank_line_count = 0

    def check(self) -> int:
        """Read everything; the number of messages. Raises UsageError also if there is none."""
        message_count = sum(1 for _ in self)
        if not message_count:
            raise UsageError(f"{self._name}: is empty, there is nothing to send")
        return message_count

    def __iter__(self) -> Iterator[InputMessage]:
        self.blank_line_count = 0
        for number, line in enumerate(self._lines(), 1):
            where = f"{self._name}:{number}"
            try:
                if not line.strip():
                    self.blank_line_count += 1
                    continue
                message = self._message(line)
                check_message(message)
                message_properties(message, UNIQUE_KEY_EXAMPLE)
            except UnicodeDecodeError:
                raise UsageError(f"{where}: is not UTF-8 text") from None
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
            yield InputMessage(number, message)

    def _lines(self) -> Iterator[bytes]:
        if self._stream is None:
            yield from (word.encode() for word in self._settings.words)
            return
        self._stream.seek(0)
        while line := self._stream.readline(MAX_BODY_BYTES + 3):
            yield line.removesuffix(b"\n").removesuffix(b"\r")

    def _message(self, line: bytes) -> OutgoingMessage:
        settings = self._settings
        text = line.decode()
        if settings.format == "lines":
            return OutgoingMessage(settings.topic, line)
        record = _record(text)
        order_by = settings.order_by
        return OutgoingMessage(
            settings.topic,
            line,
            keys=_field(record, settings.key_field) if settings.key_field else "",
            tags=_field(record, settings.tag_field) if settings.tag_field else "",
            key=_field(record, order_by) if order_by else None,
        )


def _record(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        raise UsageError(f"is not JSON: {reason}") from None
    if not isinstance(record, dict):
        raise UsageError("is JSON, but not an object")
    return record


def _field(record: dict[str, Any], name: str) -> str:
    if name not in record:
        raise UsageError(f"has no field {name!r}")
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"field {name!r} must be a string or a number")
    text = str(value)
    if not text:
        raise UsageError(f"field {name!r} is empty")
    return text
