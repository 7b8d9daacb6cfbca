"""How fast whole groups are simulated, with all checkers on, on one core.

    python -m benchmarks --only simulation

`steady`: three brokers, three controllers, CP, 50 sends a second, no faults. `themes`: one run of each theme, as `make
sim` draws them. Rates are for each second of processor time, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from benchmarks.figures import show, summary
from tests.simulation.options import Options, seed_options
from tests.simulation.themes.table import THEMES, rough
from tests.simulation.world import World

SENDS_PER_S = 50
CLIENT_COUNT = 2


def steady_options(seed: int, seconds: int) -> Options:
    options = rough(seed_options(seed))
    nothing = {name: 0 for name in vars(options) if name.endswith("_per_mille")}
    return replace(
        options,
        **nothing,
        controller_count=3,
        client_count=CLIENT_COUNT,
        send_interval_ms=1000 * CLIENT_COUNT // SENDS_PER_S,
        max_delay_ms=1,
        heartbeat_ms=500,
        kept_files=0,
        file_size_bytes=1024 * 1024,
        batch_bytes=1024 * 1024,
        chaos_ms=seconds * 1000,
    )


def _timed(seed: int, options: Options) -> tuple[float, float, float]:
    """(simulated seconds, events, sends) for each second of processor time."""
    world = World(seed, options)
    began = time.process_time()
    report = world.run()
    spent = time.process_time() - began
    if report.failure:
        raise RuntimeError(f"seed {seed} fails: {report.failure}")
    return report.simulated_ms / 1000 / spent, report.event_count / spent, len(world.groups[0].history.acked) / spent


def _rows(name: str, found: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    columns = zip(("simulated s", "events", "sends"), zip(*found, strict=True), strict=True)
    return [{"run": name, "a processor second": what, **_spread(values)} for what, values in columns]


def _spread(values: tuple[float, ...]) -> dict[str, float]:
    return {**summary(values), "min": min(values)}


def simulation(quick: bool) -> dict[str, Any]:
    count, seconds = (2, 10) if quick else (5, 60)
    steady = [_timed(seed, steady_options(seed, seconds)) for seed in range(1, count + 1)]
    seeds = range(1, 2) if quick else range(1, 4)
    themes = [_timed(seed, theme(seed_options(seed))) for theme in THEMES.values() for seed in seeds]
    rows = [*_rows("steady", steady), *_rows("themes", themes)]
    show("simulation, all checkers on, one core", rows)
    return {"rows": rows}
