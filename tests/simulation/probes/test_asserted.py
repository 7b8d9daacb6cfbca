"""Every invariant of the product is evaluated in simulated runs, so none of them is a sentence that nothing checks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.probes import asserted
from tests.simulation.probes.asserted import ROOT, all_invariants

pytestmark = pytest.mark.sim
RUNS = ("short:3", "controllers:5", "tuned:3", "plain:5001770@60")
NEVER = dict.fromkeys(
    (
        "rmqha.store.appender.Appender.append_made: not self._has_crc",
        "rmqha.store.appender.Appender.append_made: made.store_timestamp_ms >= offsets.last_store_timestamp_ms",
        "rmqha.store.appender.Appender.append_made: next_offset >= known",
        "rmqha.store.appender.Appender.append_made: known_bytes <= len(made.records)",
        "rmqha.store.appender.Appender.append_made: 0 < len(made.records) <= log.room_end - position",
    ),
    "tests/spark/sink/test_records.py",
)
"""Invariants that these runs do not come to, each with the tests that do."""
ROOMS = {"rmqha.ha": 10, "rmqha.raft": 10, "rmqha.store": 8}
"""Invariants that a room has at least."""


def test_every_invariant_is_evaluated() -> None:
    command = [sys.executable, "-m", asserted.__name__, *RUNS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    counts: dict[str, int] = json.loads(result.stdout)
    known = all_invariants()
    assert counts.keys() <= known and NEVER.keys() <= known, "there is no such invariant any more"
    evaluated = {name for name, count in counts.items() if count}
    assert known - evaluated == NEVER.keys()
    for room, least in ROOMS.items():
        assert sum(name.startswith(room) for name in evaluated) >= least, room


def test_a_process_that_has_loaded_the_product_does_not_count() -> None:
    code = "import rmqha.ha.ack; from tests.simulation.probes.asserted import counted; counted([])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "rmqha.ha is loaded" in result.stderr
