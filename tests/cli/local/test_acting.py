"""The cluster that a command changes: asked for where several run in a folder, and named."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from rmqha.cli.acting import acting_cluster
from rmqha.cli.main import main
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, ClusterState, NodeRecord
from rmqha.ops.local.supervisor import Process, start_stamp


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    return tmp_path


def make(name: str, *, runs: bool) -> ClusterState:
    """A cluster in rmqha-data, the last that was started; its one process is this one."""
    directory = Path("rmqha-data", name).absolute()
    directory.mkdir(parents=True)
    state = ClusterState(directory, name, "cp", "c.toml", {"ns-1": NodeRecord("ns-1", "namesrv", "127.0.0.1:1")})
    if runs:
        stamp = start_stamp(os.getpid())
        assert stamp is not None
        state.record_process("ns-1", Process(os.getpid(), stamp))
    state.write()
    state.remember_as_last()
    return state


def test_one_that_runs_beside_others_that_do_not_is_the_last() -> None:
    make("one", runs=False)
    two = make("two", runs=True)
    assert acting_cluster(None).directory == two.directory


@pytest.mark.parametrize("words", [("stop", "ns-1"), ("kill", "ns-1"), ("down",), ("drain", "b"), ("join", "b-1")])
def test_of_several_that_run_a_script_must_name_one(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    make("one", runs=True)
    make("two", runs=True)
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err == (
        "rmqha: several clusters run in this folder, in rmqha-data/one and in rmqha-data/two; name one by --directory\n"
    )


def test_somebody_at_a_terminal_is_asked_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make("one", runs=True)
    make("two", runs=True)
    monkeypatch.setattr(sys, "stdin", Terminal("three\nrmqha-data/one\n"))
    assert acting_cluster(None).name == "one"
    told = capsys.readouterr()
    assert told.out == "" and "Which one" in told.err and "rmqha-data/two" in told.err


def test_who_names_one_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make("one", runs=True), make("two", runs=True)
    assert acting_cluster(one.directory).name == "one"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(two.directory))
    assert acting_cluster(None).name == "two"


def test_at_a_terminal_the_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = make("one", runs=True)
    monkeypatch.setattr(sys, "stderr", told := Terminal())
    acting_cluster(None)
    assert told.getvalue() == f"cluster one, data in {one.directory}/NODE\n"
