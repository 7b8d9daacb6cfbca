"""What counts as harm, and that docs/operate/security.md tells of every attack."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.abuse.catalogue import rows
from tests.abuse.outcome import Bounds, Outcome, percentile_ms
from tests.abuse.scene import Scene

BOUNDS = Bounds(ratio=10, floor_ms=50)
WELL = Outcome(
    attack="flood",
    setup="open",
    connections=10,
    did={"connected": 10},
    quiet_p99_ms=5.0,
    taken_ms=[4.0] * 90 + [49.0] * 10,
    after_ms=[4.0] * 90 + [20.0] * 10,
    failures=[],
    dead={},
    changed={},
    grown_mib={"ns-1": 10.0, "broker-a-1": 127.0},
    left_mib={"ns-1": 0.0, "broker-a-1": 3.0},
    settled_s=0.2,
)


@pytest.mark.parametrize(
    ("taken", "percent", "expected"), [([], 99, 0.0), ([3.0], 99, 3.0), ([*map(float, range(1, 201))], 99, 198.0)]
)
def test_a_percentile_is_a_value_that_was_seen(taken: list[float], percent: int, expected: float) -> None:
    assert percentile_ms(taken, percent) == expected


def test_who_keeps_all_promises_has_no_problem() -> None:
    assert WELL.problems(BOUNDS) == []
    assert WELL.ratio == pytest.approx(9.8)


@pytest.mark.parametrize(
    ("harmed", "sentence"),
    [
        (replace(WELL, dead={"broker-a-1": "BadRecordError"}), "broker-a-1 has ended: BadRecordError"),
        (replace(WELL, changed={"broker-a-1": (("MASTER", 1), ("SLAVE", 2))}), "broker-a-1 was ('MASTER', 1) and"),
        (replace(WELL, beat_gap_ms=1501), "a broker sent no heartbeat for 1501 ms"),
        (replace(WELL, ack_gap_ms=2001), "a slave acknowledged nothing for 2001 ms"),
        (replace(WELL, failures=["no_master"]), "1 of 100 honest sends failed: 1 × no_master"),
        (replace(WELL, taken_ms=[51.0]), "honest p99 was 51 ms, 10 × the quiet 5.0 ms"),
        (replace(WELL, taken_ms=[]), "no honest send was due"),
        (replace(WELL, after_ms=[51.0]), "honest p99 after the attack was 51 ms, 5.0 before it"),
        (replace(WELL, after_ms=[]), "no honest send was due after the attack"),
        (replace(WELL, did={}), "the attacker reached nobody"),
        (replace(WELL, grown_mib={"ns-1": 129.0}), "ns-1 grew by 129 MiB"),
        (replace(WELL, left_mib={"ns-1": 65.0}), "ns-1 kept 65 MiB 0.2 s after the attack"),
        (replace(WELL, settled=False), "not as before 0.2 s after the attack"),
        (replace(WELL, wrong_answers=[0]), "answered with the codes 0"),
    ],
)
def test_each_broken_promise_is_a_sentence(harmed: Outcome, sentence: str) -> None:
    assert [problem.startswith(sentence) for problem in harmed.problems(BOUNDS)] == [True]


def test_a_p99_below_the_floor_is_the_machines_noise() -> None:
    assert replace(WELL, quiet_p99_ms=1.0).problems(BOUNDS) == []


def test_an_attacker_keeps_to_this_machine() -> None:
    scene = Scene({"master": "192.0.2.1:10911"}, "c", "b", 1, 1, 0, "t", "g", "o")
    with pytest.raises(ValueError, match=r"192\.0\.2\.1 is not this machine"):
        scene.connect("master")


def test_the_page_tells_what_happens_under_each_attack() -> None:
    """`python -m tests.abuse --rows` shows the table's rows."""
    text = (Path(__file__).parents[2] / "docs" / "operate" / "security.md").read_text()
    section = text[text.index("## Attacks that are tried") :].partition("\n## ")[0]
    assert re.findall(r"^\| `.*$", section, re.MULTILINE) == rows()
