"""Runs on both kernels: a seed gives the same trace, whichever makes the records.

python -m tests.simulation.kernels            # every kept seed
python -m tests.simulation.kernels late:7 9   # these runs
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from rmqha.host.kernel_choice import load_kernel
from rmqha.kernel.batch_kernel import BatchKernel, LogBlock, Scanned, SendContext, SendRead, SendResults, SendRules
from rmqha.kernel.python_kernel import PythonKernel
from tests.simulation.__main__ import kept_seeds
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.run import Run
from tests.support.kernel_around import KernelAround


class Counting(KernelAround):
    """A kernel, and how many sends it has taken, and records found."""

    def __init__(self, kernel: BatchKernel) -> None:
        super().__init__(kernel)
        self.scans_in_bulk = True  # with each kernel, so that their calls can be compared
        self.taken_count = self.scanned_count = self.scan_count = 0

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        taken = self.kernel.sends(read, rules, context)
        self.taken_count += taken.taken_count
        return taken

    def scan(self, block: LogBlock) -> Scanned:
        found = self.kernel.scan(block)
        self.scan_count += 1
        self.scanned_count += len(found.store_timestamps_ms)
        return found


def trace_on(kernel: BatchKernel, run: Run) -> tuple[str, int, int]:
    """The hash of a run's trace, and how many sends the kernel has taken, and records found, in it."""
    counting = Counting(kernel)
    with patch.object(BrokerProcess, "kernel", counting):
        report = run.world().run()
    return report.trace_hash, counting.taken_count, counting.scanned_count


def compared(run: Run, native: BatchKernel) -> tuple[bool, int]:
    """True if both kernels give one trace; and the number of sends that they took or records that they found in it, the
    smaller of the two."""
    expected, found = trace_on(PythonKernel(), run), trace_on(native, run)
    return expected == found, min(found[1:])


def main(words: list[str]) -> int:
    """Returns how many runs differ."""
    native, differing, sends = load_kernel(), 0, 0
    runs = [Run.parse(word) for word in words] or kept_seeds()
    for run in runs:
        same, count = compared(run, native)
        sends += count
        if not same:
            differing += 1
            print(f"{run.theme}:{run.seed} differs", flush=True)
    print(f"{len(runs)} runs on both kernels, {sends} sends or records by each: {differing} traces differ")
    return differing


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
