"""Apache's Java clients with the settings that may matter, when the master of their only group changes.

All clients run side by side in one JVM, so that each fault is measured with all settings at once. A group of three, CP;
name server and brokers of ours. Faults: the master is killed and stays dead; it is killed and its supervisor starts it
again after a second; a directed switch. Figures: for a producer the longest time without an acknowledgement, and the
errors that its application sees; for a consumer the longest time without a message.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import show, summary
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import Process, until
from tests.process.cluster import LocalCluster

PRODUCERS = {
    "default (30 s)": "default",
    "pollNameServerInterval 10 s": "poll10s:poll=10000",
    "pollNameServerInterval 1 s": "poll1s:poll=1000",
    "pollNameServerInterval 0.2 s": "poll200:poll=200",
    "20 retries, sendMsgTimeout 30 s": "retries:retries=20,timeout=30000",
    "sendLatencyFaultEnable, startDetectorEnable": "detector:detector=true",
    "asks for the route after an error": "refresh:refresh=true",
    "a new producer after an error": "anew:anew=true",
}
CONSUMERS = {
    "push consumer, default (30 s)": "push:consumer=true",
    "push consumer, pollNameServerInterval 1 s": "push1s:consumer=true,poll=1000",
    "the same with pullTimeDelayMillsWhenException 0.1 s": "push1s100:consumer=true,poll=1000,pause=100",
}
TIMEOUT_S = 90
RESTART_S = 1.0
SETTLE_S = 1.0
POLL_S = 30.0
"""How often a Java client asks for the route by default, from its start on: faults come at all times in between."""
Fault = Callable[[LocalCluster, str], int]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _kill(cluster: LocalCluster, master: str) -> int:
    pid = cluster.node(master)["pid"]
    at_ms = _now_ms()
    os.kill(pid, signal.SIGKILL)
    return at_ms


def _kill_and_start(cluster: LocalCluster, master: str) -> int:
    at_ms = _kill(cluster, master)
    time.sleep(RESTART_S)
    _start(cluster, master)
    return at_ms


def _switch(cluster: LocalCluster, master: str) -> int:
    target = next(name for name in ("broker-a-1", "broker-a-2", "broker-a-3") if name != master)
    at_ms = _now_ms()
    done = cluster.rmqha("elect", "broker-a", "--to", target)
    assert done.returncode == 0, done.stderr
    return at_ms


def _start(cluster: LocalCluster, name: str) -> None:
    done = cluster.rmqha("start", name)
    assert done.returncode == 0, done.stderr


FAULTS: dict[str, Fault] = {
    "killed, stays dead": _kill,
    "killed, started again after 1 s": _kill_and_start,
    "directed switch": _switch,
}


class _Said:
    """What the clients have printed since a moment."""

    def __init__(self, client: Process) -> None:
        self._client = client
        self._from = client.output.stat().st_size

    def rows(self) -> list[list[str]]:
        with self._client.output.open("rb") as file:
            file.seek(self._from)
            text = file.read().decode(errors="replace")
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines() if line]

    def works(self, at_ms: int, old_master: str) -> set[str]:
        """Producers with an acknowledged send that began after `at_ms`, consumers with a message of another master."""
        rows = self.rows()
        sent = {row[1] for row in rows if row[0] == "ACK" and int(row[2]) >= at_ms}
        return sent | {row[1] for row in rows if row[0] == "GOT" and row[3] != old_master}

    def longest_silence_ms(self) -> dict[str, int]:
        """By client: the longest time between two acknowledgements or messages."""
        found: dict[str, int] = {}
        last: dict[str, int] = {}
        for row in self.rows():
            if row[0] != "ERROR":
                name, at_ms = row[1], int(row[3] if row[0] == "ACK" else row[2])
                found[name] = max(found.get(name, 0), at_ms - last.get(name, at_ms))
                last[name] = at_ms
        return found

    def errors(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows():
            if row[0] == "ERROR":
                found[row[1]] = found.get(row[1], 0) + 1
        return found


def _await_phase(started_s: float, phase: float) -> None:
    """Until that part of the clients' time between two polls is over."""
    time.sleep((phase * POLL_S - (time.monotonic() - started_s)) % POLL_S)


def _round(cluster: LocalCluster, client: Process, fault: Fault) -> dict[str, tuple[int, int]]:
    """(milliseconds, errors) by client, over a second before the fault and all after it until all clients work. A dead
    master is then started again."""
    master = cluster.master()
    address = cluster.node(master)["address"]
    said = _Said(client)
    time.sleep(SETTLE_S)
    at_ms = fault(cluster, master)
    names = [text.partition(":")[0] for text in (*PRODUCERS.values(), *CONSUMERS.values())]
    until("all clients work again", lambda: set(names) <= said.works(at_ms, address), TIMEOUT_S, client)
    found, errors = said.longest_silence_ms(), said.errors()
    _start(cluster, master)
    time.sleep(SETTLE_S)
    return {name: (found[name], errors.get(name, 0)) for name in names}


def _series(java: Java, scratch: Path, fault: Fault, count: int) -> list[dict[str, tuple[int, int]]]:
    cluster = LocalCluster(scratch, name="javaclients")
    lab = Lab(java, scratch)
    try:
        done = cluster.up()
        assert done.returncode == 0, done.stderr
        arguments = (cluster.namesrv, "Settings", *PRODUCERS.values(), *CONSUMERS.values())
        command = java.command("Settings", *arguments, heap="512m", properties={"interop.level": "OFF"})
        started_s = time.monotonic()
        client = lab.start("settings", command)
        said = _Said(client)
        wanted = {text.partition(":")[0] for text in (*PRODUCERS.values(), *CONSUMERS.values())}
        until(
            "all clients work",
            lambda: wanted <= said.works(0, ""),
            TIMEOUT_S,
            client,
        )
        rounds = []
        for number in range(count):
            # after a round it is late for the next phase: the order goes backwards, so that the wait is short
            _await_phase(started_s, 1 - (number + 0.5) / count)
            rounds.append(_round(cluster, client, fault))
        return rounds
    finally:
        lab.close()
        cluster.down()


def java_clients(scratch: Path, count: int) -> dict[str, Any]:
    """`count` rounds of each fault. Raises MissingError without Java and Maven."""
    java = Java(scratch)
    found: dict[str, Any] = {}
    for title, fault in FAULTS.items():
        directory = scratch / title.replace(" ", "-").replace(",", "")
        directory.mkdir()
        rounds = _series(java, directory, fault, count)
        rows = []
        for label, text in (PRODUCERS | CONSUMERS).items():
            outcomes = [item[text.partition(":")[0]] for item in rounds]
            errors = sorted(item[1] for item in outcomes)[len(outcomes) // 2]
            rows.append({"client": label, "n": count, **summary([item[0] for item in outcomes]), "errors": errors})
        show(f"{title}: longest silence in ms, errors seen by the application (median)", rows)
        found[title] = {"rows": rows, "each": rounds}
    return found
