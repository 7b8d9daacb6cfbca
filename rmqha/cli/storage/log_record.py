"""Rendering of a log's records: JSON objects for scripts, lines for people. Control plane."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from rmqha.client.compression import decompress
from rmqha.model.error import RmqhaError
from rmqha.model.message import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_COMPRESSED,
    TIMER_TOPIC,
    decode_properties,
    offset_message_id,
)
from rmqha.store.log.record import Host, Record

MAX_DIGITS = 18


def host_text(host: Host) -> str:
    """A host as address:port, IPv6 in brackets."""
    address = ip_address(host[0])
    return f"{address}:{host[1]}" if address.version == 4 else f"[{address}]:{host[1]}"


def time_text(stamp_ms: int | None, *, year: bool = True) -> str:
    """Local time with seconds, "" for none; what is no date is shown as its number."""
    if stamp_ms is None:
        return ""
    try:
        text = datetime.fromtimestamp(stamp_ms / 1000).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(stamp_ms)
    return text if year else text[5:]


def body_of(record: Record) -> tuple[bytes, str]:
    """The decompressed body and "", or the stored bytes and the reason why they could not be decompressed."""
    stored = bytes(record.body)
    if not record.sys_flag & SYS_FLAG_COMPRESSED:
        return stored, ""
    try:
        return decompress(stored, record.sys_flag), ""
    except RmqhaError as error:
        return stored, str(error)


def to_json(record: Record, body_as: str) -> dict[str, Any]:
    """A record as JSON, with RocketMQ's names. `body_as`: "text" (base64 under bodyBase64 where it is no UTF-8),
    "base64" or "none". A body that cannot be decompressed is given as stored, under bodyStoredBase64."""
    properties = decode_properties(record.properties)
    value: dict[str, Any] = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.phy_offset,
        "storeSize": record.size_bytes,
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_at_ms,
        "msgId": properties.get(PROPERTY_UNIQUE_KEY),
        "offsetMsgId": offset_message_id(record.store_host, record.phy_offset),
        "keys": [key for key in properties.get(PROPERTY_KEYS, "").split(" ") if key],
        "tags": properties.get(PROPERTY_TAGS),
        "bornHost": host_text(record.born_host),
        "storeHost": host_text(record.store_host),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": properties,
    }
    if body_as == "none":
        return value
    body, problem = body_of(record)
    if problem:
        value["bodyStoredBase64"] = base64.b64encode(body).decode()
    elif body_as == "base64":
        value["bodyBase64"] = base64.b64encode(body).decode()
    else:
        try:
            value["body"] = body.decode()
        except UnicodeDecodeError:
            value["bodyBase64"] = base64.b64encode(body).decode()
    return value


def json_line(record: Record, body_as: str) -> str:
    return json.dumps(to_json(record, body_as), ensure_ascii=False)


def table_line(record: Record, width: int | None, body_as: str) -> str:
    """A record as a line for people: place, store time, tags, keys and body, at most `width` characters (None: all),
    nothing unprintable; of a timer message that waits also its time and topic."""
    properties = decode_properties(record.properties)
    place = f"{record.phy_offset:>10} {record.topic}:{record.queue_id}@{record.queue_offset}"
    names = (properties.get(name) for name in (PROPERTY_TAGS, PROPERTY_KEYS))
    labels = "".join(f"[{label}] " for label in names if label) + _waits_for(record, properties)
    text, shown_bytes = "", None if width is None else 4 * width
    if body_as == "base64":
        text = base64.b64encode(body_of(record)[0][:shown_bytes]).decode()
    elif body_as == "text":
        text = body_of(record)[0][:shown_bytes].decode("utf-8", "replace")
    line = f"{place:<28} {time_text(record.store_timestamp_ms, year=False)} {labels}{text}".rstrip()
    line = "".join(char if char.isprintable() else "·" for char in (line if width is None else line[: width + 1]))
    return line if width is None or len(line) <= width else line[: width - 1] + "…"


def _waits_for(record: Record, properties: dict[str, str]) -> str:
    """Time and topic of a timer message that waits; "" of any other record."""
    due = properties.get(PROPERTY_TIMER_OUT_MS, "")
    if record.topic != TIMER_TOPIC or not (due.isascii() and due.isdigit() and len(due) <= MAX_DIGITS):
        return ""
    verb = "takes back, of" if PROPERTY_TIMER_DELETE_UNIQUE_KEY in properties else "for"
    return f"({time_text(int(due))} {verb} {properties.get(PROPERTY_REAL_TOPIC, '?')}) "
