"""A broker with a large store, killed while it writes: from exec to serving again, and the memory that it takes.

    python benchmarks/starts/bench_restart.py [--bytes 4294967296] [--rounds 3] [--directory DIR] [--json FILE]

The store has log files of 1 GiB, 1 KiB records in 8 topics of 4 queues each, and is written by a process that saves as
a broker does, until kill -9 meets it up to a second after it has written so many bytes. What the checks read of it is
put back before each start, so that every start finds what the kill left. `power lost` is the same with another boot id
in the sidecar; the page cache is still warm. Serving = a group of one in CP mode whose master takes sends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from benchmarks.kernels.bench_store import BATCH_RECORDS, HOST, PROPERTIES, RECORD_BYTES
from benchmarks.starts.bench_start import answers, memory, wait_for, writable
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.disk import HostDisk
from rmqha.model.code import RequestCode
from rmqha.model.identity import parse_address
from rmqha.store.config import StoreConfig
from rmqha.store.log.record import NewMessage
from rmqha.store.meta import sidecar
from rmqha.store.store import Store
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.tracer import SilentTracer

LOG_FILE_BYTES = 1 << 30
TOPICS = tuple(f"Bench{number}" for number in range(8))
QUEUE_COUNT = 4
FLUSH_S = 0.5
DISPATCH_BYTES = 512 * 1024
BROKER = "broker-a-1"
MARKS = ("rmqha.progress", "rmqha.end", "checkpoint", "rmqha.boot", "abort")
"""What a start writes before and after its checks."""
MAX_FRAME_BYTES = 16 * 1024 * 1024


def open_store(directory: Path) -> Store:
    return Store.open(HostDisk(directory), StoreConfig(mapped_file_size_commit_log=LOG_FILE_BYTES), SilentTracer())


# --- child processes --------------------------------------------------------------------------------------------------
def fill(directory: Path, size_bytes: int) -> None:
    """Write until killed; say so once `size_bytes` are there."""
    store = open_store(directory)

    def flush() -> None:
        while True:
            time.sleep(FLUSH_S)
            store.sync()

    threading.Thread(target=flush, daemon=True).start()
    body_bytes = RECORD_BYTES - 91 - len(TOPICS[0]) - len(PROPERTIES)
    batches = [
        [NewMessage(topic, queue_id, os.urandom(body_bytes), PROPERTIES, 1, HOST, HOST) for _ in range(BATCH_RECORDS)]
        for queue_id in range(QUEUE_COUNT)
        for topic in TOPICS
    ]
    encoded = [store.encode_batch(messages) for messages in batches]
    number, told = 0, False
    while True:
        store.append_encoded(encoded[number % len(encoded)], time.time_ns() // 1_000_000)
        number += 1
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            continue
        if not told and store.max_phy_offset >= size_bytes:
            told = True
            print("filled", flush=True)


def open_once(directory: Path) -> None:
    """Print what one opening took and found, and die as by a kill."""
    started = time.perf_counter()
    store = open_store(directory)
    seconds = time.perf_counter() - started
    found = {
        "ms": seconds * 1000,
        "cpu_ms": time.process_time() * 1000,
        "log_bytes": store.max_phy_offset,
        "checked_bytes": store.max_phy_offset - store.recovery.checked_from,
        "lines": store.recovery.lines,
        "RssAnon MiB": memory(os.getpid())["RssAnon MiB"],
    }
    print(json.dumps(found), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def remade(directory: Path, marks: Marks) -> dict[str, Any]:
    """An opening that finds no queues: all of the log is dispatched again."""
    shutil.rmtree(directory / "consumequeue")
    marks.put_back(power_lost=False)
    with child("--open", directory) as opener:
        found: dict[str, Any] = json.loads(opener.communicate()[0])
    return found


def child(option: str, directory: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.starts.bench_restart", option, str(directory), *more],
        stdout=subprocess.PIPE,
        text=True,
    )


def fill_and_kill(directory: Path, size_bytes: int) -> None:
    with child("--fill", directory, "--bytes", str(size_bytes)) as filler:
        assert filler.stdout is not None
        select.select([filler.stdout], [], [])
        if filler.stdout.readline() != "filled\n":
            raise RuntimeError(f"the store was not filled: exit code {filler.wait()}")
        time.sleep(random.random())
        filler.kill()


# --- the broker -------------------------------------------------------------------------------------------------------
class Connection:
    """One request at a time, without an event loop."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(parse_address(address), 10)
        self._parser = FrameParser(MAX_FRAME_BYTES)

    def ask(self, command: Command) -> Command:
        self._socket.sendall(encode_frame(command))
        while data := self._socket.recv(1 << 20):
            for reply in self._parser.feed(data):
                return reply
        raise RuntimeError("the broker closed the connection")

    def close(self) -> None:
        self._socket.close()


def make_topics(address: str) -> None:
    """By a message for each."""
    connection = Connection(address)
    for topic in TOPICS:
        fields = {"a": "P", "b": topic, "c": "TBW102", "d": str(QUEUE_COUNT), "e": "0", "f": "0", "g": "1", "h": "0"}
        ext = {**fields, "i": "", "j": "0", "k": "false", "m": "false"}
        reply = connection.ask(Command(RequestCode.SEND_MESSAGE_V2, ext, b"x"))
        if reply.code:
            raise RuntimeError(f"topic {topic} was not made: {reply.remark}")
    connection.close()


def read_all(address: str) -> int:
    """Pull every queue from its beginning to its end; the bytes that came."""
    connection = Connection(address)
    got = 0
    for topic in TOPICS:
        for queue_id in range(QUEUE_COUNT):
            offset, end = 0, 1
            while offset < end:
                fields = {"consumerGroup": "G", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)}
                more = {"maxMsgNums": "1024", "maxMsgBytes": str(1 << 20), "sysFlag": "4", "subscription": "*"}
                reply = connection.ask(Command(RequestCode.PULL_MESSAGE, {**fields, **more, "subVersion": "0"}))
                got += len(reply.body)
                offset, end = int(reply.ext["nextBeginOffset"]), int(reply.ext["maxOffset"])
    connection.close()
    return got


class Marks:
    """The small files that a start changes, as the kill left them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._content = {name: (directory / name).read_bytes() for name in MARKS}

    def put_back(self, *, power_lost: bool) -> None:
        for name, content in self._content.items():
            (self._directory / name).write_bytes(content)
        if power_lost:
            disk = HostDisk(self._directory)
            fields = sidecar.read(disk, "rmqha.boot") or {}
            sidecar.write(disk, "rmqha.boot", {**fields, "boot_id": "another"})


def restarts(scratch: Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Rows of milliseconds, of memory, and what the openings said."""
    taken: dict[str, list[float]] = {}
    keys = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "autoCreateTopicEnable": True}
    with Cluster.of(quickstart("cp", 1, keys), scratch) as cluster:
        trio.run(cluster.up)
        address = cluster.state.node(BROKER).address
        wait_for(writable(address), time.perf_counter())
        make_topics(address)
        trio.run(cluster.kill, BROKER)
        directory = cluster.store(BROKER)
        fill_and_kill(directory, size_bytes)
        marks = Marks(directory)
        openings = []
        for _ in range(rounds):
            for power_lost, after in ((False, "after kill -9"), (True, "after a loss of power")):
                marks.put_back(power_lost=power_lost)
                with child("--open", directory) as opener:
                    found = json.loads(opener.communicate()[0])
                openings.append(found)
                taken.setdefault(f"{after}: the store alone", []).append(found["ms"])
                marks.put_back(power_lost=power_lost)
                started = time.perf_counter()
                cluster.launch(BROKER)
                answered = wait_for(answers(address, RequestCode.RMQHA_GET_REPLICA_STATE), started)
                taken.setdefault(f"{after}: exec to first answer", []).append(answered * 1000)
                taken.setdefault(f"{after}: exec to writable", []).append(wait_for(writable(address), started) * 1000)
                at_start = memory(cluster.state.node(BROKER).pid)
                trio.run(cluster.kill, BROKER)
        cluster.launch(BROKER)
        wait_for(writable(address), time.perf_counter())
        started = time.perf_counter()
        read = read_all(address)
        seconds = time.perf_counter() - started
        after_reading = memory(cluster.state.node(BROKER).pid)
        trio.run(cluster.kill, BROKER)
        without_queues = remade(directory, marks)
    rows = [{"ms": what, **summary(values)} for what, values in taken.items()]
    sizes = f"{openings[0]['log_bytes'] / 2**30:.2f} GiB, {openings[0]['checked_bytes'] / 2**20:.1f} MiB to check"
    show(f"restart, {sizes}, n={rounds}", rows)
    memories = [{"broker": "after start", **at_start}, {"broker": "after all was pulled", **after_reading}]
    show(f"memory; {read / 2**30:.2f} GiB pulled in {seconds:.0f} s", memories)
    rates = {clock: without_queues["log_bytes"] / without_queues[clock] / 1000 for clock in ("ms", "cpu_ms")}
    print(f"\nqueues made anew: {rates['ms']:.0f} MB/s of log by the wall clock, {rates['cpu_ms']:.0f} by CPU seconds")
    return {
        "remade": without_queues,
        "restart": rows,
        "memory": memories,
        "openings": openings,
        "pulled_bytes": read,
        "pull_seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=4 << 30, help="of log (default 4 GiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default the temporary one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fill is not None:
        fill(given.fill, given.bytes)
    if given.open is not None:
        open_once(given.open)
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="rmqha-bench-") as name:
        figures = restarts(Path(name), given.bytes, given.rounds)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
