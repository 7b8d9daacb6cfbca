"""Exhaustive check of docs/internals/spec/group.pml with Spin: right rules hold within each bound, wrong are found.

    tools/check_spec.py            all of it: `make spec`
    tools/check_spec.py NAME       only the cases whose name contains NAME; a counter-example is printed in full

The search of the right rules is depth first, that of a wrong one breadth first, so that its counter-example is a
shortest one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).resolve().parent.parent / "docs" / "internals" / "spec" / "group.pml"
MEMORY_MIB = 6000
DEPTH = 1_000_000
AT_ONCE = 2
"""Cases that are searched side by side: each keeps one core busy."""


class Case(NamedTuple):
    """`violation`: what the counter-example of a wrong rule must end with, "" where none may be found."""

    name: str
    defines: str
    violation: str = ""

    @property
    def switches(self) -> list[str]:
        return [f"-D{item}" for item in self.defines.split()]


LACKS = "acknowledged or shown"
BELOW = "a member of the confirmed set ends below the confirm offset"
CASES = (
    Case("cp, two records, a restart", "CP RECORDS=2 EPOCHS=2 SETS=4 RESTARTS=1 LOSSES=0"),
    Case("cp, three elections, a restart", "CP RECORDS=1 EPOCHS=3 SETS=4 RESTARTS=1 LOSSES=0"),
    Case("cp, three elections, two records", "CP RECORDS=2 EPOCHS=3 SETS=4 RESTARTS=0 LOSSES=0"),
    Case("cp, three elections, a loss of power", "CP RECORDS=1 EPOCHS=3 SETS=4 RESTARTS=0 LOSSES=1"),
    Case("cp, totalReplicas from 5 to 3", "CP RECORDS=1 EPOCHS=2 SETS=4 RESTARTS=0 LOSSES=0 RESIZES=1 TOTAL=5"),
    Case("cp, totalReplicas from 3 to 5", "CP RECORDS=1 EPOCHS=2 SETS=4 RESTARTS=0 LOSSES=0 RESIZES=1 TOTAL=3"),
    Case("ap, three elections", "AP RECORDS=1 EPOCHS=3 SETS=4 RESTARTS=0 LOSSES=0"),
    Case("ap, a restart", "AP RECORDS=1 EPOCHS=2 SETS=4 RESTARTS=1 LOSSES=0"),
    Case("ap, a loss of power", "AP RECORDS=1 EPOCHS=2 SETS=4 RESTARTS=0 LOSSES=1"),
    Case("eligible for ever", "AP RECORDS=1 RESTARTS=0 LOSSES=0 BUG_ELIGIBLE_FOR_EVER", LACKS),
    Case("a resize keeps the eligible", "CP RESIZES=1 TOTAL=5 RECORDS=1 RESTARTS=0 BUG_RESIZE_KEEPS_ELIGIBLE", LACKS),
    Case(
        "a number comes without its set",
        "CP RESIZES=1 TOTAL=5 RECORDS=1 RESTARTS=0 LOSSES=0 BUG_NUMBER_WITHOUT_SET",
        LACKS,
    ),
    Case("ack by the confirmed set alone", "CP RECORDS=1 BUG_ACK_BY_CONFIRMED_SET", BELOW),
    Case("a shrink counts at once", "CP RECORDS=1 BUG_SHRINK_AT_ONCE", BELOW),
    Case("majority only before the append", "CP RECORDS=1 RESTARTS=0 BUG_MAJORITY_BEFORE_APPEND", "last copy"),
    Case("a restart settles nothing", "CP RECORDS=1 BUG_RESTART_SETTLES_NOTHING", BELOW),
    Case("an old notice settles", "CP RECORDS=1 BUG_OLD_NOTICE_SETTLES", BELOW),
    Case(
        "mastership goes on after a loss of power", "CP RECORDS=2 EPOCHS=2 BUG_RESUMES_AFTER_POWER_LOSS", "have to cut"
    ),
    Case("a loss of power leaves no mark", "CP RECORDS=1 BUG_NO_UNCLEAN_MARK", BELOW),
    Case("who has the confirm offset joins", "CP RECORDS=1 BUG_JOIN_AT_CONFIRM", LACKS),
    Case("a new master confirms at once", "CP RECORDS=1 RESTARTS=0 LOSSES=0 BUG_CONFIRM_AT_ONCE", LACKS),
    Case("anybody is elected", "CP RECORDS=1 BUG_ELECTS_ANYBODY", "neither in the set nor eligible"),
    Case("an election keeps the epoch", "CP RECORDS=1 BUG_EPOCH_STAYS", "two masters lead one epoch"),
    Case("an older master is followed", "CP RECORDS=1 BUG_FOLLOWS_OLDER", "accepts an older master"),
)


class Outcome(NamedTuple):
    state_count: int
    depth: int
    trace: list[str]
    """The counter-example, [] if there is none."""
    complete: bool
    cpu_s: float = 0.0
    """Processor time of the verifier, its compilation included."""


def search(case: Case, place: Path) -> Outcome:
    """Run Spin's verifier for one case in the directory `place`."""
    model = place / MODEL.name
    model.write_bytes(MODEL.read_bytes())
    breadth = ["-DBFS"] if case.violation else []
    used = [_run(["spin", *case.switches, "-a", model.name], place)]
    options = ["-O2", "-w", "-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={MEMORY_MIB}", *breadth]
    used.append(_run(["gcc", *options, "-o", "pan", "pan.c"], place))
    used.append(_run(["./pan", "-E", f"-m{DEPTH}"], place))
    told = used[-1].told
    trace: list[str] = []
    if (place / f"{MODEL.name}.trail").exists():
        trace = [line.strip() for line in _run(["./pan", "-r", "-E"], place).told.splitlines()]
        trace = [line for line in trace if re.match(r"(replica|controllers|an operator|a request|VIOLATED)\b", line)]
    complete = "errors: 0" in told and "Search not completed" not in told and "max search depth" not in told
    states, depth = _number(r"(\d+) states, stored\s", told), _number(r"depth reached (\d+)", told)
    return Outcome(states, depth, trace, complete, sum(item.cpu_s for item in used))


class _Run(NamedTuple):
    told: str
    cpu_s: float


def _run(command: list[str], place: Path) -> _Run:
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and command[0] in ("spin", "gcc"):
        raise SystemExit(f"{' '.join(command)} failed: {told}")
    return _Run(told, used.ru_utime + used.ru_stime)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"the verifier ended without a result: {text[-400:]}")
    return int(found[1])


def verdict(case: Case, outcome: Outcome) -> str:
    """One sentence on what is wrong with the outcome, "" if it is as it should be."""
    if not case.violation:
        return "" if outcome.complete else "a counter-example was found, or the search did not end"
    if not outcome.trace:
        return "no counter-example was found: the model cannot fail where it should"
    return "" if case.violation in outcome.trace[-1] else f"the wrong property is violated, not {case.violation!r}"


def main(arguments: list[str]) -> int:
    chosen = [case for case in CASES if not arguments or arguments[0] in case.name]
    if not chosen:
        raise SystemExit(f"no case is called {arguments[0]!r}; there are: {', '.join(case.name for case in CASES)}")
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, outcome in zip(chosen, pool.map(_searched, chosen), strict=True):
            problem = verdict(case, outcome)
            failed += bool(problem)
            found = f"found in {len(outcome.trace) - 1} steps" if outcome.trace else "holds"
            told = f"{case.name:44}{found:20}{outcome.state_count:>11,} states, {outcome.cpu_s:5.1f} s of CPU"
            print(f"{told}; {problem}" if problem else told, flush=True)
            if problem or (arguments and outcome.trace):
                print("".join(f"    {line}\n" for line in outcome.trace), end="")
    return 1 if failed else 0


def _searched(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory() as place:
        return search(case, Path(place))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
