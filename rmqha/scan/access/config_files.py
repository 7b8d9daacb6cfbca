"""Reads of the broker's own tables, JSON files below config (control plane)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqha.model.error import RemoteProtocolError, StoreError
from rmqha.scan.storage import Storage
from rmqha.wire import lenient_json


def member_of(storage: Storage, root: str, name: str, member: str) -> Mapping[str, Any]:
    """A member of config/NAME.json of a store, or of its .bak if that is missing or no JSON; empty without any.
    StoreError if neither can be read."""
    path = f"{root}/config/{name}.json"
    told: list[str] = []
    for candidate in (path, f"{path}.bak"):
        content = storage.content(candidate)
        if content is None or not content.strip():
            continue
        try:
            value = lenient_json.loads(content)
        except RemoteProtocolError as error:
            told.append(f"{candidate} cannot be read: {error}")
            continue
        found = value.get(member) if isinstance(value, dict) else None
        return found if isinstance(found, Mapping) else {}
    if told:
        raise StoreError(told[0])
    return {}


def queue_count(storage: Storage, root: str, topic: str) -> int | None:
    """Number of queues that a topic may have, by the table of topics; None if the table does not have it."""
    try:
        known = member_of(storage, root, "topics", "topicConfigTable").get(topic)
    except StoreError:
        return None
    numbers = [known.get(key) for key in ("readQueueNums", "writeQueueNums")] if isinstance(known, Mapping) else []
    told = [number for number in numbers if type(number) is int]
    return max(told) if len(told) == 2 else None
