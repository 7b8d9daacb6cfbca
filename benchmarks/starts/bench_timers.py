"""A broker with many timer messages that wait: memory, CPU while it is idle, and a start after kill -9.

    python -m benchmarks.starts.bench_timers [--count 1000000] [--rounds 5] [--directory DIR]

The messages are due within a day, an hour from now at first, and for ten topics. `known`: it says by request 52036 that
no entry is left to be read, so that whatever is due is delivered. `first`: it has never seen the store.
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
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from benchmarks.starts.bench_restart import BROKER, DISPATCH_BYTES, LOG_FILE_BYTES, Connection, make_topics, open_store
from benchmarks.starts.bench_start import cpu_ms, memory, wait_for, writable
from rmqha.broker.timers.message import to_timer
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.code import RequestCode
from rmqha.model.message import encode_properties
from rmqha.store.log.record import NewMessage
from rmqha.wire.command import Command

HOST = (b"\x7f\0\0\1", 1)
BATCH_COUNT = 500
TOPIC_COUNT = 10
BODY_BYTES = 128
HOUR_MS = 3_600_000
IDLE_S = 20
SETTLED_CPU_MS = 100
PATIENCE_S = 120


def fill(directory: Path, count: int) -> None:
    """Write so many, synced and dispatched, and die as by a kill."""
    store = open_store(directory)
    now_ms = time.time_ns() // 1_000_000
    own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    for first in range(0, count, BATCH_COUNT):
        messages = []
        for number in range(first, min(count, first + BATCH_COUNT)):
            at_ms = now_ms + HOUR_MS + number * 7919 % (23 * HOUR_MS)
            properties = {"UNIQ_KEY": f"7F0000012AF8{number:020d}", "TIMER_DELIVER_MS": str(at_ms), "WAIT": "true"}
            text = encode_properties(properties | own)
            topic = f"Bench{number % TOPIC_COUNT}"
            message = NewMessage(topic, number % 4, bytes(BODY_BYTES), text, now_ms, HOST, HOST)
            messages.append(to_timer(message, at_ms, 1000))
        store.append_encoded(store.encode_batch(messages), now_ms)
        store.set_confirm_offset(store.max_phy_offset)
        while store.dispatch(DISPATCH_BYTES):
            continue
    store.sync()
    os.kill(os.getpid(), signal.SIGKILL)


def known(address: str, count: int) -> Any:
    """True once nothing is left to be read."""

    def ask() -> bool:
        connection = Connection(address)
        try:
            reply = connection.ask(Command(RequestCode.RMQHA_GET_TIMERS, {"version": "1", "topic": "-"}))
        finally:
            connection.close()
        told = json.loads(bytes(reply.body)) if reply.code == 0 else {}
        return bool(told) and told["waiting"] >= count and told["unread"] == 0

    def quietly() -> bool:
        try:
            return ask()
        except (OSError, RuntimeError):
            return False

    return quietly


def waiting_timers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    """Rows of milliseconds, and figures of memory and CPU."""
    taken: dict[str, list[float]] = {}
    keys = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "autoCreateTopicEnable": True}
    with Cluster.of(quickstart("cp", 1, keys), scratch) as cluster:
        trio.run(cluster.up)
        address = cluster.state.node(BROKER).address
        wait_for(writable(address), time.perf_counter())
        make_topics(address)
        empty = memory(cluster.state.node(BROKER).pid)["RssAnon MiB"]
        trio.run(cluster.kill, BROKER)
        directory = cluster.store(BROKER)
        arguments = ("--fill", str(directory), "--count", str(count))
        subprocess.run([sys.executable, "-m", "benchmarks.starts.bench_timers", *arguments], check=False)
        anon = 0.0
        for number in range(rounds + 1):
            name = "after kill -9" if number else "first"
            started = time.perf_counter()
            cluster.launch(BROKER)
            taken.setdefault(f"{name}: exec to writable", []).append(_until(writable(address), started))
            taken.setdefault(f"{name}: exec to known", []).append(_until(known(address, count), started))
            taken.setdefault(f"{name}: CPU until known", []).append(cpu_ms(cluster.state.node(BROKER).pid))
            if not number:
                _until((directory / "rmqha.timers").exists, time.perf_counter())
            pid = cluster.state.node(BROKER).pid
            anon = max(anon, memory(pid)["RssAnon MiB"])
            if number < rounds:
                trio.run(cluster.kill, BROKER)
        _settled(pid)
        before = cpu_ms(pid)
        time.sleep(IDLE_S)
        idle_share = (cpu_ms(pid) - before) / IDLE_S / 1000
        trio.run(cluster.kill, BROKER)
        snapshot_bytes = (directory / "rmqha.timers").stat().st_size
    rows = [{"ms": what, **summary(values)} for what, values in taken.items()]
    show(f"{count:,} timer messages wait, n={rounds}", rows)
    print(f"RssAnon {empty:.1f} MiB empty, {anon:.1f} with them; idle {idle_share:.2%} of a core")
    print(f"rmqha.timers has {snapshot_bytes:,} bytes")
    return {"count": count, "starts": rows, "empty_mib": empty, "anon_mib": anon, "idle_share": idle_share}


def _settled(pid: int) -> None:
    """Return when a second costs little: what a start leaves for later, as the index of keys, is done."""
    started, before = time.perf_counter(), cpu_ms(pid)
    while time.perf_counter() - started < PATIENCE_S:
        time.sleep(1)
        now = cpu_ms(pid)
        if now - before < SETTLED_CPU_MS:
            return
        before = now


def _until(condition: Any, started: float) -> float:
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
    arguments = parser.parse_args()
    if arguments.fill:
        fill(arguments.fill, arguments.count)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        waiting_timers(Path(scratch), arguments.count, arguments.rounds)


if __name__ == "__main__":
    main()
