"""The input of `rmqha send`: words, the lines of a file, or JSON records, checked whole before the first send."""

from __future__ import annotations

import json
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from rmqha.client.producers.outgoing import MAX_BODY_BYTES, OutgoingMessage, check_message, message_properties
from rmqha.model.error import UsageError

InputFormat = Literal["lines", "jsonl"]
SPOOL_BYTES = 16 * 1024 * 1024
"""Standard input is read once and used twice; beyond this size it waits in a temporary file."""
MAX_SPOOLED_BYTES = 8 << 30
LINE_BYTES = MAX_BODY_BYTES + 3
"""The longest line that can be a message, its end, and one byte that tells that there is more."""
UNIQUE_KEY_EXAMPLE = "0" * 32


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message and the line (or word) it comes from, counted from 1."""

    line: int
    message: OutgoingMessage


@dataclass(frozen=True)
class SendInput:
    """The source of messages and the form of its records. `path` None: the words; "-": standard input."""

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
            with self._spooled(sys.stdin.buffer, "standard input") as messages:
                yield messages
        else:
            try:
                mode = self.path.stat().st_mode
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    raise UsageError(f"{self.path}: is a device, not a file; - reads standard input")
                stream = self.path.open("rb")
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None
            with stream:
                if stat.S_ISFIFO(mode):
                    with self._spooled(stream, str(self.path)) as messages:
                        yield messages
                else:
                    yield OpenInput(self, stream, str(self.path))

    @contextmanager
    def _spooled(self, stream: IO[bytes], name: str) -> Iterator[OpenInput]:
        """A copy of input that can be read only once. A line too long for a message ends it here: there may be no
        other."""
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            size = 0
            while line := stream.readline(LINE_BYTES):
                size += len(line)
                if size > MAX_SPOOLED_BYTES:
                    raise UsageError(
                        f"{name}: is longer than {MAX_SPOOLED_BYTES >> 30} GiB, the most that is kept to be checked "
                        "before it is sent; write it to a file and name that with --file"
                    )
                spool.write(line)
                if len(line) == LINE_BYTES:
                    break
            yield OpenInput(self, spool, name)


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
        while line := self._stream.readline(LINE_BYTES):
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
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
        reason = error.msg if isinstance(error, json.JSONDecodeError) else reason
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
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"field {name!r} holds half a character (a surrogate)") from None
    if not text:
        raise UsageError(f"field {name!r} is empty")
    return text
