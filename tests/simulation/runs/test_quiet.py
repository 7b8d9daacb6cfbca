"""Nobody is elected without a cause, and what would be seen if somebody were. `make sim-day` makes it a day."""

from __future__ import annotations

import re
import subprocess
import sys
from unittest.mock import patch

import pytest

from rmqha.ha.controller_client import ControllerClient
from rmqha.ha.replica import Replica
from rmqha.model.code import ResponseCode
from rmqha.raft import leader
from rmqha.raft.core import Core, Leader
from tests.simulation.quiet import run_quiet

REAL_HEARTBEAT = ControllerClient.heartbeat
REAL_ROUND = leader._open_round
REAL_ADMISSION = Replica.admission


@pytest.mark.parametrize(("controller_count", "hours"), [(1, 0.05), pytest.param(3, 1 / 6, marks=pytest.mark.sim)])
def test_nobody_is_elected_without_a_cause(controller_count: int, hours: float) -> None:
    passed: list[int] = []
    found = run_quiet(1, hours, passed.append, controller_count=controller_count)
    assert found.problems == []
    assert found.report.simulated_ms >= hours * 3_600_000
    assert found.sent_count >= hours * 3_600_000 / 3100  # one in 3 s, by a clock that is slow by 2 % at most
    assert 0 < found.longest_wait_ms < 200
    assert passed == []


def test_an_election_without_a_cause_is_seen() -> None:
    """Planted are replicas that beat once in five seconds, which counts as dead after two."""

    def seldom(self: ControllerClient, now_ms: int) -> None:
        REAL_HEARTBEAT(self, now_ms)
        self._heartbeat_at_ms = now_ms + 5000

    with patch.object(ControllerClient, "heartbeat", seldom):
        problems = run_quiet(1, 0.01, controller_count=1).problems
    assert "calls b1 dead for its silence" in problems[0], problems
    assert problems[1].startswith("there were masters of epochs [1, 2"), problems


def test_a_controller_leader_that_falls_silent_is_seen() -> None:
    """Planted are leaders who beat once in four seconds."""

    def seldom(core: Core, role: Leader, now_ms: int) -> None:
        REAL_ROUND(core, role, now_ms)
        role.heartbeat_deadline_ms = now_ms + 4000

    with patch.object(leader, "_open_round", seldom):
        problems = run_quiet(1, 0.01).problems
    assert any(problem.startswith("the controllers had leaders in terms [") for problem in problems), problems


def test_a_message_that_is_refused_once_is_seen() -> None:
    """Planted is a master that refuses for 3 s in every 15."""

    def now_and_then(self: Replica, now_ms: int) -> tuple[ResponseCode, str]:
        return (
            (ResponseCode.SERVICE_NOT_AVAILABLE, "planted") if now_ms // 3000 % 5 == 0 else REAL_ADMISSION(self, now_ms)
        )

    with patch.object(Replica, "admission", now_and_then):
        (problem,) = run_quiet(1, 0.01).problems
    assert re.fullmatch(r"\d+ messages took \d+ tries", problem)


def test_the_command_says_what_it_has_seen() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--day", "--hours", "0.01", "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, words, last = done.stdout.splitlines()
    assert "masters of epochs [1], leaders of terms [" in words
    assert last.startswith("seed=2 commit=")
    assert last.endswith(" ok")


@pytest.mark.parametrize("more", [["--day", "--theme", "late"], ["--hours", "2"]])
def test_what_does_not_go_together_is_refused(more: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *more], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--day" in done.stderr
