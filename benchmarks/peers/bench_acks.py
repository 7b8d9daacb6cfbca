"""Sends that three replicas hold before they are acknowledged, per second: ours in CP, and the real RocketMQ 5.4.0.

    python -m benchmarks --only acks

64 senders on 8 connections, each with one message under way; the same frames, by one process that knows only sockets,
go to both kinds in turns. RocketMQ: controller mode, SYNC_MASTER, allAckInSyncStateSet=true, all else at its defaults,
the JIT with all its tiers. Both: ASYNC_FLUSH, files of 1 GiB. Every answer is looked at: only SEND_OK counts, "broker
busy" (RocketMQ's for what waited 200 ms in its queue) is sent again, anything else voids the run.

    python -m benchmarks --only levels

The same for three replicas of which the master alone acknowledges, and for one replica that syncs first (SYNC_FLUSH).
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import show
from benchmarks.starts.bench_catchup import KEYS, cpu_seconds, without_c1_only
from rmqha.model.code import RequestCode
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from tests.interop.lab.group import whole_set
from tests.interop.lab.java import Java, MissingError
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import until

CONNECTIONS = 8
UNDER_WAY = 8
"""For each connection."""
SIZES = (128, 1024)
WARM_UP_S = 10.0
TOPIC = "Acks"
QUEUE_COUNT = 4
START_S = 60
READ_BYTES = 1 << 16
OURS = {"haMode": "cp", "totalReplicas": "3"}
THEIRS = {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "inSyncReplicas": "3"}


class Level(NamedTuple):
    """What an acknowledgement means, in the keys of both kinds."""

    title: str
    ours: dict[str, str]
    theirs: dict[str, str]
    replicas: int = 3


ALL = Level("acknowledged by three of three", OURS, THEIRS)
OTHERS = (
    Level("three replicas, the master acknowledges", {"haMode": "ap", "totalReplicas": "3"}, {}),
    Level(
        "one replica, SYNC_FLUSH",
        {"haMode": "ap", "totalReplicas": "1", "flushDiskType": "SYNC_FLUSH"},
        {"flushDiskType": "SYNC_FLUSH"},
        1,
    ),
)


def send_frame(body: bytes, queue_id: int) -> bytes:
    """One message to TOPIC, which is made by it if it has to."""
    fields = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": str(QUEUE_COUNT), "e": str(queue_id), "f": "0", "g": "1"}
    more = {"h": "0", "i": f"UNIQ_KEY\x01{'0' * 32}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "false"}
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, {**fields, **more}, body))


class Connection:
    """Keeps UNDER_WAY requests of the same frame on their way."""

    def __init__(self, address: str, body: bytes, queue_id: int) -> None:
        self._frame = send_frame(body, queue_id)
        self.socket = socket.create_connection(parse_address(address), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting = bytearray()
        self.count = self.busy_count = 0

    def start(self) -> None:
        self.socket.sendall(self._frame * UNDER_WAY)

    def readable(self) -> None:
        """Count the answers that are whole, and send as many again."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the broker closed the connection")
        self._waiting += data
        at = whole = 0
        while len(self._waiting) - at >= 8:
            end = at + 4 + int.from_bytes(self._waiting[at : at + 4], "big")
            if end > len(self._waiting):
                break
            if self._waiting.find(b'"code":2,', at, end) >= 0:
                self.busy_count += 1
            elif self._waiting.find(b'"code":0,', at, end) >= 0:
                self.count += 1
            else:
                raise RuntimeError(f"refused: {bytes(self._waiting[at:end])!r}")
            at = end
            whole += 1
        del self._waiting[:at]
        if whole:
            self.socket.sendall(self._frame * whole)


def rate(
    master: Node, brokers: list[Node], size_bytes: int, seconds: float, warm_up_s: float = WARM_UP_S
) -> dict[str, float]:
    """Acknowledged a second, and microseconds of CPU for each by the brokers together."""
    body = os.urandom(size_bytes)
    connections = [Connection(master.address, body, number % QUEUE_COUNT) for number in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.start()
    counted, cpu_before = 0, 0.0
    began_at, until_at = time.perf_counter(), time.perf_counter() + warm_up_s + seconds
    measured_at = 0.0
    while (now := time.perf_counter()) < until_at:
        if not measured_at and now >= began_at + warm_up_s:
            measured_at = now
            counted = sum(item.count for item in connections)
            cpu_before = sum(map(cpu_seconds, brokers))
        for key, _ in selector.select(1):
            key.data.readable()
    done = sum(item.count for item in connections) - counted
    cpu = sum(map(cpu_seconds, brokers)) - cpu_before
    for connection in connections:
        connection.socket.close()
    busy = sum(item.busy_count for item in connections)
    return {"per second": done / (now - measured_at), "cpu us": cpu / done * 1e6, "busy": busy}


def brokers_of(lab: Lab, kind: str, ours: dict[str, str], theirs: dict[str, str], count: int = 3) -> list[Node]:
    """Brokers of one kind, all in the SyncStateSet, one of them master; `ours` and `theirs` are their keys."""
    names = [f"{kind}-{number}" for number in range(count)]
    if kind == "ours":
        brokers = [lab.our_broker(name, **KEYS, **ours) for name in names]
    else:
        brokers = [lab.java_broker(name, **KEYS, **theirs) for name in names]
    for node in brokers:
        node.command = without_c1_only(node.command)
        lab.run(node)
    whole_set(lab, *brokers)
    until("there is a master", lambda: bool(lab.master()), START_S)
    return brokers


def of_kind(java: Java | None, kind: str, scratch: Path, seconds: float, level: Level) -> dict[int, dict[str, float]]:
    lab = Lab(java, scratch)
    try:
        lab.start_our_name_server()
        brokers = brokers_of(lab, kind, level.ours, level.theirs, level.replicas)
        master = next(node for node in brokers if node.address == lab.master())
        return {size: rate(master, brokers, size, seconds) for size in SIZES}
    finally:
        lab.close()
        shutil.rmtree(scratch)


def java_if_there(scratch: Path) -> Java | None:
    """Says so where the real RocketMQ cannot be had."""
    home = scratch / "java"
    home.mkdir()
    try:
        return Java(home)
    except MissingError as error:
        print(f"without the real RocketMQ: {error}")
        return None


def acks(scratch: Path, seconds: float, rounds: int) -> dict[str, Any]:
    java = java_if_there(scratch)
    each, rows = _measured(java, scratch, seconds, rounds, ALL)
    return {"seconds": seconds, "each": each, "rows": rows}


def levels(scratch: Path, seconds: float, rounds: int) -> dict[str, Any]:
    java = java_if_there(scratch)
    found = {level.title: _measured(java, scratch, seconds, rounds, level) for level in OTHERS}
    rows = [{"acknowledgement": title, **row} for title, (_, made) in found.items() for row in made]
    return {"seconds": seconds, "each": {title: each for title, (each, _) in found.items()}, "rows": rows}


def _measured(
    java: Java | None, scratch: Path, seconds: float, rounds: int, level: Level
) -> tuple[list[dict[str, dict[int, dict[str, float]]]], list[dict[str, Any]]]:
    """Each round by kind and size, and the rows of medians."""
    kinds = ("ours", "rocketmq") if java is not None else ("ours",)
    each = [{kind: of_kind(java, kind, scratch / kind, seconds, level) for kind in kinds} for _ in range(rounds)]
    rows = []
    for size in SIZES:
        median = {
            kind: {
                name: statistics.median(found[kind][size][name] for found in each) for name in ("per second", "cpu us")
            }
            for kind in kinds
        }
        row: dict[str, Any] = {"bytes": size}
        for kind in kinds:
            row[f"{kind}, per second"] = median[kind]["per second"]
            row[f"{kind}, CPU us each"] = median[kind]["cpu us"]
        if "rocketmq" in kinds:
            row["× theirs"] = median["ours"]["per second"] / median["rocketmq"]["per second"]
        rows.append(row)
    show(f"{CONNECTIONS * UNDER_WAY} senders, {level.title}, median of {rounds}", rows)
    return each, rows
