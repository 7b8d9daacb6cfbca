"""How long a test waits for an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

HANG_S = 300
"""Only what hangs takes so long: a machine with a load of 28 on two cores needs minutes for seconds of work."""
HANG_MS = HANG_S * 1000

NOISE_MS = 5000
"""Time that a slow and busy machine may add to a bound of the product."""


T = TypeVar("T")


def until(look: Callable[[], T]) -> T:
    """The first answer of `look` that is true. It is asked again and again: for what no event tells."""
    end = time.monotonic() + HANG_S
    while not (found := look()):
        assert time.monotonic() < end, f"it has not come in {HANG_S} s; last: {found!r}"
        time.sleep(0.05)
    return found
