"""An empty slave copies its master's log: how long until it has the bytes, the queues and a place in the SyncStateSet.

    python -m benchmarks --only catchup

In one run, on the same bytes: a plain loop of two processes, sendfile on one side and recv_into a mapped file on the
other; the same loop that receives into one buffer and writes that to the file; ours; the real RocketMQ 5.4.0 at its
defaults, where Java is there. Brokers are asked in the same way (request 28) by the same poll, and the clock starts
with the first byte that a slave has.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from benchmarks.kernels.bench_store import BATCH_RECORDS, HOST, PROPERTIES, RECORD_BYTES
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.store import Store
from tests.interop.lab.java import Java, MissingError
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import ask_json
from tests.support.tracer import SilentTracer

LOG_FILE_BYTES = 1 << 30
TOPICS = tuple(f"Bench{number}" for number in range(8))
QUEUE_COUNT = 4
PIECE_BYTES = 1 << 20
DISPATCH_BYTES = 4 << 20
POLL_S = 0.1
TIMEOUT_S = 300
KEYS = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(300000 * 20),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}
"""RocketMQ's defaults; the laboratory has smaller ones."""
APACHES_DEFAULTS = {"waitTimeMillsInSendQueue": "200"}
"""Values of Apache's own that its laboratory in tests/interop changes for busy machines."""


def fill(directory: Path, size_bytes: int) -> int:
    """A store with so many bytes of 1 KiB records, their queues built; where its log ends."""
    store = Store.open(HostDisk(directory), StoreConfig(mapped_file_size_commit_log=LOG_FILE_BYTES), SilentTracer())
    store.accept_epoch(Epoch(1))
    store.append_epoch(Epoch(1), PhyOffset(0))
    body_bytes = RECORD_BYTES - 91 - len(TOPICS[0]) - len(PROPERTIES)
    batches = [
        [NewMessage(topic, queue_id, os.urandom(body_bytes), PROPERTIES, 1, HOST, HOST) for _ in range(BATCH_RECORDS)]
        for queue_id in range(QUEUE_COUNT)
        for topic in TOPICS
    ]
    encoded = [store.encode_batch(messages) for messages in batches]
    number = 0
    while store.max_phy_offset < size_bytes:
        store.append_encoded(encoded[number % len(encoded)], time.time_ns() // 1_000_000)
        number += 1
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            continue
        while store.index.build(PIECE_BYTES):
            continue
    store.close()
    return store.max_phy_offset


# --- the physical limit -----------------------------------------------------------------------------------------------
def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


def receive(target: Path, size_bytes: int, *, buffered: bool) -> None:
    """Child: take so many bytes from the first connection into mapped files, or by a buffer; print the seconds."""
    target.mkdir(parents=True)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    started, left, number = time.perf_counter(), size_bytes, 0
    buffer = memoryview(bytearray(PIECE_BYTES))
    while left:
        with (target / f"{number}").open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, LOG_FILE_BYTES)
            view, at, stop = memoryview(mmap.mmap(file.fileno(), LOG_FILE_BYTES)), 0, min(left, LOG_FILE_BYTES)
            while at < stop:
                if buffered:
                    size = connection.recv_into(buffer[: stop - at])
                    at += os.pwrite(file.fileno(), buffer[:size], at)
                else:
                    at += connection.recv_into(view[at : min(stop, at + PIECE_BYTES)])
        left -= stop
        number += 1
    print(time.perf_counter() - started, flush=True)


def plain_loop(source: Path, scratch: Path, size_bytes: int, *, buffered: bool) -> float:
    """Bytes a second."""
    arguments = [
        sys.executable,
        "-m",
        "benchmarks.starts.bench_catchup",
        "--receive",
        str(scratch),
        "--bytes",
        str(size_bytes),
    ]
    if buffered:
        arguments.append("--buffered")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        with socket.create_connection(("127.0.0.1", int(receiver.stdout.readline()))) as connection:
            left = size_bytes
            for path in log_files(source):
                with path.open("rb") as file:
                    at, stop = 0, min(left, path.stat().st_size)
                    while at < stop:
                        at += os.sendfile(connection.fileno(), file.fileno(), at, min(PIECE_BYTES, stop - at))
                    left -= stop
            seconds = float(receiver.stdout.readline())
    shutil.rmtree(scratch)
    return size_bytes / seconds


# --- brokers ----------------------------------------------------------------------------------------------------------
def look(node: Node) -> tuple[int, int]:
    """(end of the log, end of what is in the queues)."""
    table = ask_json(node.address, RequestCode.GET_BROKER_RUNTIME_INFO).get("table", {})
    end = int(table.get("commitLogMaxOffset", 0))
    return end, end - int(table.get("dispatchBehindBytes", 0))


def without_c1_only(command: list[str]) -> list[str]:
    """The laboratory starts Java so that it is there soon; here it may have its whole JIT."""
    return [item for item in command if item != "-XX:TieredStopAtLevel=1"]


def cpu_seconds(node: Node) -> float:
    fields = Path(f"/proc/{node.running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def catch_up(lab: Lab, master: Node, slave: Node, end: int) -> dict[str, Any]:
    """Bytes a second until the slave has all bytes, and until its queues are built and it is in the set."""
    lab.run(master)
    lab.run(slave)  # before, nobody is elected: the controllers wait for all replicas of a group that they do not know
    deadline = time.monotonic() + TIMEOUT_S
    first_at = level_at = 0.0
    first = queued = 0
    in_set = False
    cpu_before = 0.0
    while not (level_at and queued >= end and in_set):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{slave.name} has not caught up within {TIMEOUT_S} s:\n{slave.running.tail()}")
        found, queued = look(slave)
        now = time.perf_counter()
        if found and not first_at:
            first_at, first, cpu_before = now, found, cpu_seconds(master)
        if found >= end:
            level_at = level_at or now
            in_set = len(lab.members()) > 1
        time.sleep(POLL_S)
    done_at = time.perf_counter()
    return {
        "bytes": (end - first) / (level_at - first_at),
        "in the set": (end - first) / (done_at - first_at),
        "seconds": done_at - first_at,
        "cpu master": cpu_seconds(master) - cpu_before,
        "cpu slave": cpu_seconds(slave),
    }


def of_kind(java: Java | None, kind: str, source: Path, scratch: Path, end: int) -> dict[str, Any]:
    lab = Lab(java, scratch)
    try:
        lab.start_our_name_server()
        make = lab.our_broker if kind == "ours" else lab.java_broker
        master, slave = make("master", **KEYS), make("slave", **KEYS)
        for node in (master, slave):
            node.command = without_c1_only(node.command)
        master.store.parent.mkdir(parents=True)
        subprocess.run(["cp", "-r", "--reflink=auto", str(source), str(master.store)], check=True)
        return catch_up(lab, master, slave, end)
    finally:
        lab.close()
        shutil.rmtree(scratch)


def catch_ups(scratch: Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Rows of bytes a second."""
    source = scratch / "source"
    end = fill(source, size_bytes)
    try:
        java_home = scratch / "java"
        java_home.mkdir()
        java: Java | None = Java(java_home)
    except MissingError as error:
        print(f"without the real RocketMQ: {error}")
        java = None
    rows: list[dict[str, Any]] = []
    each: list[dict[str, Any]] = []
    for number in range(rounds):
        found: dict[str, Any] = {
            "plain": {"bytes": plain_loop(source, scratch / "plain", end, buffered=False)},
            "buffered": {"bytes": plain_loop(source, scratch / "plain", end, buffered=True)},
        }
        for kind in ("ours", "rocketmq") if java is not None else ("ours",):
            found[kind] = of_kind(java, kind, source, scratch / kind, end)
        each.append(found)
        limit, ours = found["plain"]["bytes"], found["ours"]
        theirs = found.get("rocketmq", {})
        rows.append(
            {
                "round": number + 1,
                "plain MB/s": limit / 1e6,
                "by a buffer": found["buffered"]["bytes"] / 1e6,
                "ours, bytes": ours["bytes"] / 1e6,
                "of plain": ours["bytes"] / limit,
                "ours, in the set": ours["in the set"] / 1e6,
                "theirs, bytes": theirs["bytes"] / 1e6 if theirs else "",
                "theirs, in the set": theirs["in the set"] / 1e6 if theirs else "",
                "× theirs": ours["in the set"] / theirs["in the set"] if theirs else "",
                "cpu s master": ours["cpu master"],
                "cpu s slave": ours["cpu slave"],
            }
        )
    show(f"an empty slave copies {end / 2**30:.2f} GiB, 1 KiB records in {len(TOPICS) * QUEUE_COUNT} queues", rows)
    return {"log_bytes": end, "rounds": each, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--receive", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--buffered", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    receive(given.receive, given.bytes, buffered=given.buffered)


if __name__ == "__main__":
    main()
