"""Attacks beside honest traffic: what 1, 10 and 100 hostile connections do to the p99 of 200 sends a second, to roles
and to memory; and what all protections together cost a busy producer.

The attacks are those of tests/abuse, the attacker and all servers share the machine. Each row's quiet p99 is that of
the same cluster before anybody attacked it, and the p99 after that of the second behind an attack. An attack begins
when the cluster is as quiet as before the last one, or meets a new cluster. The rates are
measured in turns: no protection, all of them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import trio

from benchmarks.bench_send import group_rate
from benchmarks.figures import show
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.access.security import ambient
from tests.abuse.catalogue import ATTACKS
from tests.abuse.keys import Keys
from tests.abuse.outcome import Bounds
from tests.abuse.stage import Stage

CONNECTIONS = (1, 10, 100)
BOUNDS = Bounds(ratio=10, floor_ms=0)
QUIET_S = 5.0
MAX_UNQUIET_S = 10.0
"""Time (s) that a cluster has to be as before an attack; then the next attack meets a new one."""
BODY = b"x" * 1024
COLUMNS = (
    "attack",
    "connections",
    "quiet p99 ms",
    "p99 ms",
    "ratio",
    "p99 after ms",
    "role changes",
    "failed",
    "grown MiB",
    "left MiB",
)


def attacks_on(setup: str, scratch: Path, seconds: float, connections: tuple[int, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with Stage(scratch, setup, QUIET_S) as stage:
        for name, attack in ATTACKS.items():
            for count in connections if setup in attack.setups else ():
                outcome = stage.attacked(attack, count, seconds)
                rows.append({**outcome.row(), "problems": outcome.problems(BOUNDS)})
                print(f"{setup} {name} {count}: {'; '.join(rows[-1]['problems']) or 'well'}", flush=True)
                if outcome.is_over or not stage.becomes_quiet(MAX_UNQUIET_S):
                    stage.renew()
        count, lost = stage.all_received()
        print(f"{count} messages acknowledged in the last cluster, {len(lost)} of them not received")
    return rows


def send_rate(scratch: Path, *, protected: bool, seconds: float) -> float:
    document = quickstart("cp", 3, {"mappedFileSizeCommitLog": 64 * 1024 * 1024})
    keys = Keys(scratch / "keys")
    token = ambient.set(keys.servers()) if protected else None
    if protected:
        keys.protect(document)
    try:
        with Cluster.of(document, scratch, quiet=True) as cluster:
            trio.run(cluster.up)
            return trio.run(group_rate, cluster, BODY, seconds)["per second"]
    finally:
        if token is not None:
            ambient.reset(token)


def rates(scratch: Path, seconds: float, rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {"none": [], "all": []}
    for turn in range(rounds):
        for name in found:
            place = scratch / f"{turn}-{name}"
            place.mkdir()
            found[name].append(send_rate(place, protected=name == "all", seconds=seconds))
    plain = median(found["none"])
    return [
        {"protections": name, "rounds": rounds, "sends per second": median(values), "of none": median(values) / plain}
        for name, values in found.items()
    ]


def abuse(scratch: Path, quick: bool) -> dict[str, Any]:
    connections = (10,) if quick else CONNECTIONS
    seconds = 2.0 if quick else 4.0
    found: dict[str, Any] = {"attack_seconds": seconds, "attacks": {}}
    for setup in ("open", "protected"):
        rows = attacks_on(setup, scratch / setup, seconds, connections)
        show(f"attacks on the {setup} cluster", [{name: row[name] for name in COLUMNS} for row in rows])
        found["attacks"][setup] = rows
    (scratch / "rates").mkdir()
    found["rates"] = rates(scratch / "rates", 2.0 if quick else 6.0, 1 if quick else 3)
    show("64 senders that wait for each acknowledgement, 1,024 bytes, CP, three replicas", found["rates"])
    return found
