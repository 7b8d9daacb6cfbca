"""Start, restart with a large log after kill -9, and idle memory: ours and the real RocketMQ 5.4.0, in turns.

    python -m benchmarks --only peerstart

Each kind has a name server with one controller in it and one broker (controller mode, ASYNC_FLUSH, files of 1 GiB).
A JVM of a broker has 1 GiB of heap, G1 and its whole compiler, a name server's 256 MiB; no heap is touched before it
is used. Milliseconds are from exec; the first send is 1 KiB to a topic that is there. Once in a round the broker has an
empty store and is let alone, then the same broker has a log of so many GiB, is loaded and killed within a moment, and
started again. Both kinds are asked by the same program, which knows only sockets.
"""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import show
from benchmarks.peers.bench_peer import BROKER_HEAP, KINDS, as_a_server
from benchmarks.peers.pipelined import rate, send_frame
from benchmarks.starts.bench_catchup import APACHES_DEFAULTS, KEYS, cpu_seconds, fill
from benchmarks.starts.bench_start import ANSWER_S, MAX_FRAME_BYTES, answer, answers, memory
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import parse_address
from rmqha.wire.frame import FrameParser
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import Process

POLL_S = 0.01
PATIENCE_S = 90.0
BODY = bytes(1024)
LOAD_S = 3.0
NAME_SERVER_HEAP = "256m"


class Group(NamedTuple):
    lab: Lab
    name_server: list[str]
    """Its command line."""
    broker: Node


def milliseconds(what: str, started: float, holds: Callable[[], bool], process: Process) -> float:
    """From `started` (perf_counter) until it holds."""
    while not holds():
        if not process.alive or time.perf_counter() - started > PATIENCE_S:
            raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s\n{process.tail()}")
        time.sleep(POLL_S)
    return (time.perf_counter() - started) * 1000


def leads(address: str) -> bool:
    reply = answer(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return reply is not None and reply.ext.get("controllerLeaderAddress") == address


def takes_a_send(address: str) -> bool:
    parser = FrameParser(MAX_FRAME_BYTES)
    try:
        with socket.create_connection(parse_address(address), ANSWER_S) as connection:
            connection.sendall(send_frame(BODY, 0))
            while data := connection.recv(65536):
                for reply in parser.feed(data):
                    return reply.code == ResponseCode.SUCCESS
    except OSError:
        return False
    return False


def make(java: Java, kind: str, scratch: Path) -> Group:
    """Nothing of it runs yet."""
    lab = Lab(java, scratch)
    if kind == "ours":
        return Group(lab, lab.our_name_server(), lab.our_broker("broker", **KEYS, haMode="cp", totalReplicas="1"))
    broker = lab.java_broker("broker", **KEYS, **APACHES_DEFAULTS)
    broker.command = as_a_server(broker.command, BROKER_HEAP)
    return Group(lab, as_a_server(lab.java_name_server(), NAME_SERVER_HEAP), broker)


def start(group: Group) -> tuple[Process, dict[str, float]]:
    """The name server's process, and the milliseconds of both."""
    lab, broker = group.lab, group.broker
    started = time.perf_counter()
    name_server = lab.start("namesrv", group.name_server)
    found = {
        "name server with controller: leads": milliseconds(
            "the controller leads", started, lambda: leads(lab.controller), name_server
        )
    }
    started = time.perf_counter()
    broker.process = lab.start(broker.name, broker.command)
    asked = answers(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
    found["broker: first answer"] = milliseconds("the broker answers", started, asked, broker.running)
    found["broker: first send acknowledged"] = milliseconds(
        "the broker takes a send", started, lambda: takes_a_send(broker.address), broker.running
    )
    found["broker: CPU until then"] = cpu_seconds(broker) * 1000
    return name_server, found


def threads(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (count,) = re.findall(r"^Threads:\s+(\d+)$", status, re.MULTILINE)
    return int(count)


def idle(name_server: Process, broker: Node, seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    before = cpu_seconds(broker)
    time.sleep(seconds)
    return {
        "idle broker: CPU, % of a core": (cpu_seconds(broker) - before) / seconds * 100,
        "idle broker: RssAnon MiB": memory(broker.running.pid)["RssAnon MiB"],
        "idle broker: threads": threads(broker.running),
        "idle name server with controller: RssAnon MiB": memory(name_server.pid)["RssAnon MiB"],
    }


def of_kind(java: Java, kind: str, scratch: Path, log_bytes: int, idle_s: float) -> dict[str, float]:
    """One round."""
    group = make(java, kind, scratch / "empty")
    try:
        name_server, found = start(group)
        found |= idle(name_server, group.broker, idle_s)
    finally:
        group.lab.close()
    group = make(java, kind, scratch / "filled")
    try:
        group.broker.store.parent.mkdir(parents=True)
        fill(group.broker.store, log_bytes)
        name_server, _ = start(group)
        rate(group.broker, [group.broker], len(BODY), LOAD_S, warm_up_s=0)
        group.broker.running.kill()
        name_server.kill()
        _, again = start(group)
    finally:
        group.lab.close()
        shutil.rmtree(scratch)
    size = f"{log_bytes / 2**30:.3g} GiB after kill -9"
    return found | {f"{size}: {what}": value for what, value in again.items() if what.startswith("broker")}


def peer_starts(scratch: Path, log_bytes: int, idle_s: float, rounds: int) -> dict[str, Any]:
    """Rows of medians and ratios. Raises MissingError without Java and Maven."""
    home = scratch / "java"
    home.mkdir()
    java = Java(home)
    each = [
        {kind: of_kind(java, kind, scratch / kind, log_bytes, idle_s) for kind in order}
        for order in (KINDS if number % 2 == 0 else KINDS[::-1] for number in range(rounds))
    ]
    rows = []
    for what in each[0]["ours"]:
        ratios = [found["ours"][what] / found["rocketmq"][what] for found in each]
        middle = {kind: statistics.median(found[kind][what] for found in each) for kind in KINDS}
        row: dict[str, Any] = {"ms, or as told": what, "ours": middle["ours"], "theirs": middle["rocketmq"]}
        rows.append(row | {"×": statistics.median(ratios), "× from": min(ratios), "to": max(ratios)})
    show(f"start, restart and idle memory: ours and RocketMQ 5.4.0, medians of {rounds} rounds", rows)
    return {"log_bytes": log_bytes, "each": each, "rows": rows}
