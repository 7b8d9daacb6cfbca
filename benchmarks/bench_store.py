"""One thread on the store alone: append, dispatch, pull and recovery, beside plain writes of the same bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from rmqha.host.disk import HostDisk
from rmqha.host.tracer import HostTracer
from rmqha.model.offset import Epoch
from rmqha.store.config import StoreConfig
from rmqha.store.record import NewMessage
from rmqha.store.store import Store

HOST = (b"\x7f\x00\x00\x01", 10911)
PROPERTIES = b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02WAIT\x01true\x02"
BODY_BYTES = 1024
QUEUES = 4
FILE_BYTES = 64 * 1024 * 1024
DISPATCH_BYTES = 1024 * 1024
PULL_COUNT, PULL_BYTES = 32, 256 * 1024


def message(number: int, body: bytes) -> NewMessage:
    return NewMessage("bench", number % QUEUES, body, PROPERTIES, born_at_ms=0, born_host=HOST, store_host=HOST)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def plain_writes(path: Path, count: int, size: int) -> None:
    """The limit: the same bytes with one write call each, nothing encoded and nothing synced."""
    data = bytes(size)
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(data)


def store_figures(scratch: Path, quick: bool) -> dict[str, Any]:
    count = 20_000 if quick else 100_000
    body = os.urandom(BODY_BYTES)
    directory = scratch / "store"
    config = StoreConfig(mapped_file_size_commit_log=FILE_BYTES)
    tracer = HostTracer(str(scratch / "store.log"))
    store = Store.open(HostDisk(directory), config, tracer)
    store.append_epoch(Epoch(1), store.max_phy_offset)
    taken: dict[str, float] = {}

    def append() -> None:
        for number in range(count):
            store.append(message(number, body), number)

    def dispatch() -> None:
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            pass

    def pull() -> None:
        for queue_id in range(QUEUES):
            at, end = store.queue_range("bench", queue_id)
            while at < end:
                at = store.pull("bench", queue_id, at, PULL_COUNT, PULL_BYTES).next_begin_offset

    taken["append"] = timed(append)
    end = store.max_phy_offset
    taken["dispatch into the queues"] = timed(dispatch)
    taken["pull, 32 at a time"] = timed(pull)
    taken["one sync of it all"] = timed(store.sync)
    store.close()
    # as after kill -9: `abort` is there, so the last files are walked again
    (directory / "abort").write_text("1")
    taken["recovery after a kill"] = timed(lambda: Store.open(HostDisk(directory), config, tracer).close())
    taken = {
        "plain write of the same bytes": timed(lambda: plain_writes(scratch / "plain", count, end // count)),
        **taken,
    }
    limit = taken["plain write of the same bytes"]
    rows = [
        {
            "one thread": what,
            "s": seconds,
            "records per second": count / seconds,
            "MB per second": end / seconds / 1e6,
            "× plain write": seconds / limit,
        }
        for what, seconds in taken.items()
    ]
    show(f"{count} records with bodies of {BODY_BYTES} bytes", rows)
    return {"records": count, "log_bytes": end, "store": rows}
