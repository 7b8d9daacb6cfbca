"""Run the benchmarks: each prints a table and writes benchmarks/results/<name>.json; index.html there has plots."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench_abuse import abuse
from benchmarks.bench_clients import clients
from benchmarks.bench_metadata import metadata
from benchmarks.bench_page import pages
from benchmarks.bench_send import sends
from benchmarks.bench_simulation import simulation
from benchmarks.bench_status import first_outputs, questions
from benchmarks.failovers.bench_controllers import controllers
from benchmarks.failovers.bench_failover import failovers, pauses, syncs_on_the_path
from benchmarks.failovers.bench_failover_topics import failovers_by_topics
from benchmarks.figures import RESULTS, compile_packages, measured
from benchmarks.page import page
from benchmarks.peers.bench_java_clients import java_clients
from benchmarks.peers.bench_load import WARM_S, load
from benchmarks.peers.bench_peer import peer
from benchmarks.peers.bench_peer_controllers import peer_controllers
from benchmarks.peers.bench_peer_failover import peer_failovers
from benchmarks.peers.bench_peer_start import peer_starts
from benchmarks.peers.bench_peer_timers import peer_timers
from benchmarks.peers.bench_pops import pops
from benchmarks.starts.bench_catchup import catch_ups
from benchmarks.starts.bench_cold import cold_reads
from benchmarks.starts.bench_rejoin import rejoins
from benchmarks.starts.bench_restart import restarts
from benchmarks.starts.bench_roll import rolls
from benchmarks.starts.bench_start import idle_memory, start_times
from benchmarks.starts.bench_timers import timers
from tests.interop.lab.java import MissingError

HERE = Path(__file__).parent


def program(name: str, scratch: Path, *arguments: str) -> dict[str, Any]:
    """A benchmark that is a program of its own and writes its figures where --json says."""
    out = scratch / "figures.json"
    subprocess.run([sys.executable, str(HERE / name), *arguments, "--json", str(out)], check=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def works_of(*, quick: bool, failover_count: int, warm_s: int = WARM_S) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Each benchmark by its name, in the order of a whole run; it gets a scratch directory."""
    return {
        "start": lambda scratch: start_times(scratch, 3 if quick else 10),
        "memory": lambda scratch: idle_memory(scratch, quick),
        "failover": lambda scratch: {
            **failovers(made(scratch / "timed"), failover_count),
            **syncs_on_the_path(made(scratch / "counted"), 2 if quick else 5),
            **pauses(made(scratch / "paused"), 2 if quick else max(10, failover_count // 5)),
        },
        "page": lambda scratch: pages(scratch, 3.0 if quick else 20.0),
        "status": lambda scratch: questions(scratch, 3 if quick else 20),
        "commands": lambda scratch: first_outputs(scratch, 3 if quick else 5),
        "rejoin": lambda scratch: rejoins(scratch, 2 if quick else 10),
        "topics": lambda scratch: failovers_by_topics(scratch, 2 if quick else 10),
        "controllers": lambda scratch: controllers(scratch, quick, failover_count),
        "send": lambda scratch: sends(scratch, quick),
        "store": lambda scratch: program(
            "kernels/bench_store.py", scratch, "--directory", str(scratch), "--records", "20000" if quick else "100000"
        ),
        "restart": lambda scratch: restarts(scratch, 1 << 28 if quick else 4 << 30, 1 if quick else 3),
        "cold": lambda scratch: cold_reads(scratch, 1 << 26 if quick else 1 << 30, 1 if quick else 3),
        "roll": lambda scratch: rolls(scratch, 1 if quick else 2),
        "javaclients": lambda scratch: java_clients(scratch, 1 if quick else 7),
        "metadata": lambda scratch: metadata(scratch, 10 if quick else 100),
        "catchup": lambda scratch: catch_ups(scratch, 1 << 28 if quick else 3 << 30, 1 if quick else 3),
        "clients": lambda scratch: clients(scratch, quick),
        "peer": lambda scratch: peer(scratch, 3 if quick else 10, 1 if quick else 3, 2 if quick else warm_s),
        "peertimers": lambda scratch: peer_timers(
            scratch, 3 if quick else 10, 1 if quick else 3, 2 if quick else warm_s
        ),
        "timers": lambda scratch: timers(scratch, 100_000 if quick else 1_000_000, 1 if quick else 5),
        "pops": lambda scratch: pops(scratch, 3.0, 1 if quick else 2),
        "peerfailover": lambda scratch: peer_failovers(scratch, 2 if quick else 5, 1 if quick else 2),
        "peerstart": lambda scratch: peer_starts(
            scratch, 1 << 28 if quick else 1 << 30, 2.0 if quick else 8.0, 1 if quick else 3
        ),
        "peercontrollers": lambda scratch: peer_controllers(scratch, 2 if quick else 5, 1 if quick else 2),
        "load": lambda scratch: load(scratch, 3 if quick else 8, 1 if quick else 3, 2 if quick else warm_s),
        "abuse": lambda scratch: abuse(scratch, quick),
        "simulation": lambda scratch: simulation(quick),
        "spark": lambda scratch: spark(scratch, quick),
    }


SPARK_LOGS = ((1024, 4096), (128, 2048))
"""Bytes of each body, MiB of log."""


def spark(scratch: Path, quick: bool) -> dict[str, Any]:
    """The figures of each log, by the size of its bodies."""
    found: dict[str, Any] = {}
    for body_bytes, mib in SPARK_LOGS:
        size = str(mib // 32 if quick else mib)
        figures = program("bench_spark.py", scratch, "--body", str(body_bytes), "--mib", size, "--cores", "2")
        found |= {f"{name}, bodies of {body_bytes}": value for name, value in figures.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=list(works_of(quick=True, failover_count=0)),
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: to see that all works, not to quote")
    parser.add_argument("--n", type=int, default=20, help="failovers (50 for figures to quote)")
    parser.add_argument(
        "--warm", type=int, default=WARM_S, metavar="SECONDS", help="load of each side before peer and load measure"
    )
    parser.add_argument("--directory", type=Path, help="where the stores are made; default: the temporary directory")
    given = parser.parse_args()
    compile_packages()
    works = works_of(quick=given.quick, failover_count=3 if given.quick else given.n, warm_s=given.warm)
    failed = []
    for name, work in works.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory(prefix="rmqha-bench-", dir=given.directory) as directory:
            try:
                measured(name, Path(directory), work)
            except MissingError as error:
                print(f"{name}: left out: {error}", flush=True)
            except Exception:  # noqa: BLE001 (told here and by the exit code; the others still count)
                traceback.print_exc()
                failed.append(name)
    RESULTS.mkdir(exist_ok=True)
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    (RESULTS / "index.html").write_text(page(results))
    print(f"plots: {RESULTS / 'index.html'}")
    if failed:
        sys.exit(f"failed, see above: {', '.join(failed)}")


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()
