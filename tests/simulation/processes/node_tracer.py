"""The trace as one node writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmqha.sim.tracer import SimTracer


class NodeTracer:
    """Names the node in every event of the shared trace. `watch` sees them too."""

    def __init__(self, tracer: SimTracer, host: str) -> None:
        self._tracer = tracer
        self._host = host
        self.watch: Callable[[str, dict[str, Any]], None] = lambda name, fields: None

    def event(self, name: str, **fields: Any) -> None:
        self._tracer.event(name, **{"node": self._host, **fields})
        self.watch(name, fields)
