"""What the index of keys costs: beside the queues' dispatch of the same log, in one run on one disk.

    python benchmarks/kernels/bench_index.py [--records 200000] [--directory DIR] [--json FILE]

Records of 1 KiB with a unique key, one key and tags, as the Java client sends them; index files of RocketMQ's default
size. "build" is all that entering a record costs, reading it from the log included; a step is a slice of 64 KiB of log,
as the broker builds it between other work. Processor time is given, for on a busy machine the clock says more of
others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rmqha.host.disk import HostDisk
from rmqha.store.config import StoreConfig
from rmqha.store.index.index_file import ENTRY
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.support.tracer import SilentTracer

RECORD_BYTES = 1024
BATCH_COUNT = 256
FILE_BYTES = 256 * 1024 * 1024
STEP_BYTES = 64 * 1024
QUERY_COUNT = 2000
HOST = (b"\x7f\x00\x00\x01", 10911)
TOPIC = "BenchTopic"


def new_message(number: int) -> NewMessage:
    properties = (
        b"KEYS\x01order-%08d\x02UNIQ_KEY\x017F000001%08X4E0E2F2A%08X%04X\x02CLUSTER\x01DefaultCluster\x02"
        b"TAGS\x01Tag%d\x02WAIT\x01true\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
    ) % (number, 4711, number // 20, number & 0xFFFF, number % 5)
    body = b"x" * (RECORD_BYTES - 91 - len(TOPIC) - len(properties))
    return NewMessage(TOPIC, number % 8, body, properties, 1, HOST, HOST)


def fill(store: Store, count: int) -> None:
    for first in range(0, count, BATCH_COUNT):
        batch = store.encode_batch([new_message(number) for number in range(first, min(count, first + BATCH_COUNT))])
        store.append_encoded(batch, first)
    store.set_confirm_offset(store.max_phy_offset)


def measure(directory: Path, count: int) -> dict[str, Any]:
    store = Store.open(HostDisk(directory), StoreConfig(mapped_file_size_commit_log=FILE_BYTES), SilentTracer())
    fill(store, count)
    start = time.process_time()
    while store.dispatch(STEP_BYTES):
        pass
    queues_s = time.process_time() - start
    steps_ms: list[float] = []
    start = begun = time.process_time()
    while store.index.build(STEP_BYTES):
        now = time.process_time()
        steps_ms.append((now - begun) * 1000)
        begun = now
    index_s = time.process_time() - start
    queries_us = []
    for number in range(0, count, max(1, count // QUERY_COUNT)):
        begun = time.process_time()
        result = store.index.query(TOPIC, f"order-{number:08d}")
        queries_us.append((time.process_time() - begun) * 1e6)
        assert len(result.records) == 1
    entries = sum(file.header.index_count - 1 for file in store.index.files)
    log_bytes = store.max_phy_offset
    start = time.perf_counter()
    store.close()
    return {
        "records": count,
        "entries": entries,
        "index_bytes": entries * ENTRY.size,
        "queues_us_per_record": round(queues_s / count * 1e6, 2),
        "build_us_per_record": round(index_s / count * 1e6, 2),
        "build_log_mb_per_s": round(log_bytes / index_s / 1e6),
        "step_ms_median": round(statistics.median(steps_ms), 2),
        "step_ms_p99": round(statistics.quantiles(steps_ms, n=100)[98], 2),
        "step_ms_max": round(max(steps_ms), 2),
        "query_us_median": round(statistics.median(queries_us), 1),
        "close_s": round(time.perf_counter() - start, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(dir=given.directory))
    try:
        found = measure(scratch / "store", given.records)
    finally:
        shutil.rmtree(scratch)
    for name, value in found.items():
        print(f"{name:24} {value:>14,}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
