"""A server's history, the last events that it has traced: the body of an answer to request 52001. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """A traced event. `at_ms`: wall time; `node`: name of the node that told it, "" where the reader does not say."""

    at_ms: int
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    node: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a field: of whatever type, since it comes from another process."""
        return self.fields.get(name, default)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, as a server tells it; with `node` if that is known."""
        found = {"at_ms": self.at_ms, "event": self.name, **self.fields}
        return {**found, "node": self.node} if self.node else found


def parse_history(found: object, node: str = "") -> list[HistoryEvent]:
    """Events of a decoded answer, as `node` told them. One without a time or a name is left out. Raises ValueError if
    the answer is no history."""
    events = found.get("events") if isinstance(found, Mapping) else None
    if not isinstance(events, list):
        raise ValueError("it is no history")
    return [event for item in events if (event := _event(item, node)) is not None]


def _event(item: object, node: str) -> HistoryEvent | None:
    if not isinstance(item, Mapping):
        return None
    at_ms, name = item.get("at_ms"), item.get("event")
    if not isinstance(at_ms, int) or not isinstance(name, str):
        return None
    own = ("at_ms", "event", "node") if node else ("at_ms", "event")
    return HistoryEvent(at_ms, name, {key: value for key, value in item.items() if key not in own}, node)
