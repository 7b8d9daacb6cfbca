"""Seeds of tests that draw by chance, but for those that Hypothesis draws for."""

from __future__ import annotations

import os
from random import Random


def drawn_seed() -> int:
    """A seed that no run before had if RMQHA_FRESH is set; else always the same, so that a test fails only for a
    change. It is printed."""
    seed = Random().randrange(2**32) if os.environ.get("RMQHA_FRESH") else 1
    print(f"seed={seed}")
    return seed
