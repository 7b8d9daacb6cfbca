"""The Prng port over Python's Mersenne Twister, seeded by the system unless a seed is given."""

from __future__ import annotations

import random
import secrets
from hashlib import sha256


class HostPrng:
    """Pseudo-random numbers, not for secrets. `child(name)` depends only on the seed and the names, not on the numbers
    drawn before. Implements port.Prng."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(64) if seed is None else seed
        self._random = random.Random(self.seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def chance(self, numerator: int, denominator: int) -> bool:
        return self._random.randrange(denominator) < numerator

    def child(self, name: str) -> HostPrng:
        return HostPrng(int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big"))
