"""The input of `rmqha send`: words, the lines of a file, or JSON records, checked whole before the first send; and the
settings of the sends."""

from __future__ import annotations

import json
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from rmqha.cli.times import parse_time
from rmqha.client.producers.outgoing import MAX_BODY_BYTES, OutgoingMessage, check_message, message_properties
from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from rmqha.model.error import UsageError
from rmqha.model.message import PROPERTY_DELAY, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS

InputFormat = Literal["lines", "jsonl"]
SPOOL_BYTES = 16 * 1024 * 1024
"""Size of standard input, which is used twice, above which it is kept in a temporary file."""
MAX_SPOOLED_BYTES = 8 << 30
LINE_BYTES = MAX_BODY_BYTES + 3
"""The longest line that can be a message, its end, and one byte that tells that there is more."""
MAX_DELAY_LEVEL = 64
"""Highest delay level that is sent; a broker has fewer, and checks the level itself."""
UNIQUE_KEY_EXAMPLE = "0" * 32


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message and the line (or word) it comes from, counted from 1."""

    line: int
    message: OutgoingMessage


@dataclass(frozen=True, slots=True)
class SendSettings:
    """Destination of the messages, and how they are sent. `rate`: messages per second, None: no limit; `window`: on
    their way at once; `timeout_ms`: of each message; `require_ok`: send again what was stored but not copied in time.
    """

    namesrv: str
    group: str
    topic: str
    rate: float | None
    window: int
    timeout_ms: int
    require_ok: bool


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
    keys: tuple[str, ...] = ()
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that each message gets, as it gets the keys and the tag."""

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
        for option, of_each, of_all in (
            ("--key", self.key_field, self.keys),
            ("--tag", self.tag_field, self.tag),
        ):
            if of_each is not None and of_all:
                raise UsageError(f"{option} and {option}-field each say it: give one")
        for key in self.keys:
            if not key or " " in key:
                raise UsageError(f"--key {key!r} must be a word: a message's keys are told apart by spaces")

    @contextmanager
    def open(self) -> Iterator[OpenInput]:
        """Open the input. Raises UsageError if the file cannot be read."""
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
        """A copy of input that can be read only once. It ends at a line that is too long for a message, which may have
        no end."""
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
    """The messages of an input, which may be iterated repeatedly. Iterating raises UsageError "SOURCE:LINE: …" for a
    line of another form."""

    def __init__(self, settings: SendInput, stream: IO[bytes] | None, name: str) -> None:
        self._settings = settings
        self._stream = stream
        self._name = name
        self.blank_line_count = 0

    def check(self) -> int:
        """Read everything and return the number of messages. Raises UsageError also if there is none."""
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
            return self._made(line)
        record = _record(text)
        order_by = settings.order_by
        return self._made(
            line,
            keys=_field(record, settings.key_field) if settings.key_field else None,
            tags=_field(record, settings.tag_field) if settings.tag_field else None,
            key=_field(record, order_by) if order_by else None,
        )

    def _made(
        self, body: bytes, *, keys: str | None = None, tags: str | None = None, key: str | None = None
    ) -> OutgoingMessage:
        """A message with the keys, tag and properties of its record, else with those that all messages get."""
        settings = self._settings
        return OutgoingMessage(
            settings.topic,
            body,
            keys=" ".join(settings.keys) if keys is None else keys,
            tags=settings.tag if tags is None else tags,
            properties=settings.properties,
            key=key,
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


def parse_properties(pairs: tuple[str, ...]) -> dict[str, str]:
    """Properties of `--property NAME=VALUE`. Raises UsageError for what is none, and for one that is given twice."""
    found: dict[str, str] = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--property {text!r} must be NAME=VALUE")
        if name in found:
            raise UsageError(f"--property {name} is given twice")
        found[name] = value
    return found


def delay_property(text: str) -> dict[str, str]:
    """The property of `--delay`: a level, or a time, which is one of the brokers' default levels or else left to their
    timers. Raises UsageError for neither."""
    if text.isascii() and text.isdigit() and 0 < int(text) <= MAX_DELAY_LEVEL:
        return {PROPERTY_DELAY: str(int(text))}
    try:
        (delay_ms,) = parse_delay_levels(text)
    except ValueError:
        raise UsageError(f"--delay {text!r} must be a level, 1 to {MAX_DELAY_LEVEL}, or a time such as 10s") from None
    levels = parse_delay_levels(DEFAULT_DELAY_LEVELS)
    if delay_ms in levels:
        return {PROPERTY_DELAY: str(levels.index(delay_ms) + 1)}
    return {PROPERTY_TIMER_DELAY_MS: str(delay_ms)}


def at_property(text: str, now_ms: int) -> dict[str, str]:
    """The property of `--at`: a time to come. Raises UsageError."""
    at_ms = int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else parse_time(text)
    if at_ms is None:
        raise UsageError(f"--at {text!r} is no time: write 2026-11-21T14:00:00 or milliseconds")
    if at_ms <= now_ms:
        raise UsageError(f"--at {text} is over")
    return {PROPERTY_TIMER_DELIVER_MS: str(at_ms)}


def later_property(delay: str | None, at: str | None, given: Mapping[str, str], now_ms: int) -> dict[str, str]:
    """The property of `--delay` or `--at`; none without them. Raises UsageError for both, and beside the same among
    those `given`."""
    if delay is not None and at is not None:
        raise UsageError("--delay and --at each say it: give one")
    found = delay_property(delay) if delay is not None else at_property(at, now_ms) if at is not None else {}
    for name in found:
        if name in given:
            raise UsageError(f"--{'delay' if delay is not None else 'at'} and --property {name} each say it: give one")
    return found
