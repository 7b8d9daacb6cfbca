"""The numbers of waiting messages that another master tells (request 61): a slave of Apache's master answers with them,
as Apache's slaves do, as long as it follows that one. They are seconds fresher than what it knows of its own queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_TOPICS = 100_000
MAX_TOPIC_CHARS = 255
_MAX = 2**63 - 1


class ToldCounts:
    def __init__(self) -> None:
        self._master: object = None
        self._body: dict[str, Any] | None = None

    def hold(self, master: object, body: Mapping[str, Any]) -> None:
        """Take what `master` has answered, in place of what was told before. Raises ValueError for what is no answer:
        then nothing is held."""
        self._body = None
        counts = body.get("timingCount")
        if not isinstance(counts, Mapping) or len(counts) > MAX_TOPICS:
            raise ValueError(f"timingCount must be up to {MAX_TOPICS} topics with their counts")
        found = {_name(name): _count(name, item) for name, item in counts.items()}
        self._master, self._body = master, {"dataVersion": body.get("dataVersion"), "timingCount": found}

    def forget(self) -> None:
        self._body = None

    def of(self, master: object) -> dict[str, Any] | None:
        """The body of an answer to 61, if `master` is whom this replica follows; None if that one has told nothing."""
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
