"""Readiness of a server, for /readyz and /role over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Readiness:
    """State of one server. `reason`: why it is not ready; `facts`: further members of /role, JSON-ready."""

    role: str
    ready: bool
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "ready": self.ready, "reason": self.reason, **self.facts}
