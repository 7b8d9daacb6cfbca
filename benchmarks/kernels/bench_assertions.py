"""Cost of the assertions on the path of a plain send: instructions with them and without (`python -O`), by Valgrind.

    python -m benchmarks.kernels.bench_assertions

Instructions, unlike times, are the same on a busy machine. A process reads FEW and MANY times; the difference is free
of what its start costs. It takes some ten minutes; Debian's package valgrind must be there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import show
from benchmarks.kernels.bench_kernel import Reading, read_of
from rmqha.kernel.python_kernel import PythonKernel

FEW, MANY = 40, 240
READ_COUNTS = (1, 64)
VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]


def read(count: int, rounds: int) -> None:
    """Take `rounds` reads of `count` sends each."""
    with tempfile.TemporaryDirectory() as scratch:
        reading = Reading(Path(scratch) / "broker", PythonKernel())
        data = read_of(count)
        for _ in range(rounds):
            reading.read(data)
            reading.follow()
        reading.broker.close()


def instructions(count: int, rounds: int, *flags: str) -> int:
    """All instructions of a process that takes so many reads."""
    command = [*VALGRIND, sys.executable, *flags, "-m", "benchmarks.kernels.bench_assertions", str(count), str(rounds)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (collected,) = re.findall(r"Collected : (\d+)", done.stderr)
    return int(collected)


def per_send(count: int, *flags: str) -> float:
    return (instructions(count, MANY, *flags) - instructions(count, FEW, *flags)) / ((MANY - FEW) * count)


def main() -> None:
    if len(sys.argv) == 3:
        read(int(sys.argv[1]), int(sys.argv[2]))
        return
    rows = []
    for count in READ_COUNTS:
        checked, unchecked = per_send(count), per_send(count, "-O")
        rows.append({"sends in a read": count, "instructions": checked, "without": unchecked, "x": checked / unchecked})
    show("assertions on the path of one send", rows)


if __name__ == "__main__":
    main()
