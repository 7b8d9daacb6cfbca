"""`rmqha generate` as it is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest
from click.testing import CliRunner

from rmqha.cli.main import COMMANDS, SERVERS, cli
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord


def run(*args: str) -> str:
    done = CliRunner().invoke(cli, ["generate", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def cluster(directory: Path, http_port: str) -> None:
    state = ClusterState(directory, "c", "cp", "my.toml", {"ns-1": NodeRecord("ns-1", "namesrv", "127.0.0.1:9876")})
    state.config_path("ns-1").parent.mkdir(parents=True)
    state.config_path("ns-1").write_text(f"listenPort=9876\nhttpPort={http_port}\n")
    state.write()


def test_targets_are_the_nodes_of_the_cluster(tmp_path: Path) -> None:
    cluster(tmp_path, "9900")
    assert "127.0.0.1:9900" in run("prometheus", "--directory", str(tmp_path))
    assert "10.0.0.1:9920" in run("prometheus", "--target", "a=10.0.0.1:9920")
    assert "RmqhaGroupWithoutMaster" in run("prometheus", "--alerts")


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    cluster(tmp_path, "0")
    for args, words in (
        (
            ["prometheus", "--directory", str(tmp_path)],
            "no node of c shows metrics: set .* in my.toml, or give --target",
        ),
        (["prometheus", "--target", "10.0.0.1"], "must be NAME=HOST:PORT"),
        (["prometheus", "--target", "a=10.0.0.1"], "--target a=10.0.0.1: "),
        (["prometheus", "--target", "=10.0.0.1:9920"], "must be NAME=HOST:PORT"),
        (["prometheus", "--target", "a=h:1", "--target", "a=h:2"], "--target a=h:2: two targets have this name"),
        (["k8s", "--group", "Broker_A"], "--group 'Broker_A' must be lower-case"),
        (["k8s", "--name", "1a"], "--name '1a' must begin with a letter"),
        (["k8s", "--storage", "fifty"], "--storage 'fifty' must be a size"),
        (["k8s", "--storage", "0"], "--storage '0' must be a size"),
        (["k8s", "--image", ""], "--image '' must be the name of an image"),
        (["k8s", "--group", "b" * 50], "the StatefulSet rmqha-b+ would have 56 letters, more than 52"),
    ):
        with pytest.raises(UsageError, match=words):
            CliRunner().invoke(cli, ["generate", *args], catch_exceptions=False)


def test_everything_else_is_printed() -> None:
    assert run("grafana").startswith("{")
    assert "ExecStart=/" in run("systemd", "broker")
    assert "kind: StatefulSet" in run("k8s")
    assert "_RMQHA_COMPLETE" in run("completion", "zsh")


def test_bash_completes_commands(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash"))
    path = f"PATH={quote(str(Path(sys.executable).parent))}:$PATH"
    words = "COMP_WORDS=(rmqha gen); COMP_CWORD=1"
    ask = f'source {quote(str(script))}; {path}; {words}; _rmqha_completion rmqha; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["generate"]


def test_names_complete_without_loading_commands() -> None:
    found = cli.shell_complete(cli.make_context("rmqha", [], resilient_parsing=True), "")
    assert {item.value for item in found} >= {*COMMANDS, *SERVERS}
    assert all(item.help for item in found if item.value in COMMANDS)
