"""View of a message for the page: bounded, its body as text or hex dump. Pure.

Messages are untrusted. The page shows them as text, never as markup. Here control and direction characters become
visible, so that the displayed text is the real one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from rmqha.client.consumers.message import Message

BODY_LIMIT_BYTES = 16 * 1024
"""Bytes of the body in an answer with one message; with more messages each has a share of it, at least
BODY_LEAST_BYTES."""
BODY_LEAST_BYTES = 1024
VALUE_LIMIT_CHARS = 1024
MAX_PROPERTIES = 100
_HEX_ROW_BYTES = 16
_LAYOUT = "\n\t"
_UNSHOWN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories: control, format (with direction marks), surrogates, private, unassigned, separators."""


def visible(text: str) -> str:
    """The text with every invisible character as an escape; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in _LAYOUT or unicodedata.category(char) not in _UNSHOWN else f"\\u{{{ord(char):x}}}"
        for char in text
    )


def short(text: str, limit_chars: int = VALUE_LIMIT_CHARS) -> str:
    """The `visible` text, cut, with a note of the missing length."""
    if len(text) <= limit_chars:
        return visible(text)
    return f"{visible(text[:limit_chars])}… ({len(text) - limit_chars} more characters)"


def body_view(body: bytes, limit_bytes: int, *, packed_bytes: int = 0, problem: str = "") -> dict[str, Any]:
    """View of a body: `kind` text, hex or empty; `text` to show; `note` about omitted parts, "" for none; `bytes` of
    the whole body. `packed_bytes`: compressed size, if `body` is the decompressed beginning; `problem`: why it was not
    decompressed."""
    part = body[:limit_bytes]
    all_of_it = "rmqha receive and rmqha log cat show all"
    note = ""
    if problem:
        note = f"{short(problem)}; the first {len(part)} bytes as they are stored"
    elif packed_bytes:
        note = f"the first {len(part)} bytes of what {packed_bytes} compressed ones hold; {all_of_it}"
    elif len(body) > limit_bytes:
        note = f"the first {limit_bytes} of {len(body)} bytes; {all_of_it}"
    text = None if problem else _as_text(part, whole=len(part) == len(body) and not packed_bytes)
    found = {"bytes": packed_bytes or len(body), "compressed": packed_bytes > 0, "note": note}
    if text is None:
        return {**found, "kind": "hex", "text": hex_dump(part)}
    return {**found, "kind": "text" if body else "empty", "text": visible(text)}


def _as_text(part: bytes, *, whole: bool) -> str | None:
    """Decoded text; None if `part` is not UTF-8, or full of control characters. A cut may have split the last
    character."""
    for dropped in range(1 if whole else 4):
        try:
            text = part[: len(part) - dropped].decode()
        except UnicodeDecodeError:
            continue
        odd_count = sum(1 for char in text if char not in "\n\t\r" and unicodedata.category(char) == "Cc")
        return text if 10 * odd_count <= len(text) else None
    return None


def hex_dump(data: bytes) -> str:
    """Rows of offset, sixteen bytes, and the printable ASCII among them."""
    rows = []
    for at in range(0, len(data), _HEX_ROW_BYTES):
        row = data[at : at + _HEX_ROW_BYTES]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{at:06x}  {row.hex(' '):<{3 * _HEX_ROW_BYTES - 1}}  {shown}")
    return "\n".join(rows)


def message_view(
    message: Message, limit_bytes: int = BODY_LIMIT_BYTES, *, packed_bytes: int = 0, problem: str = ""
) -> dict[str, Any]:
    """JSON-ready; every text in it is `visible`. The rest as for `body_view`."""
    names = list(message.properties)
    return {
        "topic": visible(message.topic),
        "group": visible(message.broker_name),
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.phy_offset,
        "msgId": short(message.msg_id),
        "offsetMsgId": message.offset_msg_id,
        "keys": short(message.keys),
        "tags": short(message.tags),
        "bornAtMs": message.born_at_ms,
        "storedAtMs": message.stored_at_ms,
        "reconsumeTimes": message.reconsume_times,
        "properties": _properties(message.properties, names[:MAX_PROPERTIES]),
        "propertiesLeftOut": max(0, len(names) - MAX_PROPERTIES),
        "body": body_view(message.body, limit_bytes, packed_bytes=packed_bytes, problem=problem),
    }


def _properties(properties: Mapping[str, str], names: list[str]) -> list[list[str]]:
    return [[short(name), short(properties[name])] for name in names]


def share_bytes(message_count: int) -> int:
    """Bytes of each body that are shown with so many messages."""
    return max(BODY_LEAST_BYTES, BODY_LIMIT_BYTES // max(1, message_count))
