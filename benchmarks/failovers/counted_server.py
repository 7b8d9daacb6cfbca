"""Runs an `rmqha` server whose fdatasync and fsync calls are written down: FILE and the server's arguments.

A line of FILE is `wall stamp in ms at the end, milliseconds taken`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

Sync = Callable[[Any], None]


def counted(sync: Sync, handle: int) -> Sync:
    def call(fd: Any) -> None:
        started = time.perf_counter()
        sync(fd)
        taken_ms = (time.perf_counter() - started) * 1000
        os.write(handle, f"{time.time_ns() // 1_000_000} {taken_ms:.3f}\n".encode())

    return call


def main() -> None:
    handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for name in ("fdatasync", "fsync"):
        setattr(os, name, counted(getattr(os, name), handle))
    sys.argv = ["rmqha", *sys.argv[2:]]
    from rmqha.cli.main import main as rmqha

    rmqha()


if __name__ == "__main__":
    main()
