"""What the name server's page costs: its process without httpPort, with it, and while pages are open."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show
from benchmarks.starts.bench_start import cpu_ms, memory
from rmqha.drill.cluster import Cluster, quickstart

SETTLE_S = 2.0


class Viewers:
    """Open pages, as a browser holds them."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._ended = False
        self.count = 0

    def open(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._look, daemon=True).start()
        self.count += count

    def _look(self) -> None:
        with urllib.request.urlopen(f"{self._base}/events", timeout=10) as stream:
            while not self._ended and stream.readline():
                pass

    def end(self) -> None:
        self._ended = True


def pages(scratch: Path, seconds: float) -> dict[str, Any]:
    """A group of three that nobody uses. CPU is of the name server with its controller, and of the master."""
    rows = []
    for with_http in (False, True):
        document = quickstart("cp")
        port = document["namesrv"]["listenPort"] + 40
        if with_http:
            document["cluster"]["httpPort"] = port
        directory = scratch / ("with" if with_http else "without")
        directory.mkdir()
        with Cluster.of(document, directory) as cluster:
            trio.run(cluster.up)
            viewers = Viewers(f"http://127.0.0.1:{port}")
            pids = [cluster.state.node(name).pid for name in ("ns-1", "broker-a-1")]
            for more in (0, 1, 9) if with_http else (0,):
                viewers.open(more)
                time.sleep(SETTLE_S)
                before = [cpu_ms(pid) for pid in pids]
                time.sleep(seconds)
                used = [(cpu_ms(pid) - start) / seconds / 10 for pid, start in zip(pids, before, strict=True)]
                what = f"httpPort, {viewers.count} pages open" if with_http else "no httpPort"
                figures = {"name server CPU %": used[0], "broker CPU %": used[1], **memory(pids[0])}
                rows.append({"name server": what, **figures})
            viewers.end()
    show("the page (quick start, CP, three brokers)", rows)
    return {"page": rows}
