"""The part of a store that a pull or a copy reads, if the disk must be waited for. Data plane.

A read through a mapping stops the event loop at a page that is not in memory until the disk has read it, and ends the
process at a bad sector. So a pull of old messages, and a transfer of them to a slave, first asks the system whether
they are in memory; if not, a thread reads them as files. A pull then reads nothing behind the part that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from rmqha.store.log.commit_log import CommitLog
from rmqha.store.queue.consume_queue import PREFILL_SIZE, UNIT, UNIT_BYTES, ConsumeQueue

NEW_BYTES = 64 * 1024 * 1024
"""Bytes at the end of the log, written by this process, that count as being in memory."""
MAX_COLD_BYTES = 1024 * 1024
"""Most bytes of the log that one pull of old messages reads, but for a single message that is longer."""


class ColdRange(NamedTuple):
    """A part of a queue's files and of the log; `log_bytes` is 0 while the queue's entries do not tell."""

    queue_start: int
    queue_bytes: int
    log_start: int
    log_bytes: int


class Bounds(NamedTuple):
    """A pull's share of a queue and of the log that is in memory: entries below `last`, records up to `log_end`."""

    last: int
    log_end: int


NO_BOUNDS: Final = Bounds(1 << 62, 1 << 62)


def memory_bounds(log: CommitLog, queue: ConsumeQueue, offset: int, count: int) -> Bounds | ColdRange:
    """The bounds of a pull that reads `count` entries from `offset` on, or the part that it must wait for."""
    units, queue_start = queue.units_view(offset, count), offset * UNIT_BYTES
    if not queue.files.is_in_memory(queue_start, len(units)):
        return ColdRange(queue_start, len(units), 0, 0)
    log_start, first_size, _ = UNIT.unpack_from(units)
    file = log.files.find(log_start)
    if first_size == PREFILL_SIZE or file is None or _is_new(log, log_start):
        return NO_BOUNDS
    last_start, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    wanted_end = max(log_start + first_size, min(last_start + last_size, log_start + MAX_COLD_BYTES))
    log_end = min(wanted_end, file.end_offset, log.end_offset)
    if log_end <= log_start or log.files.is_in_memory(log_start, log_end - log_start):
        return Bounds(offset + len(units) // UNIT_BYTES, log_end)
    return ColdRange(queue_start, len(units), log_start, log_end - log_start)


def log_loader(log: CommitLog, offset: int, size_bytes: int) -> Callable[[], None] | None:
    """A function for another thread that reads a part of the log into memory; None if it is there. It raises
    OSError."""
    if not size_bytes or _is_new(log, offset) or log.files.is_in_memory(offset, size_bytes):
        return None
    return log.files.loader(offset, size_bytes)


def loader(log: CommitLog, queue: ConsumeQueue, cold: ColdRange) -> Callable[[], None]:
    """A function for another thread that reads the part into memory. It raises OSError."""
    load_queue = queue.files.loader(cold.queue_start, cold.queue_bytes)
    load_log = log.files.loader(cold.log_start, cold.log_bytes)

    def load() -> None:
        load_queue()
        load_log()

    return load


def _is_new(log: CommitLog, offset: int) -> bool:
    return offset >= max(log.opened_end, log.end_offset - NEW_BYTES)
