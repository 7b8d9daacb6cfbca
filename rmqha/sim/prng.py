"""Random numbers from one seed: SplitMix64 (Steele, Lea, Flood 2014), the same in every process and release."""

from __future__ import annotations

_COUNT = 2**64
_MASK = _COUNT - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class SimPrng:
    """Pseudo-random numbers. A child depends only on the seed and its name, not on the numbers drawn before. Implements
    port.Prng."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound): draws beyond the last whole multiple of `bound` are thrown away."""
        assert 0 < bound <= 2**63, f"no integers below {bound}"
        limit = _COUNT - _COUNT % bound
        while True:
            # `_mix` written out: every segment of a simulated connection draws here
            self._state = value = (self._state + _GOLDEN) & _MASK
            value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
            value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
            value ^= value >> 31
            if value < limit:
                return value % bound

    def between(self, low: int, high: int) -> int:
        """A uniform integer in [low, high]."""
        return low + self.below(high - low + 1)

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def child(self, name: str) -> SimPrng:
        seed = self._seed
        for byte in name.encode():
            seed = _mix((seed ^ byte) + _GOLDEN & _MASK)
        return SimPrng(_mix(seed ^ len(name)))
