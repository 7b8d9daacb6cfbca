"""A few whole runs inside `make test`; `make sim` has many. And the canary: a seed means the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.options import seed_options
from tests.simulation.run import Run
from tests.simulation.seeds import few
from tests.simulation.themes.table import power_cuts, short_logs
from tests.simulation.world import World


@pytest.mark.parametrize("seed", few([1001], range(1002, 1009)))
def test_no_invariant_is_violated(seed: int) -> None:
    report = World(seed).run()
    assert not report.failure, f"make sim SEED={seed}: {report.failure}"
    assert report.audit is not None
    assert report.audit.acked_count > 0


@pytest.mark.parametrize("seed", few([3], [1, 2, 4]))
def test_power_cuts_of_all_at_once(seed: int) -> None:
    """Seed 3: a registration from before the operator's unclean election undid it, and the group stood still."""
    report = World(seed, power_cuts(seed_options(seed))).run()
    assert not report.failure, report.failure


@pytest.mark.parametrize("seed", few([1], range(2, 5)))
def test_old_files_leave_while_faults_run(seed: int) -> None:
    report = World(seed, short_logs(seed_options(seed))).run()
    assert not report.failure, report.failure
    assert report.audit is not None
    assert report.audit.acked_count > 0


@pytest.mark.parametrize("seed", (71100035, 71300701))
def test_a_restart_that_is_due_after_the_faults_starts_nobody(seed: int) -> None:
    """The last trial of `heirs` keeps a master away that a fault had left to be started."""
    report = Run(seed, "heirs").world().run()
    assert not report.failure, report.failure


SIMULATE = "import runpy, select; runpy.run_module('tests.simulation', run_name='__main__', alter_sys=True)"
SIMULATE_AS_PYPY = SIMULATE.replace(";", "; del select.EPOLLRDHUP;", 1)
"""Without the constant that PyPy, which runs long series, does not have."""


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    hashes = {_trace_hash(9, "1", SIMULATE), _trace_hash(9, "2", SIMULATE_AS_PYPY)}
    assert len(hashes) == 1


def _trace_hash(seed: int, hash_seed: str, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    last = done.stdout.splitlines()[-1]
    assert last.endswith(" ok"), last
    return last.split("trace=")[1]
