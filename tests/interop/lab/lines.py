"""What the programs of tests/interop/java print."""

from __future__ import annotations

import base64
from typing import NamedTuple

from tests.interop.lab.processes import Process

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


def fields(consumer: Process) -> dict[Place, tuple[str, str]]:
    """(SHA-256 of the body, all other fields as Consume.java writes them) at each place."""
    found: dict[Place, tuple[str, str]] = {}
    for row in _rows(consumer, "GOT"):
        told = row[4], base64.b64decode(row[5]).decode()
        assert found.setdefault((int(row[2]), int(row[3])), told) == told, f"{row[2:4]} came twice, and not the same"
    return found


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
