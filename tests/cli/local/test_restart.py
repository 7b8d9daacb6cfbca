"""`rmqha restart` of a cluster directory: the record is read anew, and NODE must run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from rmqha.cli.local.restart import LocalNodes
from rmqha.cli.main import cli
from rmqha.host.asking.shell import Caller
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.supervisor import start_stamp
from tests.cli.local.test_nodes import state, stranger

__all__ = ["state", "stranger"]


def error_of(state: ClusterState, *arguments: str) -> Any:
    return CliRunner().invoke(cli, ["restart", *arguments, "--directory", str(state.directory)]).exception


def test_a_node_that_is_unknown_or_stopped_is_refused(state: ClusterState) -> None:
    for name, words in (("nobody", "there is no node nobody"), ("broker-a-1", "broker-a-1 does not run")):
        error = error_of(state, name)
        assert isinstance(error, UsageError) and words in str(error)
    error = error_of(state)
    assert isinstance(error, RmqhaError) and not isinstance(error, UsageError)
    assert str(error) == "no node runs; start them with rmqha up"


def test_the_record_is_read_anew_for_each_stop(state: ClusterState, stranger: subprocess.Popen[bytes]) -> None:
    nodes = LocalNodes(cast("Caller", None), state.directory)
    with nodes.locked(), pytest.raises(UsageError, match="broker-a-1 does not run"):
        nodes.restart("broker-a-1")
    # another command has started it meanwhile
    record = state.nodes["broker-a-1"]
    state.nodes["broker-a-1"] = replace(record, pid=stranger.pid, process_start=start_stamp(stranger.pid) or "")
    state.write()
    with nodes.locked(), pytest.raises(UsageError, match=f"calls process {stranger.pid} broker-a-1, but"):
        nodes.restart("broker-a-1")
    Path(state.directory / "cluster.json").unlink()
    with pytest.raises(RmqhaError, match="holds no cluster any more"):
        nodes.last_log_line("broker-a-1")
