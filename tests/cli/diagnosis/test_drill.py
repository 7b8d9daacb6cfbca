"""`rmqha drill` as a user meets it: bad input, and what cannot be done here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqha.cli.main import main
from rmqha.drill.error import FaultUnavailableError
from rmqha.drill.fault import FAULTS
from rmqha.drill.hosts import sandbox


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["drill", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_an_unknown_scenario_is_one_sentence_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("isolat", "--n", "3") == 2
    said = capsys.readouterr().err
    assert "there is no drill 'isolat', did you mean isolate?" in said
    assert all(name in said for name in FAULTS)
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["failover", "--n", "0"], ["failover", "--mode", "xp"], ["failover", "-o", "x"]])
def test_bad_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert "invalid value" in capsys.readouterr().err


def test_a_drill_hits_only_whom_it_can(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("disk-full", "--hit", "all") == 2
    assert capsys.readouterr().err == "rmqha: drill disk-full cannot hit 'all'; it can leader\n"


def test_a_scratch_place_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run("failover", "--scratch", str(tmp_path / "file")) == 2
    assert "--scratch" in capsys.readouterr().err


def test_a_report_that_has_no_place_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("failover", "--report", str(tmp_path / "no" / "x.html"), "--scratch", str(tmp_path)) == 2
    assert "is no directory; make it or name another one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_fault_that_this_machine_forbids_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise FaultUnavailableError("a mount namespace is not permitted here")

    monkeypatch.setattr(sandbox, "enter_own", refused)
    assert run("disk-full", "--scratch", str(tmp_path), "-o", "json") == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["skipped"] == "a mount namespace is not permitted here"
    assert "a mount namespace is not permitted here" in captured.err
    assert list(tmp_path.iterdir()) == [], "nothing stays"
