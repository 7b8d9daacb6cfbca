"""What the programs of tests/interop/java print."""

from __future__ import annotations

from typing import NamedTuple

from tests.interop.processes import Process

Place = tuple[int, int]
"""(queue id, queue offset)."""


def acknowledged(producer: Process) -> list[int]:
    """Numbers of the messages that the Java client called SEND_OK, in order."""
    return [int(row[1]) for row in _rows(producer, "SEND_OK")]


def consumed(consumer: Process) -> set[int]:
    return {int(row[1]) for row in _rows(consumer, "GOT")}


def places(process: Process) -> dict[Place, int]:
    """Which message lies where: as acknowledged to a producer, or as a consumer got it."""
    return {(int(row[2]), int(row[3])): int(row[1]) for row in _rows(process, "SEND_OK", "GOT")}


def digests(consumer: Process) -> dict[Place, str]:
    """SHA-256 of the body at each place."""
    return {(int(row[2]), int(row[3])): row[4] for row in _rows(consumer, "GOT")}


class Try(NamedTuple):
    """One delivery to a consumer of Work.java."""

    number: int
    queue_id: int
    queue_offset: int
    reconsume_times: int
    at_ms: int
    age_ms: int


def tries(*consumers: Process) -> list[Try]:
    """All deliveries, in order of time."""
    rows = [Try(*map(int, row[1:7])) for consumer in consumers for row in _rows(consumer, "TRY")]
    return sorted(rows, key=lambda item: item.at_ms)


def _rows(process: Process, *words: str) -> list[list[str]]:
    return [row for line in process.lines() if (row := line.split()) and row[0] in words]
