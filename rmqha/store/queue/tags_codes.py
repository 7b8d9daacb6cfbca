"""The tagsCode of a record's queue entry (formats.md §3). Pure."""

from __future__ import annotations

from rmqha.model.config.delay_level import DEFAULT_DELAY_LEVELS, SCHEDULE_TOPIC, parse_delay_levels
from rmqha.model.message import (
    MAX_REMEMBERED_TAGS_BYTES,
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    find_property,
    tags_code,
)

MAX_REMEMBERED_COUNT = 10_000
_TAGS, _DELAY = PROPERTY_TAGS.encode(), PROPERTY_DELAY.encode()
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class TagsCodes:
    """Hashes of tags, those of short ones remembered; `delay_levels_ms`: waits (ms) of delay levels, from 1 on."""

    def __init__(self, delay_levels_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_DELAY_LEVELS)) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._known: dict[bytes, int] = {}

    def code(self, topic: str | bytes, properties: bytes, stored_ms: int) -> int:
        """The hash of the record's tags; the time (ms) of its delivery if it waits in the topic of delayed ones."""
        if topic in (SCHEDULE_TOPIC, _SCHEDULE_TOPIC):
            delay = find_property(properties, _DELAY)
            if delay is not None and delay.isdigit() and int(delay[:9]) > 0:
                return stored_ms + self._delay_levels_ms[min(int(delay[:9]), len(self._delay_levels_ms)) - 1]
        tags = find_property(properties, _TAGS)
        if not tags:
            return 0
        code = self._known.get(tags)
        if code is None:
            code = tags_code(tags.decode("utf-8", "replace"))
            if len(tags) <= MAX_REMEMBERED_TAGS_BYTES:
                if len(self._known) > MAX_REMEMBERED_COUNT:
                    self._known.clear()
                self._known[tags] = code
        return code
