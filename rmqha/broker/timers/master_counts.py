"""Counts of waiting messages from another master (request 61). A slave of Apache's master answers with them while it
follows that master, as Apache's slaves do: they are seconds newer than its own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_TOPICS = 100_000
MAX_TOPIC_CHARS = 255
_MAX = 2**63 - 1


class MasterTimerCounts:
    def __init__(self) -> None:
        self._master: object = None
        self._body: dict[str, Any] | None = None

    def hold(self, master: object, body: Mapping[str, Any]) -> None:
        """Replace the counts by an answer of `master`. Raises ValueError for a malformed one, with no counts left."""
        self._body = None
        counts = body.get("timingCount")
        if not isinstance(counts, Mapping) or len(counts) > MAX_TOPICS:
            raise ValueError(f"timingCount must be up to {MAX_TOPICS} topics with their counts")
        found = {_name(name): _count(name, item) for name, item in counts.items()}
        self._master, self._body = master, {"dataVersion": body.get("dataVersion"), "timingCount": found}

    def forget(self) -> None:
        self._body = None

    def of(self, master: object) -> dict[str, Any] | None:
        """Body of the last answer of `master`, the followed one; None without one."""
        return self._body if master is not None and master == self._master else None


def _name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > MAX_TOPIC_CHARS:
        raise ValueError(f"timingCount has a topic named {name!r:.60}")
    return name


def _count(name: str, item: Any) -> dict[str, int]:
    numbers = {key: item.get(key) for key in ("count", "timeStamp")} if isinstance(item, Mapping) else {}
    found = {key: number for key, number in numbers.items() if type(number) is int and abs(number) <= _MAX}
    if len(found) != 2:
        raise ValueError(f"timingCount has no count and time of {name:.60}")
    return found
