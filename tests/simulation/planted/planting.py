"""How much of what is planted the runs of the normal rotation find: each bug alone, until one of them fails."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from tests.simulation.planted.mutations import MUTATIONS, UNSEEN, failure_of, planted
from tests.simulation.planted.test_mutations import FOUND_BY
from tests.simulation.run import ALL, PLAIN, Run, theme_of
from tests.simulation.themes.disks import OFTEN

ROTATION_RUNS = 200
"""So many a change to the product sees before it is merged (`make sim`)."""


@dataclass(frozen=True, slots=True)
class Planted:
    """`found_by` "": by none of the `tried_count` runs that were tried."""

    name: str
    found_by: str
    tried_count: int
    failure: str


def runs_for(name: str, first: int, run_count: int) -> list[Run]:
    """The runs of the rotation from seed `first` on, those first that are likely to find the bug: whether one of them
    does is no matter of their order."""
    known = Run.parse(FOUND_BY[name]).theme if name in FOUND_BY else ""
    runs = [Run(seed, theme_of(seed, ALL)) for seed in range(first, first + run_count)]
    return sorted(runs, key=lambda run: (run.theme != known, run.theme not in OFTEN, run.theme == PLAIN))


def look_for(name: str, first: int, run_count: int, try_count: int) -> Planted:
    """The first of the runs that fails with the bug planted; at most `try_count` of them are tried."""
    runs = runs_for(name, first, run_count)[:try_count]
    with planted(name):
        for number, run in enumerate(runs, 1):
            failure = failure_of(run)
            if failure:
                return Planted(name, f"{run.theme}:{run.seed}", number, failure.strip().splitlines()[-1])
    return Planted(name, "", len(runs), "")


def summary(found: Iterable[Planted]) -> str:
    looked = list(found)
    missed = [f"{item.name} ({item.tried_count} runs)" for item in looked if not item.found_by]
    return f"{len(looked) - len(missed)} of {len(looked)} planted bugs found; not found: {'; '.join(missed) or 'none'}"


@click.command()
@click.option("--first", type=int, default=1, show_default=True, help="The first seed of the rotation.")
@click.option("--runs", type=int, default=ROTATION_RUNS, show_default=True, help="How many runs the rotation has.")
@click.option("--tries", type=int, help="How many of them each bug gets at most. [default: all]")
@click.option("--bug", "names", multiple=True, help="This one alone, by its name; may be repeated. [default: all]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="A JSON line for each bug goes there too.")
@click.option("--jobs", type=int, default=2, show_default=True, help="Processes.")
def main(first: int, runs: int, tries: int | None, names: tuple[str, ...], out: Path | None, jobs: int) -> None:
    """Plant each bug and run the rotation until a run fails."""
    known = MUTATIONS | UNSEEN
    if strange := [name for name in names if name not in known]:
        raise click.UsageError(f"there is no planted bug {strange[0]!r}: take a name of docs/internals/simulation.md")
    look = partial(look_for, first=first, run_count=runs, try_count=tries or runs)
    looked = []
    with ProcessPoolExecutor(jobs, initializer=getattr(gc, "freeze", None)) as pool:
        for item in pool.map(look, names or known):
            looked.append(item)
            print(
                f"{item.name}: {item.found_by or 'not found'}, {item.tried_count} runs; {item.failure[:150]}",
                flush=True,
            )
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(asdict(item)) + "\n")
    print(summary(looked))


if __name__ == "__main__":
    main()
