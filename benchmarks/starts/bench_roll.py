"""How long an append can take while log files of 1 GiB are allocated ahead, rolled and flushed.

    python -m benchmarks.starts.bench_roll [--rolls 2] [--directory DIR] [--json FILE]

One thread appends 1 KiB records, paced at 20,000 a second, and times each; another syncs as a broker's flusher does:
every 500 ms (ASYNC_FLUSH) or without a pause (SYNC_FLUSH). What matters lies around the middle of a file, where the
flusher makes the next one, and around its end; the rest is filled at once, unmeasured. The same appends away from
both are the comparison, and so is the flusher's share: an append that finds the interpreter's lock taken waits for it.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from benchmarks.kernels.bench_store import BATCH_RECORDS, new_message
from rmqha.host.disk import HostDisk
from rmqha.store.config import StoreConfig
from rmqha.store.store import Store
from tests.support.tracer import SilentTracer

FILE_BYTES = 1 << 30
SPAN_BYTES = 48 << 20
"""Measured on both sides of a place."""
PACE_S = 1 / 20_000
FLUSH_S = 0.5
PLACES = {"away from both": 0.25, "file made ahead": 0.5, "roll": 1.0}


class Flusher:
    """Syncs in a thread of its own until stopped."""

    def __init__(self, store: Store, pause_s: float) -> None:
        self._store = store
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.longest_ms = 0.0

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            started = time.perf_counter()
            self._store.sync()
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - started) * 1000)
            self.count += 1

    def __enter__(self) -> Flusher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def fill_to(store: Store, offset: int) -> None:
    batch = store.encode_batch([new_message(0) for _ in range(BATCH_RECORDS)])
    while store.max_phy_offset < offset:
        store.append_encoded(batch, 1)
    store.sync()


def paced(store: Store, until: int) -> list[float]:
    """Milliseconds of each append."""
    message, append, clock = new_message(0), store.append, time.perf_counter
    taken: list[float] = []
    due = clock()
    while store.max_phy_offset < until:
        started = clock()
        append(message, 1)
        taken.append((clock() - started) * 1000)
        due = max(due + PACE_S, started)
        if (pause := due - clock()) > PACE_S:
            time.sleep(pause)
    return taken


def rolls(directory: Path, count: int) -> dict[str, Any]:
    rows = []
    for mode, pause_s in (("ASYNC_FLUSH", FLUSH_S), ("SYNC_FLUSH", 0.0)):
        store = Store.open(
            HostDisk(directory / mode), StoreConfig(mapped_file_size_commit_log=FILE_BYTES), SilentTracer()
        )
        taken: dict[str, list[float]] = {place: [] for place in PLACES}
        longest: dict[str, float] = dict.fromkeys(PLACES, 0.0)
        for number in range(count):
            for place, share in PLACES.items():
                middle = int((number + share) * FILE_BYTES)
                fill_to(store, middle - SPAN_BYTES)
                gc.collect()
                with Flusher(store, pause_s) as flusher:
                    taken[place] += paced(store, middle + SPAN_BYTES)
                longest[place] = max(longest[place], flusher.longest_ms)
        store.close()
        for path in sorted((directory / mode / "commitlog").iterdir()):
            path.unlink()
        for place, values in taken.items():
            values.sort()
            rows.append(
                {
                    "append, ms": f"{mode}, {place}",
                    "median": values[len(values) // 2],
                    "p99.9": values[-len(values) // 1000],
                    "max": values[-1],
                    "longest sync": longest[place],
                    "appends": len(values),
                }
            )
    show(f"appends around the roll of 1 GiB files, {count} rolls", rows)
    return {"roll": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rolls", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default the temporary one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="rmqha-bench-") as name:
        figures = rolls(Path(name), given.rolls)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
