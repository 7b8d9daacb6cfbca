"""AP: what is lost of acknowledged messages is reported. Each lay in a part of its broker's log that this broker has
said to have cut, set aside or lost with its power since it was sent (the acknowledgement may arrive after the cut):
nothing goes without a word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqha.sim.scheduler import Scheduler
from tests.simulation.history import InvariantError, Send
from tests.simulation.processes.broker_process import STORES_AT

OPEN_END = 1 << 62


class Reports:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._parts: dict[str, list[tuple[int, int, int]]] = {}
        """By host: when, from, to."""

    def traced(self, name: str, fields: dict[str, Any]) -> None:
        match name:
            case "log_truncated" if fields["cut_bytes"]:
                self._add(fields["node"], fields["end_offset"], fields["end_offset"] + fields["cut_bytes"])
            case "log_restarted":
                self._add(fields["node"], 0, OPEN_END)
            case "booted" if fields["unclean"]:
                self._add(fields["node"], fields["end"], OPEN_END)

    def replaced(self, host: str) -> None:
        """An operator has taken its disk away."""
        self._add(host, 0, OPEN_END)

    def _add(self, host: str, start: int, end: int) -> None:
        self._parts.setdefault(host, []).append((self._scheduler.now_ms, start, end))

    def verify(self, lost: Iterable[Send]) -> None:
        for send in lost:
            host, place = _stored_by(send), send.phy_offset
            begun_at_ms = send.begun_at_ms
            if not any(at >= begun_at_ms and low <= place < high for at, low, high in self._parts.get(host, ())):
                raise InvariantError(
                    f"{send.key}, sent at {begun_at_ms} ms and stored by {host}, is lost, and {host} has reported"
                    f" no cut of its log at {place} since"
                )


def _stored_by(send: Send) -> str:
    """The host whose master has stored it: who answered, but of a send that was passed on."""
    place = int(send.offset_id[6:8], 16)
    return f"b{place - STORES_AT}" if place > STORES_AT else send.broker.partition(":")[0]
