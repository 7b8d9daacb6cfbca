"""`python -m tests.simulation --seeds 200` or `--seed 7`: run, report, and print the command that replays a failure."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count
from pathlib import Path
from time import perf_counter

import click

from tests.simulation.marks import not_hit
from tests.simulation.quiet import run_quiet
from tests.simulation.run import ALL, PLAIN, Run, theme_of
from tests.simulation.shrink import faults_of, shrink
from tests.simulation.themes.table import THEMES
from tests.simulation.world import Report

SEEDS_FILE = Path(__file__).with_name("seeds.txt")
RARE_COUNT = 100
"""Fewer runs than that cannot be expected to hit every mark."""


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def report_of(run: Run) -> Report:
    return run.world().run()


def kept_seeds() -> list[Run]:
    """Runs that found a bug once; each line is `seed  the story`, `theme:seed  …` or `theme:seed@seconds  …`."""
    lines = SEEDS_FILE.read_text().splitlines()
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    return [Run.parse(word) for word in words]


def _replay(run: Run, only: str | None, commit: str) -> bool:
    keys = None if only is None else frozenset(word.strip() for word in only.split(",") if word.strip())
    world = run.world(keys)
    report = world.run()
    if keys is not None and (unknown := sorted(keys - set(world.faults.keys))):
        there = ", ".join(faults_of(run)[0])
        raise click.UsageError(f"--only: no fault {', '.join(unknown)} happens in this run; there are {there}")
    for line in report.recent:
        print(line)
    print(report.failure or f"audit: {report.audit}")
    print(f"seed={run.seed} commit={commit} trace={report.trace_hash} {'FAILED' if report.failure else 'ok'}")
    return not report.failure


def _shrink(run: Run) -> None:
    try:
        kept, keys, failure = shrink(run)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    print(failure)
    print(f"{len(kept)} of {len(keys)} faults are needed; replay with them alone:")
    print(f"  python -m tests.simulation {run.arguments} --only '{','.join(kept)}'")


def _many(runs: list[Run], processes: int, commit: str) -> bool:
    started = perf_counter()
    failed = events = simulated_ms = acked = lost = duplicates = faults = done = 0
    marks: set[str] = set()
    # what was imported is not looked at by every full collection; PyPy has no freeze
    with ProcessPoolExecutor(processes, initializer=getattr(gc, "freeze", None)) as pool:
        for run, report in zip(runs, pool.map(report_of, runs, chunksize=4), strict=True):
            done += 1
            events += report.event_count
            simulated_ms += report.simulated_ms
            faults += report.fault_count
            marks |= report.marks
            if report.audit is not None:
                acked += report.audit.acked_count
                lost += report.audit.lost_count
                duplicates += report.audit.duplicate_count
            if report.failure:
                failed += 1
                print(f"seed={report.seed} commit={commit} trace={report.trace_hash} FAILED: {report.failure}")
                print(f"  replay: {run.command}; fewest faults: {run.command} SHRINK=1", flush=True)
            if done % 50 == 0:
                print(f"{done} runs, {failed} failed, {perf_counter() - started:.0f} s", flush=True)
    seconds = perf_counter() - started
    print(
        f"{done} runs: {simulated_ms / 1000:.0f} simulated s, {events} events ({events / seconds:.0f}/s), "
        f"{faults} faults, {acked} acknowledged, {lost} lost (AP only), {duplicates} duplicates"
    )
    if done >= RARE_COUNT:
        print(f"rare paths that no run took: {'; '.join(not_hit(marks)) or 'none'}")
    print(f"{done - failed} passed, {failed} failed")
    return not failed


def _day(seed: int, hours: float, commit: str) -> bool:
    began = perf_counter()
    found = run_quiet(seed, hours, lambda hour: print(f"hour {hour} after {perf_counter() - began:.0f} s", flush=True))
    print(found.words)
    for problem in found.problems:
        print(problem)
    print(f"seed={seed} commit={commit} trace={found.report.trace_hash} {'FAILED' if found.problems else 'ok'}")
    return not found.problems


@click.command()
@click.option("--seed", type=int, help="Replay one seed with its trace.")
@click.option("--seeds", type=int, default=200, show_default=True, help="How many fresh seeds to run.")
@click.option("--first", type=int, default=1, show_default=True, help="The first of them.")
@click.option(
    "--theme",
    type=click.Choice([*THEMES, ALL]),
    help="What the runs are made of; all: half of them plain, the rest in turn. [default: plain with --seed, else all]",
)
@click.option(
    "--seconds", type=click.IntRange(min=1), help="How long faults happen in each run. [default: as its seed draws]"
)
@click.option("--shrink", "wants_shrink", is_flag=True, help="With --seed: find the fewest faults that still fail.")
@click.option("--only", help="With --seed: let only the faults with these keys happen, as --shrink prints them.")
@click.option("--day", is_flag=True, help="A day without a fault: nobody may be elected, nothing be lost.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="With --day: how long it is. [default: 24]")
@click.option("--jobs", type=int, default=cpu_count() or 1, show_default=True, help="Processes.")
def main(
    seed: int | None,
    seeds: int,
    first: int,
    theme: str | None,
    seconds: int | None,
    wants_shrink: bool,
    only: str | None,
    day: bool,
    hours: float | None,
    jobs: int,
) -> None:
    """Simulate whole groups from seeds. Exit code 1 if any run violates an invariant."""
    if day:
        if theme is not None or seconds is not None or wants_shrink or only is not None:
            raise click.UsageError("--day has no faults: it goes with --seed and --hours alone")
        sys.exit(0 if _day(1 if seed is None else seed, hours or 24, _commit()) else 1)
    if hours is not None:
        raise click.UsageError("--hours is the length of --day")
    if seed is None:
        if wants_shrink or only is not None:
            raise click.UsageError("--shrink and --only need --seed: they look at one run")
        fresh = [Run(each, theme_of(each, theme or ALL), seconds) for each in range(first, first + seeds)]
        sys.exit(0 if _many(list(dict.fromkeys([*kept_seeds(), *fresh])), jobs, _commit()) else 1)
    run = Run(seed, theme_of(seed, theme or PLAIN), seconds)
    if wants_shrink:
        _shrink(run)
    elif not _replay(run, only, _commit()):
        sys.exit(1)


if __name__ == "__main__":
    main()
