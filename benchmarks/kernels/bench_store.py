"""What the store costs beside the physical limit, os.write of the same bytes, in one run on one disk.

    python benchmarks/kernels/bench_store.py [--records 100000] [--recover-bytes 251658240] [--directory DIR]
        [--json FILE]

Record by record (1 KiB records; `_pool` with transientStorePoolEnable) beside os.write of 1 KiB; batches of 256 KiB,
already encoded, with their encoding, and as a slave appends them, beside os.write of 256 KiB; the opening of a store
whose process was killed. Each pair is measured in turns, five rounds, median given; a ratio is our rate divided by that
of os.write. Neither side syncs inside the measured part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqha.host.disk import HostDisk
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.support.tracer import SilentTracer

ROUNDS = 5
RECORD_BYTES = 1024
BATCH_BYTES = 256 * 1024
BATCH_RECORDS = BATCH_BYTES // RECORD_BYTES
FILE_BYTES = 256 * 1024 * 1024
HOST = (b"\x7f\x00\x00\x01", 10911)
PROPERTIES = b"UNIQ_KEY\x017F00000100000000000000000000ABCD\x02WAIT\x01true\x02TAGS\x01a\x02"


def new_message(queue_id: int) -> NewMessage:
    """Its record has exactly RECORD_BYTES."""
    topic = "BenchTopic"
    body = b"x" * (RECORD_BYTES - 91 - len(topic) - len(PROPERTIES))
    return NewMessage(topic, queue_id, body, PROPERTIES, 1, HOST, HOST)


def open_store(directory: Path, *, pool: bool = False) -> Store:
    config = StoreConfig(mapped_file_size_commit_log=FILE_BYTES, transient_store_pool_enable=pool)
    return Store.open(HostDisk(directory), config, SilentTracer())


def rate(work: Callable[[], int]) -> float:
    """Bytes a second."""
    start = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - start)


def write_calls(directory: Path, size: int, count: int) -> float:
    block = b"x" * size
    fd = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:

        def work() -> int:
            for _ in range(count):
                os.write(fd, block)
            return size * count

        return rate(work)
    finally:
        os.close(fd)
        (directory / "raw").unlink()


Work = Callable[[Store, int], None]
"""What is measured: put so many records into the store."""


def one_by_one(store: Store, count: int) -> None:
    messages = [new_message(index % 4) for index in range(4)]
    append = store.append
    for number in range(count):
        append(messages[number & 3], number)


def batches(store: Store, count: int) -> None:
    """As request 320: messages of one queue, encoded and appended."""
    messages = [new_message(0) for _ in range(BATCH_RECORDS)]
    for number in range(count // BATCH_RECORDS):
        store.append_encoded(store.encode_batch(messages), number)


def encoded_batches(store: Store, count: int) -> None:
    """The append alone."""
    batch = store.encode_batch([new_message(0) for _ in range(BATCH_RECORDS)])
    for number in range(count // BATCH_RECORDS):
        store.append_encoded(batch, number)


def raw_pieces(store: Store, count: int) -> None:
    """As a slave that gets the master's bytes."""
    piece = memoryview(bytes(store.encode_batch([new_message(0) for _ in range(BATCH_RECORDS)]).data))
    for _ in range(count // BATCH_RECORDS):
        store.append_raw(store.max_phy_offset, piece)


def append_rate(directory: Path, count: int, append: Work, *, pool: bool) -> float:
    store = open_store(directory / "store", pool=pool)

    def work() -> int:
        start = store.max_phy_offset
        append(store, count)
        store.commit()
        return store.max_phy_offset - start

    store.append(new_message(0), 0)  # the first file exists before the clock runs
    store.commit()
    try:
        return rate(work)
    finally:
        store.close()
        shutil.rmtree(directory / "store")


APPENDS: dict[str, tuple[int, Work, bool]] = {
    "append_1_kib": (RECORD_BYTES, one_by_one, False),
    "append_1_kib_pool": (RECORD_BYTES, one_by_one, True),
    "append_256_kib_encoded": (BATCH_BYTES, encoded_batches, False),
    "append_256_kib": (BATCH_BYTES, batches, False),
    "append_raw_256_kib": (BATCH_BYTES, raw_pieces, False),
}
"""Name to the size of the os.write calls beside it, the work, and whether transientStorePoolEnable is set."""


def compare(directory: Path, count: int, block_bytes: int, append: Work, pool: bool) -> dict[str, float]:
    """In turns, so that both see the same disk and the same neighbours."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(write_calls(directory, block_bytes, count * RECORD_BYTES // block_bytes))
        ours.append(append_rate(directory, count, append, pool=pool))
    ours_rate, theirs_rate = statistics.median(ours), statistics.median(theirs)
    return {
        "store_mib_s": ours_rate / 2**20,
        "os_write_mib_s": theirs_rate / 2**20,
        "ratio": statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True)),
        "store_calls_s": ours_rate / block_bytes,
    }


def fill(directory: Path, size: int) -> None:
    """Child process: write `size` bytes of log, saving as a broker does, and die without stopping."""
    store = open_store(directory)
    messages = [new_message(index % 4) for index in range(256)]
    number = 0
    while store.max_phy_offset < size:
        store.append_encoded(store.encode_batch(messages), number)
        number += 1
        if number % 256 == 0:
            store.set_confirm_offset(store.max_phy_offset)
            while store.dispatch(1 << 22):
                continue
            store.sync()
    os.kill(os.getpid(), 9)


def recover(directory: Path, size: int) -> dict[str, Any]:
    target = directory / "killed"
    subprocess.run([sys.executable, __file__, "--fill", str(target), "--recover-bytes", str(size)], check=False)
    start = time.perf_counter()
    store = open_store(target)
    seconds = time.perf_counter() - start
    result = {
        "log_bytes": store.max_phy_offset,
        "checked_bytes": store.max_phy_offset - store.recovery.checked_from,
        "seconds": seconds,
        "lines": store.recovery.lines,
    }
    start = time.perf_counter()
    store.set_confirm_offset(store.max_phy_offset)
    before = store.dispatched_offset
    while store.dispatch(1 << 22):
        continue
    result["dispatch_rest_seconds"] = time.perf_counter() - start
    result["dispatch_rest_bytes"] = store.dispatched_offset - before
    store.close()
    shutil.rmtree(target)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--recover-bytes", type=int, default=240 * 1024 * 1024)
    parser.add_argument(
        "--directory", type=Path, default=None, help="on the disk to measure; default the temporary one"
    )
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--fill", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill is not None:
        fill(options.fill, options.recover_bytes)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="rmqha-bench-") as name:
        directory = Path(name)
        figures = {
            **{
                name: compare(directory, options.records, block_bytes, append, pool)
                for name, (block_bytes, append, pool) in APPENDS.items()
            },
            "recovery_after_kill": recover(directory, options.recover_bytes),
        }
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    print(f"\n{'what':<26}{'store MiB/s':>12}{'os.write MiB/s':>16}{'ratio':>8}")
    for what in APPENDS:
        row = figures[what]
        print(f"{what:<26}{row['store_mib_s']:>12.0f}{row['os_write_mib_s']:>16.0f}{row['ratio']:>8.2f}")
    found = figures["recovery_after_kill"]
    print(
        f"{'recovery':<26}{found['log_bytes'] / 2**20:.0f} MiB log, {found['checked_bytes'] / 2**20:.1f} MiB checked,"
        f" {found['seconds'] * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
