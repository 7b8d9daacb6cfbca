"""The scripted night that `make night` plays: what its script holds, that another outcome is seen, and the night."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.night import LEFT_OUT, NIGHT_S, SCRIPT, of_the_cluster
from tests.support.script import is_same, only_wrong, steps


def test_the_night_has_every_fault_and_every_look() -> None:
    night = list(steps(SCRIPT.read_text()))
    commands = [step.command for step in night]
    for act in (
        "rmqha kill broker-a-1",
        "!fill",
        "!freeze",
        "rmqha kill ctl-",
        "--unclean",
        "rmqha drain",
        "rmqha join",
    ):
        assert any(act in command for command in commands), act
    for look in ("health", "doctor", "explain", "history --elections", "fork ls"):
        assert any(command.startswith(f"rmqha {look}") for command in commands), look
    assert sum(step.output[:1] != ("...",) and len(step.output) > 0 for step in night) > 30, (
        "what is printed is compared"
    )


def test_a_night_that_goes_otherwise_is_seen() -> None:
    assert is_same(("a", "...", "c"), ("a", "b", "b", "c")) and is_same(("a", "..."), ("a",)) and is_same((), ())
    for expected, seen in ((("a",), ("b",)), (("a",), ("a", "b")), (("a", "..."), ("b",)), ((), ("a",)), (("a",), ())):
        assert not is_same(expected, seen)
    assert only_wrong(["WARN a", "      fix: b", "WRONG c", "      fix: d", "1 wrong"]) == ["WRONG c", "      fix: d"]


def test_what_the_machine_has_is_none_of_the_nights() -> None:
    findings = [
        "WRONG machine · sync: slow",
        "      fix: a",
        "WRONG broker-a-1 · disk: full",
        "      fix: b",
        "WRONG broker-a-3 · disk: /x lies on tmpfs",
        "      fix: c",
        "WRONG broker-a-3 · disk: full",
        "      fix: d",
        "WRONG ctl-1 · process: gone",
        "      fix: e",
    ]
    assert of_the_cluster(findings) == findings[6:]
    assert LEFT_OUT.match("longest gap          310 ms, next acknowledgement 2026-11-26 23:39:12.120")
    assert not LEFT_OUT.match("acknowledged         3")


@pytest.mark.chaos
def test_a_night_on_call_goes_as_it_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos.night", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=NIGHT_S + 100, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
