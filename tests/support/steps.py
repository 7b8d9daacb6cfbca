"""Work in steps, done at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def done(steps: Generator[None, None, T]) -> T:
    """What the work returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
