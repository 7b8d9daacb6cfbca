"""A broker with many timer messages that wait: memory, CPU while it is idle, and a start after kill -9.

    python -m benchmarks.starts.bench_timers [--count 1000000] [--rounds 5] [--directory DIR]

The messages are due within a day, an hour from now at first, and for ten topics. `known`: it says by request 52036 that
no entry is left to be read, so that whatever is due is delivered. `first`: it has never seen the store. `at rest`: it
dies when nothing has come for a while. `as they came`: it dies when its snapshot is as old as it may be, one message in
32 behind; the old file is put back before each start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import compile_packages, show, summary
from benchmarks.starts.bench_restart import BROKER, DISPATCH_BYTES, LOG_FILE_BYTES, Connection, make_topics, open_store
from benchmarks.starts.bench_start import cpu_ms, memory, wait_for, writable
from rmqha.broker.timers.message import to_timer
from rmqha.broker.timers.snapshot import LEAST_COUNT, SHARE, decode
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.code import RequestCode
from rmqha.model.message import encode_properties, find_property
from rmqha.store.log.record import NewMessage
from rmqha.store.log.record import decode as decode_record
from rmqha.store.meta import sidecar
from rmqha.wire.command import Command

HOST = (b"\x7f\0\0\1", 1)
BATCH_COUNT = 500
TOPIC_COUNT = 10
BODY_BYTES = 128
HOUR_MS = 3_600_000
PRECISION_MS = 1000
DUE_RATE = 1000
DUE_COUNT = 20_000
DUE_AFTER_MS = 15_000
"""Time in which those that come at DUE_RATE are written and the broker starts."""
IDLE_S = 20
SETTLED_CPU_MS = 100
PATIENCE_S = 120


def fill(directory: Path, begin: int, count: int, due_from_ms: int) -> None:
    """Write those numbered from `begin` up to `count`, synced and dispatched, and die as by a kill. They are due within
    a day, or DUE_RATE a second from `due_from_ms` on if that is not 0."""
    store = open_store(directory)
    now_ms = time.time_ns() // 1_000_000
    own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    for first in range(begin, count, BATCH_COUNT):
        messages = []
        for number in range(first, min(count, first + BATCH_COUNT)):
            at_ms = now_ms + HOUR_MS + number * 7919 % (23 * HOUR_MS)
            if due_from_ms:
                at_ms = due_from_ms + number * 1000 // DUE_RATE
            properties = {"UNIQ_KEY": f"7F0000012AF8{number:020d}", "TIMER_DELIVER_MS": str(at_ms), "WAIT": "true"}
            text = encode_properties(properties | own)
            topic = f"Bench{number % TOPIC_COUNT}"
            message = NewMessage(topic, number % 4, bytes(BODY_BYTES), text, now_ms, HOST, HOST)
            messages.append(to_timer(message, at_ms, PRECISION_MS))
        store.append_encoded(store.encode_batch(messages), now_ms)
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            continue
    store.sync()
    os.kill(os.getpid(), signal.SIGKILL)


def known(address: str, count: int) -> Callable[[], bool]:
    """True once nothing is left to be read."""

    def ask() -> bool:
        told = _told(address)
        return bool(told) and told["waiting"] >= count and told["unread"] == 0

    return ask


def _told(address: str) -> dict[str, Any]:
    """The answer to request 52036; {} if there is none yet."""
    try:
        connection = Connection(address)
        try:
            reply = connection.ask(Command(RequestCode.RMQHA_GET_TIMERS, {"version": "1", "topic": "-"}))
        finally:
            connection.close()
    except (OSError, RuntimeError):
        return {}
    return json.loads(bytes(reply.body)) if reply.code == 0 else {}


def timers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    """Figures of those that wait, and of those that come."""
    compile_packages()
    for name in "waiting", "due":
        (scratch / name).mkdir()
    return {"waiting": waiting_timers(scratch / "waiting", count, rounds), "due": due_timers(scratch / "due")}


def due_timers(scratch: Path) -> dict[str, Any]:
    """Lateness (ms) of what comes at DUE_RATE, by the times of the stored copies."""
    late: list[float] = []
    with _cluster(scratch) as cluster:
        broker = _Broker(cluster, {})
        trio.run(cluster.kill, BROKER)
        due_from_ms = time.time_ns() // 1_000_000 + DUE_AFTER_MS
        broker.fill(0, DUE_COUNT, due_from_ms)
        broker.start("due", 0)
        assert time.time_ns() // 1_000_000 < due_from_ms, "the broker was not up in time"
        _until(lambda: _told(broker.address).get("waiting") == 0, time.perf_counter())
        trio.run(cluster.kill, BROKER)
        store = open_store(broker.directory)
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            continue
        for topic, queue_ids in store.queues().items():
            for queue_id in queue_ids if topic.startswith("Bench") else ():
                low, high = store.queue_range(topic, queue_id)
                for phy_offset, _, _ in store.units(topic, queue_id, low, high - low):
                    record = store.record_at(phy_offset)
                    assert record is not None
                    copy = decode_record(record)
                    at_ms = find_property(copy.properties, b"TIMER_DELIVER_MS")
                    if at_ms is not None:  # not of what made the topics
                        late.append(copy.store_timestamp_ms - int(at_ms))
        store.abandon()
    assert len(late) == DUE_COUNT, f"{len(late)} of {DUE_COUNT} came"
    figures = {f"p{share}": sorted(late)[share * (len(late) - 1) // 100] for share in (0, 50, 99, 100)}
    show(f"{DUE_COUNT:,} timer messages come, {DUE_RATE:,} a second", [{"late, ms": "stored", **figures}])
    return figures


@contextmanager
def _cluster(scratch: Path) -> Iterator[Cluster]:
    """A group of one in CP, with the topics."""
    keys = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "autoCreateTopicEnable": True}
    with Cluster.of(quickstart("cp", 1, keys), scratch, quiet=True) as cluster:
        trio.run(cluster.up)
        address = cluster.state.node(BROKER).address
        wait_for(writable(address), time.perf_counter())
        make_topics(address)
        yield cluster


def waiting_timers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    """Rows of milliseconds, and figures of memory and CPU."""
    taken: dict[str, list[float]] = {}
    with _cluster(scratch) as cluster:
        broker = _Broker(cluster, taken)
        empty = memory(broker.pid)["RssAnon MiB"]
        idle = {"none waits": _idle_share(broker.pid)}
        trio.run(cluster.kill, BROKER)
        part = count - count // SHARE
        broker.fill(0, part)
        broker.start("first", part)
        while (unread := count - broker.snapshot_end()) > count // SHARE + LEAST_COUNT:
            time.sleep(0.1)
        trio.run(cluster.kill, BROKER)
        old = broker.snapshot.read_bytes()
        broker.fill(part, count)
        for name in ("as they came", "at rest"):
            for _ in range(rounds):
                if name == "as they came":
                    broker.snapshot.write_bytes(old)
                broker.start(f"after kill -9, {name}", count)
                anon = memory(broker.pid)["RssAnon MiB"]
                trio.run(cluster.kill, BROKER)
            cluster.launch(BROKER)
            while count - broker.snapshot_end() > LEAST_COUNT:
                time.sleep(0.1)
            trio.run(cluster.kill, BROKER)
        cluster.launch(BROKER)
        _until(known(broker.address, count), time.perf_counter())
        idle["they wait"] = _idle_share(broker.pid)
        _without_scrubber(broker.address)
        idle["they wait, scrubBytesPerSecond=0"] = _idle_share(broker.pid)
        anon = max(anon, memory(broker.pid)["RssAnon MiB"])
        snapshot_bytes = broker.snapshot.stat().st_size
    rows = [{"ms": what, **summary(values)} for what, values in taken.items()]
    show(f"{count:,} timer messages wait, n={rounds}; as they came: {unread:,} are read at the start", rows)
    print(f"RssAnon {empty:.1f} MiB empty, {anon:.1f} with them; rmqha.timers has {snapshot_bytes:,} bytes")
    print("idle, of a core: " + ", ".join(f"{what} {share:.2%}" for what, share in idle.items()))
    return {"count": count, "starts": rows, "unread": unread, "empty_mib": empty, "anon_mib": anon, "idle": idle}


class _Broker:
    """The only broker of the cluster; what its starts take goes into `taken`, milliseconds."""

    def __init__(self, cluster: Cluster, taken: dict[str, list[float]]) -> None:
        self._cluster = cluster
        self._taken = taken
        self.address = cluster.state.node(BROKER).address
        self.directory = cluster.store(BROKER)
        self.snapshot = self.directory / "rmqha.timers"

    @property
    def pid(self) -> int:
        return self._cluster.state.node(BROKER).pid

    def fill(self, begin: int, count: int, due_from_ms: int = 0) -> None:
        place = ("--fill", str(self.directory), "--due-from", str(due_from_ms))
        arguments = (*place, "--begin", str(begin), "--count", str(count))
        subprocess.run([sys.executable, "-m", "benchmarks.starts.bench_timers", *arguments], check=False)

    def start(self, name: str, count: int) -> None:
        started = time.perf_counter()
        self._cluster.launch(BROKER)
        for what, condition in (("writable", writable(self.address)), ("known", known(self.address, count))):
            self._taken.setdefault(f"{name}: exec to {what}", []).append(_until(condition, started))
        self._taken.setdefault(f"{name}: CPU until known", []).append(cpu_ms(self.pid))

    def snapshot_end(self) -> int:
        """End of the queue when it was made."""
        if not self.snapshot.exists():
            return 0
        return decode(sidecar.decode(self.snapshot.read_bytes(), "rmqha.timers")).taken_offset


def _idle_share(pid: int) -> float:
    """CPU seconds a second of a process that nobody asks for anything."""
    _settled(pid)
    before = cpu_ms(pid)
    time.sleep(IDLE_S)
    return (cpu_ms(pid) - before) / IDLE_S / 1000


def _without_scrubber(address: str) -> None:
    """Stop the walk that checks the whole log, whoever's messages it holds."""
    connection = Connection(address)
    try:
        reply = connection.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"scrubBytesPerSecond=0\n"))
    finally:
        connection.close()
    assert reply.code == 0, reply


def _settled(pid: int) -> None:
    """Return when a second costs little: what a start leaves for later, as the index of keys, is done."""
    started, before = time.perf_counter(), cpu_ms(pid)
    while time.perf_counter() - started < PATIENCE_S:
        time.sleep(1)
        now = cpu_ms(pid)
        if now - before < SETTLED_CPU_MS:
            return
        before = now


def _until(condition: Callable[[], bool], started: float) -> float:
    """Milliseconds from `started` until it is so."""
    while not condition():
        if time.perf_counter() - started > PATIENCE_S:
            raise RuntimeError("what was waited for did not come")
        time.sleep(0.01)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default the temporary one")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--due-from", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill, arguments.begin, arguments.count, arguments.due_from)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        timers(Path(scratch), arguments.count, arguments.rounds)


if __name__ == "__main__":
    main()
