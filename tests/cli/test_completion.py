"""What a shell is offered after a command: nodes and groups of the cluster directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from rmqha.cli.main import cli
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE


def offered(*words: str, incomplete: str = "") -> set[str]:
    complete = ShellComplete(cli, {}, "rmqha", "_RMQHA_COMPLETE")
    return {item.value for item in complete.get_completions(list(words), incomplete)}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kinds = {"ns-1": "namesrv", "broker-a-1": "broker", "broker-a-2": "broker"}
    nodes = [
        {"name": name, "kind": kind, "address": "127.0.0.1:1", "group": "broker-a" if kind == "broker" else ""}
        for name, kind in kinds.items()
    ]
    document = {"version": 1, "name": "c", "haMode": "ap", "clusterFile": "c.toml", "nodes": nodes}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    return tmp_path


NODES = {"ns-1", "broker-a-1", "broker-a-2"}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["config"], {"show", "get", "set", "diff"}),
        (["config", "show"], NODES),
        (["config", "diff", "ns-1"], NODES),
        (["maintenance", "on"], NODES),
        (["logs"], NODES),
        (["drain"], NODES),
        (["elect", "broker-a", "--to"], NODES),
        (["health"], {"broker-a"}),
        (["top"], {"broker-a"}),
        (["explain"], {"broker-a"}),
        (["topic"], {"ls", "describe", "create", "alter", "delete"}),
        (["message"], {"get", "find", "track", "resend"}),
        (["dlq"], {"ls", "resend", "export"}),
        (["consumer"], {"ls", "describe", "lag", "members", "create", "alter", "reset", "skip", "delete"}),
    ],
)
def test_names_of_the_cluster(words: list[str], values: set[str]) -> None:
    assert offered(*words) == values


def test_only_what_begins_so() -> None:
    assert offered("config", "show", incomplete="broker-a-2") == {"broker-a-2"}
    assert {"health", "history"} <= offered(incomplete="h") <= {"health", "history", "help"}


def test_another_directory_and_none_at_all(directory: Path) -> None:
    assert offered("maintenance", "on", "--directory", str(directory / "nowhere")) == set()
    (directory / "cluster.json").write_text("nonsense")
    assert offered("logs") == set()


@pytest.mark.parametrize("words", [["explain"], ["quorum", "show"], ["send", "--topic", "T"], ["describe", "group"]])
def test_a_command_that_would_not_know_whom_to_ask_is_completed(words: list[str], directory: Path) -> None:
    (directory / "cluster.json").unlink()
    assert offered(*words) == set()
    assert "--help" in offered(*words, incomplete="--h")
