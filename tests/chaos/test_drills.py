"""Every drill of `rmqha drill`, as the command: one fault each; with RMQHA_DRILLS=full ten, and twenty kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqha.drill.fault import FAULTS, STALL_BOUND_MS
from rmqha.ops.local.cluster_state import ClusterState
from tests.chaos.conftest import Tell
from tests.support.patience import HANG_S, NOISE_MS

pytestmark = pytest.mark.chaos
FULL = os.environ.get("RMQHA_DRILLS") == "full"
FULL_COUNT, KILL_COUNT = 10, 20
ROUND_S = 60
SLOW_MS = STALL_BOUND_MS + NOISE_MS
"""A drill's own verdict on how long sends stood still is for a machine that is not slow."""


def broken(found: dict[str, Any]) -> list[str]:
    """The promises that a drill saw broken, also by the measure of a slow machine."""
    is_slow = found["unavailable_ms"]["max"] > SLOW_MS
    return [why for why in found["broken"] if is_slow or "sends stood still" not in why]


@pytest.mark.parametrize("scenario", FAULTS)
def test_a_drill_loses_nothing_in_cp(scenario: str, tmp_path: Path, tell: Tell) -> None:
    count = 1 if not FULL else KILL_COUNT if scenario == "failover" else FULL_COUNT
    arguments = ["drill", scenario, "--mode", "cp", "--n", str(count), "-o", "json", "--scratch", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmqha", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S + count * ROUND_S,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    if "skipped" in found:
        pytest.skip(found["skipped"])
    tell(
        f"{found['acked']} acknowledged, {found['lost']} lost, {found['duplicates']} duplicates, {count} faults; ms: "
        f"failover p50 {found['failover_ms_p50']}, max {found['failover_ms_max']}, no acknowledgement for "
        f"{found['unavailable_ms']['max']} at most, heal to all well {found['recovery_ms']['p50']}"
    )
    assert broken(found) == []
    assert (found["lost"], found["given_up"], done.returncode) == (0, 0, 1 if found["broken"] else 0)
    assert len(found["rounds"]) == count
    assert list(tmp_path.iterdir()) == [], "the scratch directory is removed"


@pytest.mark.parametrize(
    "arguments", ["failover --hit major", "pause --hit minor", "isolate --hit all", "isolate --mode ap"]
)
def test_more_than_the_master_is_hit(arguments: str, tmp_path: Path) -> None:
    """In AP the loss of what a cut-off master acknowledged alone is no broken promise, and is seen."""
    command = ["drill", *arguments.split(), "--n", "1", "-o", "json", "--scratch", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmqha", *command],
        capture_output=True,
        text=True,
        timeout=HANG_S + ROUND_S,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert (broken(found), done.returncode) == ([], 1 if found["broken"] else 0)
    assert (found["lost"] > 0) is (found["mode"] == "ap")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_interrupted_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    arguments = ["drill", "failover", "--n", "50", "--scratch", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rmqha", *arguments], stderr=subprocess.PIPE, text=True
    ) as drill:
        assert drill.stderr is not None
        for line in drill.stderr:
            if line.startswith("1/50: broker-a-"):
                break
        (place,) = tmp_path.iterdir()
        state = ClusterState.read(place / "cluster")
        assert state is not None
        assert any(node.alive for node in state.nodes.values())
        drill.send_signal(number)
        said = drill.stderr.read()
    assert drill.returncode == 130, said
    assert said.splitlines()[-1] == "rmqha: interrupted"
    assert list(tmp_path.iterdir()) == []
    assert [node.name for node in state.nodes.values() if node.alive] == []
