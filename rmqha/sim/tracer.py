"""Events of a simulation, kept and hashed: two runs were the same if their trace hashes are."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

from rmqha.sim.scheduler import Scheduler


def _canonical(value: Any) -> str:
    """Text of a value that is the same in every process. Raises TypeError for values whose text may depend on an
    address or on hashing."""
    match value:
        case None | bool() | str() | bytes():
            return repr(value)
        case int():
            return str(int(value))
        case list() | tuple():
            return "[" + ",".join(_canonical(item) for item in value) + "]"
        case dict():
            return "{" + ",".join(sorted(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items())) + "}"
        case set() | frozenset():
            return "<" + ",".join(sorted(_canonical(item) for item in value)) + ">"
        case _:
            raise TypeError(f"a trace cannot hold a {type(value).__name__}")


class SimTracer:
    """Tracer of a simulation. `recent`: the last `keep_count` lines, for the report of a failure. Implements
    port.Tracer."""

    def __init__(self, scheduler: Scheduler, keep_count: int = 200) -> None:
        self._scheduler = scheduler
        self._hash = hashlib.blake2b(digest_size=16)
        self.recent: deque[str] = deque(maxlen=keep_count)
        self.event_count = 0

    def event(self, name: str, **fields: Any) -> None:
        line = f"{self._scheduler.now_ms} {name} " + " ".join(
            f"{key}={_canonical(value)}" for key, value in sorted(fields.items())
        )
        self._hash.update(line.encode() + b"\n")
        self.recent.append(line)
        self.event_count += 1

    def trace_hash(self) -> str:
        return self._hash.hexdigest()
