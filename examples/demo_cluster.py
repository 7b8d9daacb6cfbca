"""The demo's cluster: everything it does goes through the `rmqha` command, as a user would type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rmqha.ops.local.phases import PHASES, failover_phases
from rmqha.ops.local.preflight import free_ports
from rmqha.wire.state.history import parse_history

GROUP = "broker-a"
CLUSTER_FILE = """\
[cluster]
name = "demo"
haMode = "{mode}"
[namesrv]
listenPort = {namesrv}
embedController = true
[controllers]
listenPort = {controller}
[[group]]
name = "broker-a"
replicas = 3
listenPort = {broker}
[broker]
mappedFileSizeCommitLog = 67108864
diskMaxUsedSpaceRatio = 100
"""
WAIT_TIMEOUT_S = 30.0
POLL_S = 0.2


class DemoError(Exception):
    """The demo cannot go on; its text says why."""


class Cluster:
    """A group of three on free ports in a scratch directory. Leaving the context stops all that it started."""

    def __init__(self, scratch: Path, mode: str) -> None:
        self.scratch = scratch
        self.mode = mode
        self.directory = scratch / "cluster"
        self.senders: list[subprocess.Popen[str]] = []
        base = free_ports(40)
        text = CLUSTER_FILE.format(mode=mode, namesrv=base, controller=base + 1, broker=base + 10)
        (scratch / "demo.toml").write_text(text)
        self._environment = os.environ | {"RMQHA_DIRECTORY": str(self.directory)}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sender in self.senders:
            if sender.poll() is None:
                sender.send_signal(signal.SIGTERM)
                sender.wait()
        if (self.directory / "cluster.json").exists():
            self.rmqha("down", check=False)

    # --- commands ---------------------------------------------------------------------------------------------------
    def _start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "rmqha", *arguments]
        return subprocess.Popen(command, cwd=self.scratch, env=self._environment, text=True, **options)

    def rmqha(self, *arguments: str, check: bool = True, shown: bool = True) -> str:
        """Run one `rmqha` command; what it printed. Its progress goes to the terminal."""
        if shown:
            print(f"$ rmqha {' '.join(arguments)}", flush=True)
        process = self._start(*arguments, stdout=subprocess.PIPE)
        out, _ = process.communicate()
        if check and process.returncode:
            raise DemoError(f"rmqha {' '.join(arguments)} ended with exit code {process.returncode}")
        return out

    def up(self) -> None:
        print(self.rmqha("up", "demo.toml", "--directory", str(self.directory)))

    def send(self, topic: str, file: Path, acked: Path, rate: float) -> None:
        """Start a `rmqha send` that goes on beside the story, as a job of its own: Ctrl-C is for the demo."""
        arguments = ["send", "--topic", topic, "--file", file.name, "--format", "jsonl"]
        arguments += ["--key-field", "id", "--order-by", "lane", "--rate", f"{rate:.0f}/s", "--acked", acked.name]
        print(f"$ rmqha {' '.join(arguments)} &", flush=True)
        self.senders.append(self._start(*arguments, "-o", "json", stdout=subprocess.PIPE, process_group=0))

    def finish_sends(self) -> list[dict[str, Any]]:
        """Wait until all sends have ended; their reports."""
        reports = []
        for sender in self.senders:
            out, _ = sender.communicate()
            if not out:
                raise DemoError(f"a send ended with exit code {sender.returncode}")
            reports.append(json.loads(out))
        return reports

    # --- look -------------------------------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """`rmqha status -o json`."""
        found: dict[str, Any] = json.loads(self.rmqha("status", "-o", "json", check=False, shown=False))
        return found

    def brokers(self) -> list[dict[str, Any]]:
        return [node for node in self.status()["nodes"] if node["kind"] == "broker"]

    def master(self) -> str:
        """The node that is master and accepts sends."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while time.monotonic() < deadline:
            for node in self.brokers():
                if node["role"] == "master" and node["state"].get("writable"):
                    return str(node["node"])
            time.sleep(POLL_S)
        raise DemoError(f"no broker became a writable master within {WAIT_TIMEOUT_S:.0f} s; see rmqha status")

    def wait_level(self) -> int:
        """Wait until all replicas hold and know as committed the same end; that end."""
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while time.monotonic() < deadline:
            brokers = self.brokers()
            if dead := [node["node"] for node in brokers if node["pid"] is None]:
                raise DemoError(f"{', '.join(dead)} died by itself; its log is in {self.directory}/NODE/log (--keep)")
            ends = {node[key] for node in brokers for key in ("maxOffset", "confirmOffset")}
            if len(ends) == 1 and None not in ends:
                return int(ends.pop())
            time.sleep(POLL_S)
        raise DemoError(f"the replicas did not become level within {WAIT_TIMEOUT_S:.0f} s; see rmqha status")

    # --- faults -----------------------------------------------------------------------------------------------------
    def kill_master(self) -> tuple[str, int]:
        """SIGKILL the master: (node, wall stamp)."""
        going_on = sum(sender.poll() is None for sender in self.senders)
        if not going_on:
            raise DemoError("all sends ended before the kill: this machine is too slow or too busy for the demo's pace")
        node = self.master()
        killed = json.loads(self.rmqha("kill", node, "-o", "json"))
        print(f"{node}, the master, is dead; {going_on} sends go on")
        return node, int(killed["killedAtMs"])

    def phases(self, killed_at_ms: int, ack_stamps_ms: list[int]) -> dict[str, int | None]:
        """The failover's phases, from the events that the nodes tell."""
        events = parse_history(json.loads(self.rmqha("history", "-o", "json", check=False, shown=False)))
        return failover_phases(events, killed_at_ms, GROUP, ack_stamps_ms)


def print_phases(killed: str, master: str, phases: dict[str, int | None]) -> None:
    """The timeline of one failover on one line per phase."""
    print(f"failover {killed} -> {master}, milliseconds from the kill:")
    words = {
        "detect_ms": "the controller has found the master dead",
        "elect_ms": "a new master is agreed and durable",
        "role_ms": "the broker has taken the role",
        "writable_ms": "it accepts sends",
        "route_ms": "the name server sends clients there",
        "first_ack_ms": "a sender has an acknowledgement from it",
    }
    for name in PHASES:
        value = phases[name]
        print(f"  {name:<12} {'?' if value is None else value:>6}  {words[name]}")
