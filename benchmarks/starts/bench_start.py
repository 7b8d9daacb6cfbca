"""From exec to the first answered request, beside the start of a bare interpreter; and the memory of an idle group."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks.figures import show, summary
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import parse_address
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.lenient_json import loads

POLL_S = 0.002
ANSWER_S = 1.0
PATIENCE_S = 20.0
MAX_FRAME_BYTES = 4 * 1024 * 1024
IDLE_S = 8.0
KIB = 1024


def answer(address: str, code: RequestCode) -> Command | None:
    """One request on a connection of its own, without an event loop; None if nobody answers yet."""
    parser = FrameParser(MAX_FRAME_BYTES)
    try:
        with socket.create_connection(parse_address(address), ANSWER_S) as connection:
            connection.sendall(encode_frame(Command(code)))
            while data := connection.recv(65536):
                for command in parser.feed(data):
                    return command
    except OSError:
        return None
    return None


def wait_for(what: Callable[[], bool], started: float) -> float:
    """Seconds from `started` until `what` is true."""
    while not what():
        if time.perf_counter() - started > PATIENCE_S:
            raise RuntimeError(f"no answer after {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return time.perf_counter() - started


def answers(address: str, code: RequestCode) -> Callable[[], bool]:
    def ask() -> bool:
        reply = answer(address, code)
        return reply is not None and reply.code == ResponseCode.SUCCESS

    return ask


def writable(address: str) -> Callable[[], bool]:
    def ask() -> bool:
        reply = answer(address, RequestCode.RMQHA_GET_REPLICA_STATE)
        return reply is not None and bool(loads(bytes(reply.body))["writable"])

    return ask


def cpu_ms(pid: int) -> float:
    """CPU that a process has used so far, which a busy machine does not stretch as it does the wall clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def start_times(scratch: Path, rounds: int) -> dict[str, Any]:
    """A name server with its controller and the only broker of a group, killed and started again `rounds` times."""
    taken: dict[str, list[float]] = {
        "python -c pass": [],
        "name server with controller: first answer": [],
        "broker: first answer": [],
        "broker: writable": [],
        "name server with controller: CPU so far": [],
        "broker: CPU so far": [],
    }
    bare, name_server, first, ready, name_server_cpu, broker_cpu = taken.values()
    with Cluster.of(quickstart("cp", 1), scratch) as cluster:
        ns, broker = cluster.state.node("ns-1"), cluster.state.node("broker-a-1")
        for _ in range(rounds):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare.append((time.perf_counter() - started) * 1000)
            started = time.perf_counter()
            cluster.launch("ns-1")
            asked = answers(ns.address, RequestCode.GET_BROKER_CLUSTER_INFO)
            name_server.append(wait_for(asked, started) * 1000)
            name_server_cpu.append(cpu_ms(cluster.state.node("ns-1").pid))
            started = time.perf_counter()
            cluster.launch("broker-a-1")
            asked = answers(broker.address, RequestCode.RMQHA_GET_REPLICA_STATE)
            first.append(wait_for(asked, started) * 1000)
            ready.append(wait_for(writable(broker.address), started) * 1000)
            broker_cpu.append(cpu_ms(cluster.state.node("broker-a-1").pid))
            trio.run(cluster.kill, "ns-1", "broker-a-1")
    limit = summary(bare)["median"]
    rows = []
    for what, values in taken.items():
        figures = summary(values)
        rows.append({"from exec, ms": what, **figures, "× bare Python": figures["median"] / limit})
    show(f"process start, n={rounds}", rows)
    return {"rounds": rounds, "start": rows}


def memory(pid: int) -> dict[str, float]:
    """MiB of a process: private memory, and mapped files apart."""
    text = Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(value) for name, value in re.findall(r"^(Rss\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return {
        "RssAnon MiB": kib["RssAnon"] / KIB,
        "RssFile MiB": kib["RssFile"] / KIB,
        "RssShmem MiB": kib["RssShmem"] / KIB,
    }


def idle_memory(scratch: Path, quick: bool) -> dict[str, Any]:
    """A group of three that nobody uses, a few seconds after its start."""
    with Cluster.of(quickstart("cp", broker={"mappedFileSizeCommitLog": 64 * KIB * KIB}), scratch) as cluster:
        trio.run(cluster.up)
        time.sleep(IDLE_S / 4 if quick else IDLE_S)
        rows = [{"idle process": node.name, **memory(node.pid)} for node in cluster.state.nodes.values()]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bare:
        time.sleep(1)
        rows.insert(0, {"idle process": "bare Python", **memory(bare.pid)})
        bare.communicate(b"\n")
    show("idle memory (quick start, CP, three brokers)", rows)
    return {"memory": rows}
