"""The levels of delayed messages: level n has the n-th delay of `messageDelayLevel`."""

from __future__ import annotations

import re

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Topic in which messages wait: queue n - 1 for level n."""
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Delay (ms) of each level, level 1 first. Raises ValueError, which says what is wrong."""
    levels = []
    for word in text.split():
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is no time: write a number and one of s, m, h, d, such as 30s")
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    if not levels:
        raise ValueError("there must be at least one level")
    return tuple(levels)


def delay_level(value: str | None) -> int:
    """Level of a DELAY property; 0: none. Raises ValueError if it is no number."""
    if not value:
        return 0
    if not value.removeprefix("-").isdigit() or not value.isascii() or len(value) > 10:
        raise ValueError(f"property DELAY = {value[:40]!r} is no delay level")
    return max(0, int(value))
