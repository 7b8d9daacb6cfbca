"""From a run that fails, the fewest faults with which it still fails: delta debugging over the keys of `Faults`.

Each fault draws from its own key, so leaving some out leaves the others as they were; what follows may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.run import Run


def faults_of(run: Run, only: frozenset[str] | None = None) -> tuple[list[str], str]:
    """(keys of the faults that happened, the failure or "") of one run."""
    world = run.world(only)
    failure = world.run().failure
    return world.faults.keys, failure


def fewest(keys: Sequence[str], fails: Callable[[Sequence[str]], bool], most_runs: int) -> list[str]:
    """A part of `keys` that still `fails`, such that no single key can be left out, unless `most_runs` end first."""
    kept, pieces, runs = list(keys), 2, 0
    while kept and runs < most_runs:
        size = max(1, len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            runs += 1
            if fails(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
            if runs >= most_runs:
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), 2 * pieces)
    return kept


def shrink(run: Run, most_runs: int = 100) -> tuple[list[str], list[str], str]:
    """(the faults it needs, the faults it had, how it fails with those it needs). ValueError for a run without failure.

    Any failure counts, so a smaller set may fail in another way: that is a finding too."""
    keys, failure = faults_of(run)
    if not failure:
        raise ValueError(f"seed {run.seed} does not fail with theme {run.theme}: there is nothing to shrink")
    kept = fewest(keys, lambda rest: bool(faults_of(run, frozenset(rest))[1]), most_runs)
    return kept, keys, faults_of(run, frozenset(kept))[1]
