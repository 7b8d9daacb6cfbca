"""The options that leave rows out, as a row filter: topics, queues, offsets, times, tags, keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rmqha.model.error import UsageError
from rmqha.model.pattern import compiled
from rmqha.scan.api import Interval, RowFilter

EARLIEST, LATEST = -2, -1
"""The two ends as numbers inside JSON, as Kafka's source has them."""
TOPIC_OPTIONS = ("topic", "subscribe", "subscribePattern", "assign")


def parse_rows(values: Mapping[str, str]) -> RowFilter:
    """UsageError for values of the wrong kind, and for several options that name topics."""
    given = [name for name in TOPIC_OPTIONS if name in values]
    if len(given) > 1:
        raise UsageError(f"the options {' and '.join(given)} each say which topics to read: give one of them")
    rows = _topics(values)
    queues = words("queueId", values.get("queueId"))
    if queues:
        if not all(queue.isdecimal() for queue in queues):
            raise UsageError(f"option queueId = {values['queueId']!r} must be whole numbers parted by commas")
        rows = rows.with_values("queueId", frozenset(map(int, queues)))
    for column, suffix in (("physicalOffset", "PhysicalOffset"), ("storeTimestamp", "Timestamp")):
        low, end = count(values, f"starting{suffix}"), count(values, f"ending{suffix}")
        if low is not None:
            rows = rows.with_interval(column, Interval(low=low))
        if end is not None:
            rows = rows.with_interval(column, Interval(high=end - 1))
    for name in ("startingOffsets", "endingOffsets"):
        rows = rows.with_queue_offsets(_queue_bounds(name, values.get(name)))
    tags = _parted("tags", values.get("tags"), r"\|\||,")
    if tags and tags != ("*",):
        rows = rows.with_tags(frozenset(tags))
    keys = words("keys", values.get("keys"))
    return RowFilter(**{**_fields(rows), "keys": frozenset(keys)}) if keys else rows


def words(name: str, value: str | None) -> tuple[str, ...]:
    """Parts between commas, each once. UsageError if there are none; () without the option."""
    return _parted(name, value, ",")


def count(values: Mapping[str, str], name: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
    """A whole number, None without the option. UsageError says the bounds."""
    value = values.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not low <= int(value) <= high:
        raise UsageError(f"option {name} = {value!r} must be a whole number from {low} to {high}")
    return int(value)


def offsets_word(values: Mapping[str, str], name: str) -> str | None:
    """earliest or latest, where an option of offsets is no JSON."""
    word = values.get(name, "").strip().lower()
    return word if word in ("earliest", "latest") else None


def _fields(rows: RowFilter) -> dict[str, Any]:
    return {name: getattr(rows, name) for name in RowFilter.__slots__}


def _parted(name: str, value: str | None, separator: str) -> tuple[str, ...]:
    if value is None:
        return ()
    parts = tuple(dict.fromkeys(word.strip() for word in re.split(separator, value) if word.strip()))
    if not parts:
        raise UsageError(f"option {name} is empty: leave it out to read all")
    return parts


def _topics(values: Mapping[str, str]) -> RowFilter:
    topics = words("topic", values.get("topic", values.get("subscribe")))
    if topics:
        return RowFilter(frozenset(topics))
    pattern = values.get("subscribePattern")
    if pattern is not None:
        try:
            compiled(pattern)
        except ValueError as error:
            raise UsageError(f"option subscribePattern = {pattern!r} is no regular expression: {error}") from None
        return RowFilter(topic_pattern=pattern)
    if "assign" in values:
        return RowFilter(queues=_assigned(values["assign"]))
    return RowFilter()


def _assigned(value: str) -> frozenset[tuple[str, int]]:
    given = _json("assign", value)
    if not given or not all(
        isinstance(ids, list) and ids and all(type(queue) is int and queue >= 0 for queue in ids)
        for ids in given.values()
    ):
        raise UsageError(f'option assign = {value!r} must be topics with their queues, such as {{"orders": [0, 1]}}')
    return frozenset((topic, queue) for topic, ids in given.items() for queue in ids)


def _queue_bounds(name: str, value: str | None) -> dict[tuple[str, int], Interval]:
    """Queue bounds from JSON such as {"orders": {"0": 23, "1": -2}}; -2 and -1 stand for the queue's two ends."""
    starting = name == "startingOffsets"
    if value is None or value.strip().lower() == ("earliest" if starting else "latest"):
        return {}
    if value.strip().lower() == "earliest":
        raise UsageError("option endingOffsets = 'earliest' would read nothing: leave it out to read to the end")
    if value.strip().lower() == "latest":
        return {}
    bounds = {}
    open_end = EARLIEST if starting else LATEST
    for topic, queues in _json(name, value).items():
        if not isinstance(queues, dict):
            queues = {"": None}
        for queue, offset in queues.items():
            if not queue.isdecimal() or type(offset) is not int or not (offset >= 0 or offset == open_end):
                raise UsageError(
                    f"option {name} = {value!r} must be {'earliest, latest' if starting else 'latest'} or JSON such as "
                    f'{{"orders": {{"0": 23, "1": {open_end}}}}}, {open_end} being the queue\'s '
                    f"{'begin' if starting else 'end'}"
                )
            if offset >= 0:
                limit = Interval(low=offset) if starting else Interval(high=offset - 1)
                bounds[topic, int(queue)] = limit
    return bounds


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f'option {name} = {value!r} must be a JSON object, such as {{"orders": …}}')
    return found
