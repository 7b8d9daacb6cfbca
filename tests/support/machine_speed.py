"""The speed of this machine at this moment, for bounds on CPU time.

A host that others use too takes two or three times the CPU time of a quiet one for the same work. So a bound is stated
for the reference machine, and what is measured is divided by how much slower this one is, right beside the measurement.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

REFERENCE_MS = 3.0
"""CPU time of `fixed_work` on the machine by which the bounds were chosen, with nothing else running."""
ROW_COUNT = 1_000
TRY_COUNT = 5


class _Row:
    def __init__(self, name: str, values: list[int]) -> None:
        self.name = name
        self.values = values


def fixed_work() -> int:
    """Objects, dictionaries and JSON, as requests of a server need them."""
    rows = {f"T{n}": _Row(f"T{n}", [n, n + 1]) for n in range(ROW_COUNT)}
    text = json.dumps({name: {"name": row.name, "values": row.values} for name, row in rows.items()})
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return sum(rows[name].values[1] + len(item["name"]) for name, item in loaded.items())


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time (ms) of `work` in this thread."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1000


def slowness() -> float:
    """CPU time of the same work here and now, relative to the reference machine; at least 1."""
    return max(1.0, median(cpu_ms(fixed_work) for _ in range(5)) / REFERENCE_MS)


def reference_ms(
    measure: Callable[[], float],
    limit_ms: float,
    *,
    try_count: int = TRY_COUNT,
    slowness: Callable[[], float] = slowness,
) -> float:
    """CPU time that `measure` gives (ms), as the reference machine would take: of the first try below `limit_ms`, else
    the least of all. One above it may have met a collection of what earlier tests left, or another guest's turn."""
    least_ms = math.inf
    for number in range(try_count):
        if number:
            gc.collect()
        found_ms = measure()
        least_ms = min(least_ms, found_ms if found_ms < limit_ms else found_ms / slowness())
        if least_ms < limit_ms:
            break
    return least_ms
