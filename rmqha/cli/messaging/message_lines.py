"""Messages as lines: for people, for scripts as JSON, and by a format whose bodies are the bytes that were sent."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.safe_text import raw
from rmqha.cli.times import short_time
from rmqha.model.error import UsageError

if TYPE_CHECKING:
    from rmqha.client.consumers.message import Message

Line = Callable[["Message"], bytes]
FORMAT_HELP = (
    "%t topic, %q queue, %o offset, %k keys, %v body, %g tags, %i id, %T stored (ms), %h properties; \\n \\t \\0."
)

_FIELDS: dict[str, Callable[[Message], bytes]] = {
    "t": lambda message: message.topic.encode(),
    "q": lambda message: f"{message.broker_name}:{message.queue_id}".encode(),
    "o": lambda message: str(message.queue_offset).encode(),
    "k": lambda message: message.keys.encode(),
    "v": lambda message: message.body,
    "g": lambda message: message.tags.encode(),
    "i": lambda message: message.msg_id.encode(),
    "T": lambda message: str(message.stored_at_ms).encode(),
    "h": lambda message: json.dumps(message.properties, ensure_ascii=False).encode(),
    "%": lambda message: b"%",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PART = re.compile(r"%(.?)|\\(.?)|[^%\\]+", re.S)


def compiled(text: str) -> Line:
    """A function that makes a message's line by a format. Raises UsageError for an unknown letter."""
    parts: list[bytes | Callable[[Message], bytes]] = []
    for found in _PART.finditer(text):
        letter, escape = found[1], found[2]
        if letter is not None:
            if letter not in _FIELDS:
                raise UsageError(
                    f"--format {text!r}: %{letter} stands for nothing; {' '.join('%' + key for key in _FIELDS)} do"
                )
            parts.append(_FIELDS[letter])
        elif escape is not None:
            if escape not in _ESCAPES:
                raise UsageError(f"--format {text!r}: \\{escape} stands for nothing; \\n \\t \\r \\0 and \\\\ do")
            parts.append(_ESCAPES[escape].encode())
        else:
            parts.append(found[0].encode())
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def parse_format(context: click.Context, parameter: click.Parameter, value: str | None) -> Line | None:
    """Callback of `--format`: a newline ends each message unless the format ends with an escape."""
    if value is None:
        return None
    line = compiled(value)
    if re.search(r"\\[nrt0]$", value):
        return line
    return lambda message: line(message) + b"\n"


def echo_bytes(data: bytes) -> None:
    """Write bytes unchanged to standard output."""
    stream = raw(sys.stdout).buffer
    stream.write(data)
    stream.flush()


def json_line(message: Message) -> str:
    """A message as one JSON object; the body as text if it is UTF-8, else in base64 under bodyBase64."""
    value: dict[str, Any] = {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "bornAtMs": message.born_at_ms,
        "storedAtMs": message.stored_at_ms,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        value["body"] = message.body.decode()
    except UnicodeDecodeError:
        value["bodyBase64"] = base64.b64encode(message.body).decode()
    return json.dumps(value, ensure_ascii=False)


def table_line(message: Message, width: int | None) -> str:
    """A message as a line for people: place, store time, tags, keys and body, nothing unprintable; cut to `width`
    characters, None: whole."""
    stamp = f"{short_time(message.stored_at_ms)}.{message.stored_at_ms % 1000:03}"
    place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    labels = "".join(f"[{label}] " for label in (message.tags, message.keys) if label)
    body = (message.body if width is None else message.body[: 4 * width]).decode("utf-8", "replace")
    line = f"{place:<14} {stamp} {labels}{body}"
    line = "".join(char if char.isprintable() else "·" for char in (line if width is None else line[: width + 1]))
    return line if width is None or len(line) <= width else line[: width - 1] + "…"
