"""Dispatch of a stretch of the log: by blocks with a native kernel, the fastest way; without one in bulk by `rebuild`
where much is due and NumPy is there, else record by record.

NumPy is loaded only then: a broker that starts with little to do, or has such a kernel, needs none of it."""

from __future__ import annotations

from importlib.util import find_spec

from rmqha.store.log.commit_log import CommitLog
from rmqha.store.queue.consume_queue import ConsumeQueues
from rmqha.store.queue.dispatch_service import DispatchService

BULK_BYTES = 1024 * 1024
"""From so much log on that is committed and not dispatched, NumPy is faster than a loop over the records."""


def dispatch(
    log: CommitLog, queues: ConsumeQueues, service: DispatchService, end_offset: int, limit_bytes: int
) -> bool:
    """Dispatch as `service.dispatch` does, but in bulk if as much is due, and may be done at once, as makes that
    faster."""
    if service.scans_in_bulk:
        return service.dispatch(end_offset, limit_bytes)
    position = service.position
    bulk_end = min(end_offset, position + limit_bytes)
    if bulk_end - position >= BULK_BYTES:
        dispatch_in_bulk(log, queues, service, bulk_end)
    if service.position > position:
        return service.position < end_offset
    return service.dispatch(end_offset, min(limit_bytes, BULK_BYTES))


def dispatch_in_bulk(log: CommitLog, queues: ConsumeQueues, service: DispatchService, end_offset: int) -> None:
    """Dispatch what can be done so below `end_offset`: nothing where NumPy is not installed, or not the fastest way."""
    if not service.scans_in_bulk and find_spec("numpy") is not None:
        from rmqha.store.queue.rebuild import rebuild

        rebuild(log, queues, service, end_offset)
