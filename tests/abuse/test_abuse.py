"""Honest traffic beside each attack: nobody ends, no role changes hands, every send is answered in time, memory is
bounded and falls back, and what was acknowledged is received (`make abuse`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.catalogue import ATTACKS
from tests.abuse.outcome import Bounds
from tests.abuse.stage import Stage

CONNECTIONS = 20
SECONDS = 2.0
QUIET_S = 2.0
AFTER_S = 0.5
FLOOR_MS = 5000
"""Of any bound on time here. Generous to a slow and busy machine; the benchmark measures."""
CASES = [
    (setup, name)
    for setup in ("open", "protected")
    for name, attack in ATTACKS.items()
    if attack.in_short and setup in attack.setups and (setup == "open" or "open" not in attack.setups or attack.both)
]

pytestmark = pytest.mark.abuse


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    scratch: Path = tmp_path_factory.mktemp(request.param)
    with Stage(scratch, request.param, QUIET_S, {"controllerHeartBeatTimeoutMills": FLOOR_MS}) as found:
        yield found


@pytest.mark.parametrize(("stage", "name"), CASES, indirect=["stage"])
def test_an_attack_does_not_harm_honest_clients(stage: Stage, name: str) -> None:
    outcome = stage.attacked(ATTACKS[name], CONNECTIONS, SECONDS, AFTER_S)
    if outcome.is_over:
        stage.renew()
    # what is stored within its bound stays a while, as registrations do
    bounds = Bounds(
        ratio=10,
        floor_ms=max(FLOOR_MS, ATTACKS[name].missed_p99_ms),
        left_mib=128,
        beat_gap_ms=FLOOR_MS,
        ack_gap_ms=FLOOR_MS,
    )
    assert not outcome.problems(bounds), outcome.row()


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("open", "forged-acks"),
        ("open", "forged-controls-open"),
        ("protected", "forged-acks"),
        ("protected", "forged-controls"),
    ],
    indirect=["stage"],
)
def test_nobody_stands_in_for_a_dead_slave(stage: Stage, name: str) -> None:
    """Forged acknowledgements, and heartbeats and alters in its name: CP acknowledges nothing that the master alone
    has. It goes on when the slaves are back."""
    count, acknowledged = stage.attacked_without_slaves(ATTACKS[name], CONNECTIONS, SECONDS)
    assert count, "no honest send was due"
    assert acknowledged == []
    assert stage.be_quiet(AFTER_S)


@pytest.mark.parametrize("stage", ["opened"], indirect=True)
def test_what_an_open_ha_port_risks(stage: Stage) -> None:
    """As docs/operate/security.md says it; and the forgers of the test above know their trade."""
    attack = ATTACKS["forged-controls-open"]
    _, acknowledged = stage.attacked_without_slaves(attack, CONNECTIONS, SECONDS, until_one=True)
    assert acknowledged, "what the master alone has was never acknowledged"
    assert stage.be_quiet(AFTER_S), "no honest send was due when the slaves were back"


@pytest.mark.parametrize("stage", ["open", "protected"], indirect=True)
def test_what_was_acknowledged_is_received(stage: Stage) -> None:
    count, lost = stage.all_received()
    assert count
    assert not lost
