"""Three controllers, the leading one killed: how long until another answers as leader. Ours and RocketMQ's (DLedger).

    python -m benchmarks --only peercontrollers

All keys at their defaults, in turns. The dead one is started again, and follows, before the next kill. RocketMQ's JVMs
have 256 MiB and their whole compiler.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import show, summary
from benchmarks.peers.bench_load import java_if_there
from benchmarks.peers.bench_peer_start import PATIENCE_S, POLL_S, leads, milliseconds
from benchmarks.starts.bench_catchup import without_c1_only
from rmqha.ops.local.preflight import free_ports
from tests.interop.lab.java import Java
from tests.interop.lab.processes import Process, accepts, ours, until, write_properties

COUNT = 3
SETTLE_S = 4.0
"""A restarted member knows the leader by then."""


class Controllers:
    """Processes by address."""

    def __init__(self, java: Java | None, kind: str, scratch: Path) -> None:
        base = free_ports(COUNT)
        self.addresses = [f"127.0.0.1:{base + number}" for number in range(COUNT)]
        peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.addresses))
        self._log = scratch / "log"
        self._commands: dict[str, list[str]] = {}
        self.running: dict[str, Process] = {}
        for number, address in enumerate(self.addresses):
            properties = {
                "controllerDLegerGroup": "group1",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": str(scratch / f"n{number}"),
                **({"bindAddress": "127.0.0.1"} if kind == "rocketmq" else {}),
            }
            config = write_properties(scratch / f"n{number}.conf", properties)
            self._commands[address] = ours("controller", config)
            if kind == "rocketmq" and java is not None:
                main = "org.apache.rocketmq.controller.ControllerStartup"
                self._commands[address] = without_c1_only(java.command(main, "-c", str(config)))

    def start(self, address: str) -> None:
        self.running[address] = Process(address.rpartition(":")[2], self._commands[address], self._log)

    def leader(self) -> str:
        """The one that says so of itself, "" if none does."""
        return next((address for address in self.addresses if leads(address)), "")

    def end(self) -> None:
        for process in self.running.values():
            process.kill()


def of_kind(java: Java | None, kind: str, scratch: Path, count: int) -> list[float]:
    """Milliseconds of each kill."""
    group = Controllers(java, kind, scratch)
    try:
        for address in group.addresses:
            group.start(address)
        until("a controller leads", lambda: bool(group.leader()), PATIENCE_S, *group.running.values())
        found = []
        for _ in range(count):
            time.sleep(SETTLE_S)
            victim = group.leader()
            others = [address for address in group.addresses if address != victim]
            started = time.perf_counter()
            group.running[victim].kill()
            found.append(
                milliseconds(
                    "another leads",
                    started,
                    lambda others=others: any(leads(address) for address in others),
                    group.running[others[0]],
                )
            )
            group.start(victim)
            until("it listens", lambda victim=victim: accepts(victim), PATIENCE_S, group.running[victim])
        return found
    finally:
        group.end()
        shutil.rmtree(scratch)


def peer_controllers(scratch: Path, count: int, rounds: int) -> dict[str, Any]:
    """Rows of milliseconds; a ratio if RocketMQ could be run."""
    java = java_if_there(scratch)
    kinds = ("ours", "rocketmq") if java is not None else ("ours",)
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            taken[kind] += of_kind(java, kind, scratch / kind, count)
    rows = [{"controllers": kind, "kills": len(values), **summary(values)} for kind, values in taken.items()]
    show(f"leading controller of three killed (polled each {POLL_S * 1000:.0f} ms): ms until another leads", rows)
    ratio = statistics.median(taken["ours"]) / statistics.median(taken["rocketmq"]) if java is not None else None
    return {"rows": rows, "× theirs": ratio, "each": taken}
