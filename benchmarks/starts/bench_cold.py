"""A broker whose log is in no memory: bytes a second that a consumer gets, and how long others wait meanwhile.

The store is written, the broker started and stopped once, and the system told to forget the files' pages. Then a broker
is started, one consumer pulls each queue from its beginning, and another connection asks for the broker's state every
5 ms. In the same run, as a limit: the log's bytes by plain reads of 256 KiB, cold too.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from benchmarks.starts.bench_restart import BROKER, LOG_FILE_BYTES, Connection, fill_and_kill, make_topics, read_all
from benchmarks.starts.bench_start import wait_for, writable
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.code import RequestCode
from rmqha.wire.command import Command

READ_BYTES = 256 * 1024
ASK_S = 0.005


def forget(directory: Path) -> None:
    """Have the system drop the pages of all files; they are saved before, for it drops no others."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def plain_read(directory: Path, size_bytes: int) -> float:
    """MB/s of the first `size_bytes` of the log."""
    path = min((directory / "commitlog").iterdir())
    fd = os.open(path, os.O_RDONLY)
    started = time.perf_counter()
    for position in range(0, min(size_bytes, path.stat().st_size), READ_BYTES):
        os.pread(fd, READ_BYTES, position)
    rate = min(size_bytes, path.stat().st_size) / (time.perf_counter() - started) / 1e6
    os.close(fd)
    return rate


class Waits:
    """Milliseconds that small requests take, one every ASK_S, until the block ends."""

    def __init__(self, address: str) -> None:
        self.taken_ms: list[float] = []
        self._connection = Connection(address)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._done.wait(ASK_S):
            started = time.perf_counter()
            self._connection.ask(Command(RequestCode.RMQHA_GET_REPLICA_STATE))
            self.taken_ms.append((time.perf_counter() - started) * 1000)

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._connection.close()


def cold_reads(scratch: Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Rows of MB/s, each with the waits of others."""
    rows: list[dict[str, Any]] = []
    keys = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "autoCreateTopicEnable": True}
    with Cluster.of(quickstart("cp", 1, keys), scratch) as cluster:
        trio.run(cluster.up)
        address, directory = cluster.state.node(BROKER).address, cluster.store(BROKER)
        wait_for(writable(address), time.perf_counter())
        make_topics(address)
        trio.run(cluster.kill, BROKER)
        fill_and_kill(directory, size_bytes)
        for _ in range(rounds):
            forget(directory)
            limit = plain_read(directory, size_bytes)
            for what in ("cold", "warm"):
                if what == "cold":
                    forget(directory)
                cluster.launch(BROKER)
                wait_for(writable(address), time.perf_counter())
                with Waits(address) as waits:
                    started = time.perf_counter()
                    got = read_all(address)
                    rate = got / (time.perf_counter() - started) / 1e6
                figures = summary(waits.taken_ms)
                rows.append({"pulled": what, "MB/s": rate, "plain read MB/s": limit, **_named(figures)})
                trio.run(cluster.kill, BROKER)
    show(f"cold log of {size_bytes / 2**20:.0f} MiB, n={rounds}", rows)
    return {"cold": rows}


def _named(figures: dict[str, Any]) -> dict[str, Any]:
    return {f"others {name} ms": figures[name] for name in ("median", "p90", "max")}
