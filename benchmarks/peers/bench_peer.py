"""Apache's Java client against the real RocketMQ 5.4.0 and against ours, in turns on the same cores.

    python -m benchmarks --only peer

One replica each (controller mode, ASYNC_FLUSH, files of 1 GiB), both running all the time; one client JVM for each,
with all tiers of its compiler, warm. Producers and consumers are `tests/interop/java/Load.java` with Apache's defaults.
A round does one measure on the one, then on the other, and changes who is first. CPU is the broker's, for each message.
Only SEND_OK counts; a failed send is counted apart.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import show
from benchmarks.starts.bench_catchup import APACHES_DEFAULTS, KEYS, cpu_seconds, without_c1_only
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab, Node
from tests.interop.lab.processes import Process, until

QUEUE_COUNT = 8
SENDERS = 64
BATCH_SENDERS = 16
BATCH_SIZE = 32
PACED_RATE = 500
RAMP_S = 3
"""Load before what counts of each measure."""
WARM_S = 20
"""Load of each side before the first: so much a JVM needs until it is as fast as it gets."""
SIZES = (128, 1024)
START_S = 90
MEASURE_S = 300
BROKER_HEAP = "1g"
CLIENT_HEAP = "1g"
KINDS = ("ours", "rocketmq")


class Side(NamedTuple):
    lab: Lab
    broker: Node
    client: Process


class Measure(NamedTuple):
    title: str
    command: str
    """For Load.java; {seconds} and {warm} are filled in."""
    key: str
    """What is compared; "rate" is messages a second."""
    goal: str
    more: tuple[str, ...] = ()


def measures() -> list[Measure]:
    found = [
        Measure(
            f"{SENDERS} threads, {size} B",
            f"send Single{size} {SENDERS} 1 {size} {{warm}} {{seconds}}",
            "rate",
            "≥ 2",
            ("cpu us", "p50", "p99"),
        )
        for size in SIZES
    ]
    found += [
        Measure(
            f"batches of {BATCH_SIZE}, {BATCH_SENDERS} threads, {size} B",
            f"send Batch{size} {BATCH_SENDERS} {BATCH_SIZE} {size} {{warm}} {{seconds}}",
            "rate",
            goal,
            ("cpu us",),
        )
        for size, goal in zip(SIZES, ("≥ 1.6", "≥ 1.3"), strict=True)
    ]
    paced = f"paced Paced {PACED_RATE} 128 {{warm}} {{seconds}}"
    return [
        *found,
        Measure("consume what the batches of 1,024 B left", "consume Batch1024 {stored}", "rate", "≥ 1.3", ("cpu us",)),
        Measure(f"{PACED_RATE}/s: send p99, µs", paced, "p99", "≤ 1", ("p50", "max")),
        Measure(f"{PACED_RATE}/s: stored → consumer, mean µs", paced, "delay", "≤ 0.4"),
    ]


def as_a_server(command: list[str], heap: str) -> list[str]:
    """The laboratory's JVMs are small and start fast; these have the whole compiler, G1 and a real heap."""
    kept = [item for item in without_c1_only(command) if item != "-XX:+UseSerialGC"]
    return [f"{item[:4]}{heap}" if item.startswith(("-Xms", "-Xmx")) else item for item in kept]


def topics() -> list[str]:
    return [f"{name}{size}" for name in ("Single", "Batch") for size in SIZES] + ["Paced"]


def started(java: Java, kind: str, scratch: Path, **java_keys: str) -> tuple[Lab, Node]:
    """A name server and a master alone in its group. `java_keys`: keys of RocketMQ's broker alone."""
    lab = Lab(java, scratch)
    try:
        if kind == "ours":
            lab.start_our_name_server()
            broker = lab.our_broker(kind, **KEYS, haMode="cp", totalReplicas="1")
        else:
            lab.start_java_name_server()
            broker = lab.java_broker(kind, **KEYS, **APACHES_DEFAULTS, **java_keys)
            broker.command = as_a_server(broker.command, BROKER_HEAP)
        lab.run(broker)
        until(f"{kind} has a master", lambda: lab.master() == broker.address, START_S, broker.running)
    except BaseException:
        lab.close()
        raise
    return lab, broker


def start(java: Java, kind: str, scratch: Path, names: Sequence[str], **java_keys: str) -> Side:
    """`names`: topics to make. `java_keys`: keys of RocketMQ's broker alone."""
    lab, broker = started(java, kind, scratch, **java_keys)
    try:
        for topic in names:
            _, _, complaint = lab.mqadmin(
                *("updateTopic", "-n", lab.name_server, "-b", broker.address, "-t", topic),
                *("-r", str(QUEUE_COUNT), "-w", str(QUEUE_COUNT)),
            )
            until(f"{topic} has a route: {complaint}", lambda topic=topic: bool(lab.route(topic)), START_S)
        command = java.command("Load", lab.name_server, heap=CLIENT_HEAP, properties={"interop.level": "ERROR"})
        client = Process("load", as_a_server(command, CLIENT_HEAP), scratch / "log", takes_input=True)
        return Side(lab, broker, client)
    except BaseException:
        lab.close()
        raise


def told(line: str) -> dict[str, Any]:
    pairs = [word.split("=", 1) for word in line.split()[1:]]
    return {key: value if key == "reason" else float(value) for key, value in pairs}


def run(side: Side, command: str) -> dict[str, Any]:
    """One command of Load.java: what it told, the rate, and the broker's CPU for each message."""

    def lines(word: str) -> list[str]:
        return [line for line in side.client.lines() if line.startswith(word)]

    before = len(lines("DONE"))
    side.client.write(command + "\n")
    until(f"{command} begins", lambda: len(lines("GO")) > before, START_S, side.client)
    cpu_before = cpu_seconds(side.broker)
    until(f"{command} ends", lambda: len(lines("DONE")) > before, MEASURE_S, side.client)
    found = told(lines("DONE")[-1])
    found["cpu us"] = (cpu_seconds(side.broker) - cpu_before) / found["count"] * 1e6
    found["rate"] = found["count"] / found["seconds"]
    return found


def peer(scratch: Path, seconds: int, rounds: int, warm_s: int = WARM_S) -> dict[str, Any]:
    """Rows of medians and of ratios. Raises MissingError without Java and Maven."""
    home = scratch / "java"
    home.mkdir()
    java = Java(home)
    sides: dict[str, Side] = {}
    try:
        for kind in KINDS:
            sides[kind] = start(java, kind, scratch / kind, topics())
        for kind in KINDS:
            run(sides[kind], f"send Single{SIZES[0]} {SENDERS} 1 {SIZES[0]} {warm_s} 1")
        stored = dict.fromkeys(KINDS, 0)
        each = [_round(sides, seconds, number, stored) for number in range(rounds)]
    finally:
        for kind, side in sides.items():
            side.client.kill()
            side.lab.close()
            shutil.rmtree(scratch / kind)
    rows = _rows(each)
    show(f"Apache's Java client: ours and RocketMQ 5.4.0, medians of {rounds} rounds of {seconds} s", rows)
    return {"seconds": seconds, "each": each, "rows": rows}


def _round(
    sides: dict[str, Side], seconds: int, number: int, stored: dict[str, int]
) -> list[dict[str, dict[str, Any]]]:
    """By measure, then by kind. `stored`: messages in the topic that is consumed."""
    found: list[dict[str, dict[str, Any]]] = []
    by_command: dict[str, dict[str, dict[str, Any]]] = {}
    for measure in measures():
        if measure.command not in by_command:
            row = {}
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                command = measure.command.format(seconds=seconds, warm=RAMP_S, stored=stored[kind])
                row[kind] = run(sides[kind], command)
                if command.startswith("send Batch1024"):
                    stored[kind] += int(row[kind]["everything"])
            by_command[measure.command] = row
            print(
                f"  {measure.title}: " + ", ".join(f"{kind} {row[kind][measure.key]:,.0f}" for kind in KINDS),
                flush=True,
            )
        found.append(by_command[measure.command])
    return found


def _rows(each: list[list[dict[str, dict[str, Any]]]]) -> list[dict[str, Any]]:
    rows = []
    for place, measure in enumerate(measures()):

        def median(kind: str, key: str, place: int = place) -> float:
            return statistics.median(found[place][kind][key] for found in each)

        ours, theirs = (median(kind, measure.key) for kind in KINDS)
        ratios = [found[place]["ours"][measure.key] / found[place]["rocketmq"][measure.key] for found in each]
        row: dict[str, Any] = {"what": measure.title, "ours": ours, "theirs": theirs, "×": statistics.median(ratios)}
        row |= {"goal": measure.goal, "× from": min(ratios), "to": max(ratios)}
        for key in ("cpu us", "p50", "p99", "max"):
            shown = key in measure.more
            row |= {
                f"{key}": median("ours", key) if shown else "",
                f"{key}, theirs": median("rocketmq", key) if shown else "",
            }
        row["failed"] = " / ".join(
            str(int(sum(found[place][kind].get("failures", 0) for found in each))) for kind in KINDS
        )
        rows.append(row)
    return rows
