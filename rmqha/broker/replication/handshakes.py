"""Connections that have not shaken hands yet: bounded in number, and none can keep others out. Shell.

When there is no room the oldest connection of the host that has most of them goes. So whoever opens connections and
says nothing pushes out its own, and a replica at another address always gets in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

MAX_COUNT = 128
MAX_COUNT_OF_HOST = 64


class Handshakes:
    def __init__(self, max_count: int = MAX_COUNT, max_count_of_host: int = MAX_COUNT_OF_HOST) -> None:
        self.pushed_out_count = 0
        self._max_count = max_count
        self._max_count_of_host = max_count_of_host
        self._waiting: dict[trio.CancelScope, str] = {}
        """By their scopes, in the order of arrival: the host that each comes from."""

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def enter(self, host: str, timeout_ms: int) -> Iterator[trio.CancelScope]:
        """For as long as the handshake takes. The scope is cancelled when its time is over or another takes its room;
        a peer that has been pushed out must not go on."""
        counts = Counter(self._waiting.values())
        if counts[host] >= self._max_count_of_host:
            self._push_out(host)
        elif len(self._waiting) >= self._max_count:
            self._push_out(counts.most_common(1)[0][0])
        with trio.move_on_after(timeout_ms / 1000) as scope:
            self._waiting[scope] = host
            try:
                yield scope
            finally:
                self._waiting.pop(scope, None)

    def _push_out(self, host: str) -> None:
        oldest = next(scope for scope, item in self._waiting.items() if item == host)
        del self._waiting[oldest]
        self.pushed_out_count += 1
        oldest.cancel()
