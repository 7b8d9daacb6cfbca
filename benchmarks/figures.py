"""What every figure is reported with: the machine, how busy it was, median, p90 and max."""

from __future__ import annotations

import compileall
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqha.host.kernel_choice import choose_kernel

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SYNC_COUNT = 50
Row = Mapping[str, Any]


def compile_packages() -> None:
    """Else a start compiles what a switch of branches or PYTHONDONTWRITEBYTECODE has left without byte code."""
    for package in ("rmqha", "controller", "nameserver"):
        compileall.compile_dir(str(ROOT / package), quiet=1)


def fdatasync_ms(directory: Path) -> list[float]:
    """Milliseconds of SYNC_COUNT appends of 4 KiB, each made durable, in `directory`."""
    taken = []
    path = directory / "fdatasync"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(SYNC_COUNT):
            os.write(handle, bytes(4096))
            started = time.perf_counter()
            os.fdatasync(handle)
            taken.append((time.perf_counter() - started) * 1000)
    finally:
        os.close(handle)
        path.unlink()
    return taken


def machine(directory: Path) -> dict[str, Any]:
    syncs = fdatasync_ms(directory)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "batch_kernel": choose_kernel().description,
        "fdatasync_ms": {**summary(syncs), "count": SYNC_COUNT},
        "load_average": round(os.getloadavg()[0], 2),
    }


def machine_line(found: Mapping[str, Any]) -> str:
    sync = found["fdatasync_ms"]
    return (
        f"{found['cores']} cores, Python {found['python']}, Linux {found['kernel']}, fdatasync median "
        f"{sync['median']:.2f} ms (max {sync['max']:.2f}), load average {found['load_average']}\n"
        f"batch kernel {found.get('batch_kernel', 'not told')}"
    )


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, p90 and max; p90 is the smallest value that nine tenths do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * 9 // 10) - 1
    return {"median": statistics.median(ordered), "p90": ordered[rank], "max": ordered[-1]}


def show(title: str, rows: Sequence[Row]) -> None:
    """A table on standard output; columns are the keys of the first row."""
    names = list(rows[0])
    cells = [[cell(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in [names, *cells]) for column in range(len(names))]
    print(f"\n{title}")
    for line in [names, *cells]:
        first, *rest = (
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join((first, *rest)))


def cell(value: Any) -> str:
    """Text of a value in a table."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


def measured(name: str, directory: Path, work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Run `work`, and write results/<name>.json: its figures, the machine, the load before and after."""
    found = machine(directory)
    print(f"\n=== {name}: {machine_line(found)}", flush=True)
    figures = work(directory)
    result = {"name": name, "machine": found, "load_average_after": round(os.getloadavg()[0], 2), **figures}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"load average after {result['load_average_after']}; {path}")
    return result
