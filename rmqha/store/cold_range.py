"""The part of a store that a pull or a copy reads, if the disk must be waited for. Data plane.

A look through a mapping at a page that is not in memory stops the event loop until the disk has read it, and ends the
process at a bad sector. So a pull of old messages, and a transfer of them to a slave, first asks the system whether
they are in memory; if not, a thread reads them as files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rmqha.store.log.commit_log import CommitLog
from rmqha.store.queue.consume_queue import PREFILL_SIZE, UNIT, UNIT_BYTES, ConsumeQueue

NEW_BYTES = 64 * 1024 * 1024
"""Bytes at the end of the log, written by this process, that count as being in memory."""
MAX_COLD_BYTES = 1024 * 1024
"""Bytes of the log that are looked at and read for one pull at most."""


class ColdRange(NamedTuple):
    """A part of a queue's files and of the log; `log_bytes` is 0 while the queue's entries do not tell."""

    queue_start: int
    queue_bytes: int
    log_start: int
    log_bytes: int


def cold_range(log: CommitLog, queue: ConsumeQueue, offset: int, count: int) -> ColdRange | None:
    """The part that a pull of `count` entries from `offset` on must wait for; None if there is none."""
    start, size = offset * UNIT_BYTES, min(count, queue.max_offset - offset) * UNIT_BYTES
    if not queue.files.is_in_memory(start, size):
        return ColdRange(start, size, 0, 0)
    units = queue.units_view(offset, count)
    log_start, first_size, _ = UNIT.unpack_from(units)
    if first_size == PREFILL_SIZE or _is_new(log, log_start):
        return None
    last_start, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    log_end = min(max(last_start + last_size, log_start + first_size), log_start + MAX_COLD_BYTES, log.end_offset)
    if log_end <= log_start or log.files.is_in_memory(log_start, log_end - log_start):
        return None
    return ColdRange(start, size, log_start, log_end - log_start)


def log_loader(log: CommitLog, offset: int, size_bytes: int) -> Callable[[], None] | None:
    """A function for another thread that reads a part of the log into memory; None if it is there. It raises
    OSError."""
    if not size_bytes or _is_new(log, offset) or log.files.is_in_memory(offset, size_bytes):
        return None
    return log.files.loader(offset, size_bytes)


def _is_new(log: CommitLog, offset: int) -> bool:
    return offset >= max(log.opened_end, log.end_offset - NEW_BYTES)


def loader(log: CommitLog, queue: ConsumeQueue, cold: ColdRange) -> Callable[[], None]:
    """A function for another thread that reads the part into memory. It raises OSError."""
    load_queue = queue.files.loader(cold.queue_start, cold.queue_bytes)
    load_log = log.files.loader(cold.log_start, cold.log_bytes)

    def load() -> None:
        load_queue()
        load_log()

    return load
