"""Work on large tables in steps, between which other tasks run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

RUN_COUNT = 2048
"""Names that are sorted or checked in one step, which takes about a millisecond."""


def sorted_in_steps(names: Iterable[str]) -> Generator[None, None, list[str]]:
    """Sort `names`, which are copied first. The longest step merges two halves, in a tenth of the total time."""
    unsorted = list(names)
    if len(unsorted) <= RUN_COUNT:
        return sorted(unsorted)
    runs: deque[list[str]] = deque()
    for start in range(0, len(unsorted), RUN_COUNT):
        runs.append(sorted(unsorted[start : start + RUN_COUNT]))
        yield
    while len(runs) > 1:
        merged = runs.popleft() + runs.popleft()
        merged.sort()
        runs.append(merged)
        yield
    return runs[0]
