"""The options that choose rows, as a row filter: topics, queues, offsets, times, tags, keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rmqha.model.error import UsageError
from rmqha.model.pattern import compiled
from rmqha.scan.api import Interval, RowFilter
from rmqha.scan.filter import NUMBERS

EARLIEST, LATEST = -2, -1
"""The two ends as numbers inside JSON, as Kafka's source has them."""
TOPIC_OPTIONS = ("topic", "subscribe", "subscribePattern", "assign")


def parse_rows(values: Mapping[str, str]) -> RowFilter:
    """The row filter of the options. UsageError for values of the wrong kind, and for several options that name
    topics."""
    given = [name for name in TOPIC_OPTIONS if name in values]
    if len(given) > 1:
        raise UsageError(f"the options {' and '.join(given)} each say which topics to read: give one of them")
    rows = _topics(values)
    queues = comma_parts("queueId", values.get("queueId"))
    if queues:
        if not all(queue.isdecimal() for queue in queues):
            raise UsageError(f"option queueId = {values['queueId']!r} must be whole numbers parted by commas")
        rows = rows.with_values("queueId", frozenset(map(int, queues)))
    for column, suffix, parse in (
        ("physicalOffset", "PhysicalOffset", count),
        ("storeTimestamp", "Timestamp", moment_ms),
    ):
        low, end = parse(values, f"starting{suffix}"), parse(values, f"ending{suffix}")
        if low is not None:
            rows = rows.with_interval(column, Interval(low=low))
        if end is not None:
            rows = rows.with_interval(column, Interval(high=end - 1))
    for name in ("startingOffsets", "endingOffsets"):
        rows = rows.with_queue_offsets(_queue_bounds(name, values.get(name)))
    tags = _parted("tags", values.get("tags"), r"\|\||,")
    if tags and tags != ("*",):
        rows = rows.with_tags(frozenset(tags))
    keys = comma_parts("keys", values.get("keys"))
    if keys:
        rows = replace(rows, keys=frozenset(keys))
    return _where(rows, values["where"]) if "where" in values else rows


def comma_parts(name: str, value: str | None) -> tuple[str, ...]:
    """Parts between commas, each once. UsageError if there are none; () without the option."""
    return _parted(name, value, ",")


def count(values: Mapping[str, str], name: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
    """A whole number, None without the option. UsageError for one outside the bounds, which it names."""
    value = values.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not low <= int(value) <= high:
        raise UsageError(f"option {name} = {value!r} must be a whole number from {low} to {high}")
    return int(value)


_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def size_bytes(name: str, value: str) -> int:
    """A size such as 64000000, 512k, 256m, 1g (of 1,024). UsageError for another."""
    found = _SIZE.fullmatch(value.strip())
    size = 0 if found is None else int(found[1]) << 10 * ("", "k", "m", "g", "t").index(found[2].lower())
    if not 0 < size < 2**63:
        raise UsageError(f"option {name} = {value!r} must be a size above 0, such as 64000000, 512k, 256m or 1g")
    return size


def duration_ms(name: str, value: str) -> int:
    """A time such as 500ms, 30s, 5m, 1h. UsageError for another."""
    found = _TIME.fullmatch(value.strip())
    if found is None or not 0 < float(found[1]) * _UNITS_MS[found[2].lower()] < 2**53:
        raise UsageError(f"option {name} = {value!r} must be a time such as 30s, 5m or 1h")
    return round(float(found[1]) * _UNITS_MS[found[2].lower()])


def moment_ms(values: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970, given so or as ISO 8601 (UTC where no offset is named); None without the option."""
    value = values.get(name)
    if value is None or value.isdecimal():
        return count(values, name)
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise UsageError(
            f"option {name} = {value!r} must be ms since 1970, or a time such as 2026-11-26T08:00:00Z"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def offsets_word(values: Mapping[str, str], name: str) -> str | None:
    """The word earliest or latest of an option of offsets; None if it is JSON, or is not given."""
    word = values.get(name, "").strip().lower()
    return word if word in ("earliest", "latest") else None


def _parted(name: str, value: str | None, separator: str) -> tuple[str, ...]:
    if value is None:
        return ()
    parts = tuple(dict.fromkeys(word.strip() for word in re.split(separator, value) if word.strip()))
    if not parts:
        raise UsageError(f"option {name} is empty: leave it out to read all")
    return parts


def _topics(values: Mapping[str, str]) -> RowFilter:
    topics = comma_parts("topic", values.get("topic", values.get("subscribe")))
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


WHERE_FORM = 'a JSON array of conditions such as ["topic", "in", ["a"]] and ["queueOffset", ">=", 7]'


def _where(rows: RowFilter, value: str) -> RowFilter:
    """The filter with more conditions, as `RowFilter.conditions` gives them. UsageError for other ones."""
    try:
        given = json.loads(value)
    except ValueError:
        given = None
    if not isinstance(given, list):
        raise UsageError(f"option where = {value!r} must be {WHERE_FORM}")
    for item in given:
        made = _condition(rows, item) if isinstance(item, list) and len(item) == 3 else None
        if made is None:
            raise UsageError(f"option where has the condition {json.dumps(item)}; it must be {WHERE_FORM}")
        rows = made
    return rows


def _condition(rows: RowFilter, item: list[Any]) -> RowFilter | None:
    match item:
        case ["topic" | "tags" | "keys" as name, "in", list(texts)] if all(type(text) is str for text in texts):
            wanted = frozenset(texts)
            if name == "keys":
                return replace(rows, keys=wanted) if rows.keys is None else None
            return rows.with_topics(wanted) if name == "topic" else rows.with_tags(wanted)
        case [str(name), "in", list(numbers)] if name in NUMBERS and all(type(number) is int for number in numbers):
            return rows.with_values(name, frozenset(numbers))
        case [str(name), ">=", int(number)] if name in NUMBERS:
            return rows.with_interval(name, Interval(low=number))
        case [str(name), "<=", int(number)] if name in NUMBERS:
            return rows.with_interval(name, Interval(high=number))
    return None


def _json(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f'option {name} = {value!r} must be a JSON object, such as {{"orders": …}}')
    return found
