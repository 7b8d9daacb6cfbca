"""Sends by a client that costs next to nothing, to groups of ours and of the real RocketMQ 5.4.0, in turns, all warm.

    python -m benchmarks --only load
    python -m benchmarks.peers.bench_load --level one --warm 20 --rounds 3 --seconds 8

The client is benchmarks/load/load.rs, compiled by rustc; without one this is left out. Both groups of a level stay up
over all its rows: name server of ours, brokers with files of 1 GiB, RocketMQ with all tiers of its compiler. Each kind
gets WARM_S of load first, and each row RAMP_S of its own; a round measures a row on the one, then on the other, and
changes who is first. Levels: one replica; three of which all acknowledge; three of which the master does; one replica
with SYNC_FLUSH. CPU is that of each broker for a message, the master first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import measured, show
from benchmarks.starts.bench_catchup import APACHES_DEFAULTS, KEYS, cpu_seconds, without_c1_only
from rmqha.host.kernel_choice import VARIABLE, choose_kernel
from tests.interop.lab.group import whole_set
from tests.interop.lab.java import Java, MissingError
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import Process, until

SOURCE = Path(__file__).parents[1] / "load" / "load.rs"
QUEUE_COUNT = 4
WARM_S = 20
RAMP_S = 2
COMPILE_TIMEOUT_S = 120
START_S = 60
SLACK_S = 60


class Row(NamedTuple):
    """A load: connections, requests under way on each, bytes of a body, messages of a request."""

    connections: int
    window: int
    size_bytes: int
    batch: int = 1

    @property
    def title(self) -> str:
        batch = f", batches of {self.batch}" if self.batch > 1 else ""
        return f"{self.connections} × {self.window}, {self.size_bytes} B{batch}"


class Level(NamedTuple):
    """An acknowledgement, in the keys of both kinds, and what is asked of it."""

    title: str
    ours: dict[str, str]
    theirs: dict[str, str]
    replicas: int
    rows: tuple[Row, ...]


_SINGLES = Row(8, 8, 128), Row(8, 8, 1024), Row(1, 64, 128)
LEVELS = {
    "one": Level(
        "one replica", {"haMode": "ap", "totalReplicas": "1"}, {}, 1, (*_SINGLES, Row(8, 2, 128, 32), Row(1, 1, 128))
    ),
    "all": Level(
        "acknowledged by three of three",
        {"haMode": "cp", "totalReplicas": "3"},
        {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true", "inSyncReplicas": "3"},
        3,
        (*_SINGLES, Row(1, 1, 128)),
    ),
    "master": Level("three replicas, the master acknowledges", {"haMode": "ap", "totalReplicas": "3"}, {}, 3, _SINGLES),
    "sync": Level(
        "one replica, SYNC_FLUSH",
        {"haMode": "ap", "totalReplicas": "1", "flushDiskType": "SYNC_FLUSH"},
        {"flushDiskType": "SYNC_FLUSH"},
        1,
        _SINGLES,
    ),
}


def brokers_of(lab: Lab, kind: str, ours: dict[str, str], theirs: dict[str, str], count: int = 3) -> list[Node]:
    """Brokers of one kind, all in the SyncStateSet, one of them master; `ours` and `theirs` are their keys."""
    names = [f"{kind}-{number}" for number in range(count)]
    if kind == "ours":
        brokers = [lab.our_broker(name, **KEYS, **ours) for name in names]
    else:
        brokers = [lab.java_broker(name, **KEYS, **APACHES_DEFAULTS, **theirs) for name in names]
    for node in brokers:
        node.command = without_c1_only(node.command)
        lab.run(node)
    whole_set(lab, *brokers)
    until("there is a master", lambda: bool(lab.master()), START_S)
    return brokers


def java_if_there(scratch: Path) -> Java | None:
    """Says so where the real RocketMQ cannot be had."""
    home = scratch / "java"
    home.mkdir()
    try:
        return Java(home)
    except MissingError as error:
        print(f"without the real RocketMQ: {error}")
        return None


def compiled(scratch: Path) -> Path:
    """The load client as a program. Raises MissingError where rustc is not there."""
    rustc = shutil.which("rustc")
    if rustc is None:
        raise MissingError("the load client needs rustc on PATH (Debian: rustc)")
    program = scratch / "load"
    command = [rustc, "-O", "--edition", "2021", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"rustc does not compile {SOURCE}: {done.stderr}")
    return program


class Group:
    """The brokers of one kind, up until `close`."""

    def __init__(self, java: Java | None, kind: str, scratch: Path, level: Level) -> None:
        self._scratch = scratch
        self.lab = Lab(java, scratch)
        try:
            self.lab.start_our_name_server()
            self.brokers = brokers_of(self.lab, kind, level.ours, level.theirs, level.replicas)
            address = self.lab.master()
            self.brokers.sort(key=lambda node: node.address != address)
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> Node:
        return self.brokers[0]

    def close(self) -> None:
        self.lab.close()
        shutil.rmtree(self._scratch)

    def load(self, program: Path, row: Row, warm_s: int, seconds: int) -> dict[str, Any]:
        """Messages a second, µs of CPU for each by broker, and what the client tells of times in µs."""
        topic = f"Load{row.size_bytes}x{row.batch}"
        numbers = (QUEUE_COUNT, row.connections, row.window, row.size_bytes, row.batch, warm_s, seconds)
        client = Process("load", [str(program), self.master.address, topic, *map(str, numbers)], self._scratch / "log")
        try:
            until("the load is warm", lambda: "GO" in client.lines(), warm_s + SLACK_S, client)
            before = [cpu_seconds(node) for node in self.brokers]
            until("the load is done", lambda: len(client.lines()) > 1, seconds + SLACK_S, client)
            cpu = [cpu_seconds(node) - start for node, start in zip(self.brokers, before, strict=True)]
        finally:
            client.kill()
        found: dict[str, Any] = dict(pair.split("=") for pair in client.lines()[1].split()[1:])
        count, taken_s = int(found["count"]), float(found["seconds"])
        if not count:
            raise RuntimeError(f"nothing was acknowledged: {client.tail()}")
        return {
            "per second": count / taken_s,
            "cpu us": [each / count * 1e6 for each in cpu],
            **{name: float(found[name]) for name in ("busy", "p50", "p99", "max")},
        }


def chosen_kernel() -> str:
    """Name of the kernel that brokers of ours will run. Raises MissingError for one that nobody asked for: a library of
    other sources costs a broker half of its rate, and nobody sees it in the figures."""
    choice = choose_kernel()
    if choice.fallback_reason:
        raise MissingError(f"{choice.fallback_reason}; {VARIABLE}=python measures the kernel in Python")
    return choice.name


def load(scratch: Path, seconds: int, rounds: int, warm_s: int = WARM_S, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Rows of medians and of ratios. Raises MissingError without rustc, or without the kernel that is asked for."""
    kernel = chosen_kernel()
    print(f"kernel: {kernel}", flush=True)
    program = compiled(scratch)
    java = java_if_there(scratch)
    kinds = ("ours", "rocketmq") if java is not None else ("ours",)
    rows: list[dict[str, Any]] = []
    each: dict[str, list[dict[str, Any]]] = {}
    for name in names or tuple(LEVELS):
        level = LEVELS[name]
        found = _level(java, kinds, scratch, program, level, seconds, rounds, warm_s)
        each[name] = found
        made = [_row(level, row, kinds, found) for row in level.rows]
        show(f"{level.title}: medians of {rounds} rounds of {seconds} s, after {warm_s} s of load", made)
        rows += made
    return {"seconds": seconds, "warm_seconds": warm_s, "kernel": kernel, "each": each, "rows": rows}


def _level(
    java: Java | None,
    kinds: tuple[str, ...],
    scratch: Path,
    program: Path,
    level: Level,
    seconds: int,
    rounds: int,
    warm_s: int,
) -> list[dict[str, Any]]:
    """Figures that each run has found."""
    groups: dict[str, Group] = {}
    found = []
    try:
        for kind in kinds:
            groups[kind] = Group(java if kind == "rocketmq" else None, kind, scratch / kind, level)
        for kind in kinds:
            groups[kind].load(program, level.rows[0], warm_s, 1)
        for number in range(rounds):
            for row in level.rows:
                for kind in kinds if number % 2 == 0 else kinds[::-1]:
                    told = groups[kind].load(program, row, RAMP_S, seconds)
                    found.append({"row": row, "kind": kind, **told})
                    cpu = " + ".join(f"{value:.1f}" for value in told["cpu us"])
                    print(f"  {row.title}, {kind}: {told['per second']:,.0f}/s, {cpu} µs", flush=True)
    finally:
        for group in groups.values():
            group.close()
    return found


def _row(level: Level, row: Row, kinds: tuple[str, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    def of(kind: str) -> list[dict[str, Any]]:
        return [item for item in found if item["row"] == row and item["kind"] == kind]

    made: dict[str, Any] = {"acknowledged": level.title, "load": row.title}
    for kind in kinds:
        runs = of(kind)
        made[f"{kind}, per second"] = statistics.median(item["per second"] for item in runs)
        cpu = [statistics.median(values) for values in zip(*(item["cpu us"] for item in runs), strict=True)]
        made[f"{kind}, CPU us"] = " + ".join(f"{value:.1f}" for value in cpu)
        made[f"{kind}, p50"] = statistics.median(item["p50"] for item in runs)
        made[f"{kind}, p99"] = statistics.median(item["p99"] for item in runs)
    if "rocketmq" in kinds:
        pairs = zip(of("ours"), of("rocketmq"), strict=True)
        ratios = [ours["per second"] / theirs["per second"] for ours, theirs in pairs]
        made |= {"×": statistics.median(ratios), "× from": min(ratios), "to": max(ratios)}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", action="append", choices=list(LEVELS), help="default: all")
    parser.add_argument("--warm", type=int, default=WARM_S, metavar="SECONDS", help="load of each kind before all rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of each row in each round")
    given = parser.parse_args()
    names = tuple(given.level or ())
    with tempfile.TemporaryDirectory(prefix="rmqha-bench-", dir=os.environ.get("TMPDIR")) as directory:
        name = "-".join(["load", *names])
        measured(name, Path(directory), lambda path: load(path, given.seconds, given.rounds, given.warm, names))


if __name__ == "__main__":
    main()
