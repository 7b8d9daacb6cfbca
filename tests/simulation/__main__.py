"""`python -m tests.simulation --seeds 200` or `--seed 7`: run, report, and print the command that replays a failure."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from os import cpu_count
from pathlib import Path
from time import perf_counter

import click

from .world import Report, World

SEEDS_FILE = Path(__file__).with_name("seeds.txt")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def run_seed(seed: int) -> Report:
    return World(seed).run()


def kept_seeds() -> list[int]:
    """Seeds that found a bug once; each line is `seed  the story`."""
    lines = SEEDS_FILE.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def _replay(seed: int, commit: str) -> bool:
    report = run_seed(seed)
    for line in report.recent:
        print(line)
    print(report.failure or f"audit: {report.audit}")
    print(f"seed={seed} commit={commit} trace={report.trace_hash} {'FAILED' if report.failure else 'ok'}")
    return not report.failure


@click.command()
@click.option("--seed", type=int, help="Replay one seed with its trace.")
@click.option("--seeds", type=int, default=200, show_default=True, help="How many fresh seeds to run.")
@click.option("--first", type=int, default=1, show_default=True, help="The first of them.")
@click.option("--jobs", type=int, default=cpu_count() or 1, show_default=True, help="Processes.")
def main(seed: int | None, seeds: int, first: int, jobs: int) -> None:
    """Simulate whole groups from seeds. Exit code 1 if any run violates an invariant."""
    commit = _commit()
    if seed is not None:
        sys.exit(0 if _replay(seed, commit) else 1)
    started = perf_counter()
    failed = events = simulated_ms = acked = lost = duplicates = faults = done = 0
    with ProcessPoolExecutor(jobs) as pool:
        for report in pool.map(run_seed, chain(kept_seeds(), range(first, first + seeds)), chunksize=4):
            done += 1
            events += report.event_count
            simulated_ms += report.simulated_ms
            faults += report.fault_count
            if report.audit is not None:
                acked += report.audit.acked_count
                lost += report.audit.lost_count
                duplicates += report.audit.duplicate_count
            if report.failure:
                failed += 1
                print(f"seed={report.seed} commit={commit} trace={report.trace_hash} FAILED: {report.failure}")
                print(f"  replay: make sim SEED={report.seed}", flush=True)
            if done % 50 == 0:
                print(f"{done} runs, {failed} failed, {perf_counter() - started:.0f} s", flush=True)
    seconds = perf_counter() - started
    print(
        f"{done} runs: {simulated_ms / 1000:.0f} simulated s, {events} events ({events / seconds:.0f}/s), "
        f"{faults} faults, {acked} acknowledged, {lost} lost (AP only), {duplicates} duplicates"
    )
    print(f"{done - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
