"""A clock that stands, and a tracer that remembers."""

from __future__ import annotations

from typing import Any


class FakeClock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


class Events:
    """A Tracer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, **fields: Any) -> None:
        self.seen.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for seen, fields in self.seen if seen == name]
