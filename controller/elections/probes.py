"""Questions that the leading controller puts to brokers, each with a number and an end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from controller.state.action import Action, Probe
from rmqha.wire.command import Command

LOST_PROBE_FACTOR = 8
"""A probe whose end the shell never reports is given up after so many of its time-outs."""


class Probes:
    """`probe_ids` never repeat in this process; `emit` takes actions."""

    def __init__(self, emit: Callable[[Action], None], probe_ids: Iterator[int]) -> None:
        self._emit = emit
        self._probe_ids = probe_ids
        self._given_up: list[tuple[int, int]] = []
        """A heap of (deadline, probe id)."""

    def send(self, now_ms: int, address: str, command: Command, timeout_ms: int) -> int:
        probe_id = next(self._probe_ids)
        heappush(self._given_up, (now_ms + LOST_PROBE_FACTOR * timeout_ms, probe_id))
        self._emit(Probe(probe_id, address, command, timeout_ms))
        return probe_id

    def deadline_ms(self) -> int | None:
        return self._given_up[0][0] if self._given_up else None

    def lost(self, now_ms: int) -> list[int]:
        """Probes that are given up now; those that were reported in time are among them and known no more."""
        found = []
        while self._given_up and self._given_up[0][0] <= now_ms:
            found.append(heappop(self._given_up)[1])
        return found
