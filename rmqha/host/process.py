"""The process of a server: file descriptors, signals, memory; and the start time of any process. Shell."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rmqha.port import Tracer

if TYPE_CHECKING:
    import trio

GC_THRESHOLDS = (5_000, 3, 100)
"""Thresholds of the garbage collector. A collection of the youngest generation then takes less than a millisecond, one
of the next generation some: while thousands of connections arrive, all new objects are alive and are traversed."""
GRACE_MS = 10_000
KILLED_EXIT_CODE = 130
PRIVATE_UMASK = 0o027
"""Umask of servers: others have no rights on any file that the process creates, also through a library."""
RESERVED_FILES = 256
LARGE_BYTES = 256 * 1024
"""Size (bytes) from which malloc maps memory separately, and gives it back to the system when it is freed."""
KEPT_BYTES = 1024 * 1024
"""Free memory (bytes) at the end of the heap that malloc keeps. Otherwise turns that read and write some hundred KiB
would get new pages from the system each time, and a new page costs as much as a message of a batch."""
SWITCH_INTERVAL_S = 0.000_5
"""Time (s) after which a thread that runs Python gives the interpreter lock to one that waits for it; Python's default
is 5 ms. The event loop gives the lock away with every read and write of a socket: beside a thread that encodes a table
each of them would take that long."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
WANTED_SESSIONS = 10_000
FEW_FILES_ADVICE = "raise the limit of open files: LimitNOFILE=65536 in the systemd unit, or ulimit -Hn 65536"


ACCEPT_REPORT_INTERVAL_S = 60.0


class AcceptErrorHandler(logging.Handler):
    """Handler of trio's logger for connections that cannot be accepted for want of descriptors: an event at most once
    in ACCEPT_REPORT_INTERVAL_S. Without a handler trio's tracebacks would go to standard error, ten a second for each
    port, and a reader that does not read there would stop the server."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer
        self._next_at_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_at_s:
            self._next_at_s = now_s + ACCEPT_REPORT_INTERVAL_S
            self._tracer.event("connections_not_accepted", reason=record.getMessage(), advice=FEW_FILES_ADVICE)


def raise_file_limit() -> int:
    """Raise NOFILE to the hard limit; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def max_session_count() -> int:
    """Most connections of this process. A quarter of its file descriptors is reserved for files: otherwise many
    connections could prevent the next file of the log. The reserve is RESERVED_FILES at least, but never more than
    three quarters."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, limit - max(min(RESERVED_FILES, limit * 3 // 4), limit // 4))


def freeze_loaded_objects() -> None:
    """Exclude all present objects from garbage collection: with a million objects each full collection would stop the
    process for a second. Called when the state is in memory."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def pin_malloc_thresholds() -> bool:
    """Fix glibc's thresholds M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; False if there is no glibc.

    By default the first rises up to 32 MiB after a large block was freed. Bodies and answers then leave holes in the
    heap, which never shrinks."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
    except (AttributeError, OSError):
        return False


def run_server(
    serve: Callable[[trio.Event], Awaitable[None]],
    *,
    on_hangup: Callable[[], None] = lambda: None,
    beside: Callable[[], Awaitable[None]] | None = None,
    grace_ms: int = GRACE_MS,
    tracer: Tracer | None = None,
) -> bool:
    """Run a server under trio until it ends; False if it had to be cancelled because `grace_ms` ran out.

    `serve(stopping)` returns, or hands over and drains when `stopping` is set by SIGTERM or SIGINT, and is cancelled
    `grace_ms` later. A second such signal ends the process at once, exit code KILLED_EXIT_CODE, as a kill would.
    SIGHUP calls `on_hangup` (reopen the logs, check certificates and accounts). `beside` runs as long as the server
    does. `tracer` gets events if the limit of open files is low or reached.
    """
    import trio

    raise_file_limit()
    pin_malloc_thresholds()
    room = max_session_count()
    if tracer is not None and room < WANTED_SESSIONS:
        tracer.event("few_descriptors", connections=room, advice=FEW_FILES_ADVICE)
    logger = logging.getLogger("trio.serve_listeners")
    handler = None if tracer is None else AcceptErrorHandler(tracer)
    if handler is not None:
        logger.addHandler(handler)
    umask = os.umask(PRIVATE_UMASK)
    os.umask(umask | PRIVATE_UMASK)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return trio.run(_supervise, serve, on_hangup, beside, grace_ms)
    finally:
        if handler is not None:
            logger.removeHandler(handler)
        os.umask(umask)
        sys.setswitchinterval(interval_s)


async def cancel_on_signal(scope: trio.CancelScope) -> None:
    """Cancel `scope` at SIGINT or SIGTERM, until cancelled itself."""
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def _supervise(
    serve: Callable[[trio.Event], Awaitable[None]],
    on_hangup: Callable[[], None],
    beside: Callable[[], Awaitable[None]] | None,
    grace_ms: int,
) -> bool:
    import trio

    from rmqha.host.net.network import NameLookups

    trio.socket.set_custom_hostname_resolver(NameLookups())
    stopping = trio.Event()
    finished = False

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    on_hangup()
                elif stopping.is_set():
                    # a thread that waits for the disk cannot be cancelled, so nothing less ends at once
                    os._exit(KILLED_EXIT_CODE)
                else:
                    stopping.set()
                    nursery.cancel_scope.deadline = trio.current_time() + grace_ms / 1000

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        if beside is not None:
            nursery.start_soon(beside)
        await serve(stopping)
        finished = True
        nursery.cancel_scope.cancel()
    return finished


def started_at_ticks(pid: int) -> int | None:
    """Start time of a process, in clock ticks since boot; with the pid it identifies one process. None if there is no
    such process, if it is a zombie, or if it is another user's and hidden (hidepid)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # the command's name, in parentheses, may contain any bytes, also ") "
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
