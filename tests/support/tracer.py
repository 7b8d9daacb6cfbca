"""A tracer that keeps all events and one that keeps none."""

from __future__ import annotations

from typing import Any


class RecordingTracer:
    """Events in their order, with their fields."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def named(self, name: str) -> list[dict[str, Any]]:
        """Fields of each event of this name."""
        return [fields for seen, fields in self.events if seen == name]

    def history(self) -> list[dict[str, Any]]:
        """The events as a HostTracer gives them, all at time 0."""
        return [{"at_ms": 0, "event": name, **fields} for name, fields in self.events]


class SilentTracer:
    """Implements port.Tracer for what traces nothing of interest."""

    def event(self, name: str, **fields: Any) -> None:
        """Drop it."""
