"""Delay before a slave that has left the set may come back: at once, unless it comes and goes. Pure.

The first FREE_COUNT times within WINDOW_MS cost nothing, so that a killed broker is back as soon as it is level. Each
further time doubles how long it must have been fit without a break, from HOLD_FIRST_MS up to HOLD_MAX_MS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from rmqha.model.offset import BrokerId

WINDOW_MS = 60_000
FREE_COUNT = 2
HOLD_FIRST_MS = 1000
HOLD_MAX_MS = 10_000
HOLD_NEEDED_MAX_MS = 1000
"""While the set is too small for sends nobody is held back for longer."""
MAX_LEAVES_PER_WINDOW = 12
"""Consequence of these numbers: no slave leaves the set more often within WINDOW_MS, as long as it is not needed."""


class FlapGuard:
    def __init__(self) -> None:
        self._left_at_ms: dict[BrokerId, deque[int]] = {}
        self._fit_since_ms: dict[BrokerId, int] = {}

    def left(self, now_ms: int, member: BrokerId) -> None:
        """`member` is no longer in the set."""
        moments = self._left_at_ms.setdefault(member, deque(maxlen=MAX_LEAVES_PER_WINDOW))
        moments.append(now_ms)

    def fit(self, now_ms: int, members: Iterable[BrokerId]) -> None:
        """These are outside the set and could join it now; called at every look, with all of them."""
        self._fit_since_ms = {member: self._fit_since_ms.get(member, now_ms) for member in members}

    def hold_ms(self, now_ms: int, member: BrokerId) -> int:
        """Time (ms) for which `member` must be fit before it joins."""
        moments = self._left_at_ms.get(member)
        if moments is None:
            return 0
        while moments and now_ms - moments[0] >= WINDOW_MS:
            moments.popleft()
        extra = len(moments) - FREE_COUNT
        return 0 if extra <= 0 else min(HOLD_MAX_MS, HOLD_FIRST_MS << (extra - 1))

    def joins_at_ms(self, now_ms: int, *, needed: bool) -> dict[BrokerId, int]:
        """Time (ms) at which each fit one may join. `needed`: the set is too small for sends without them."""
        limit_ms = HOLD_NEEDED_MAX_MS if needed else HOLD_MAX_MS
        return {
            member: since_ms + min(limit_ms, self.hold_ms(now_ms, member))
            for member, since_ms in self._fit_since_ms.items()
        }
