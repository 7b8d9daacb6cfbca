"""`rmqha broker`: the process around a replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmqha.cli.main import cli
from rmqha.host.process_environment import ProcessEnvironment


def test_the_garbage_collector_walks_through_no_loaded_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is loaded: thousands of connections that come, or topics that are made, set off collections of all there
    is, each of which would stop the broker for a hundred milliseconds."""
    happened: list[str] = []

    async def loads(*given: Any, exposure: Any, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        happened.append("loaded")
        task_status.started()
        await wait_all_tasks_blocked()
        happened.append("ended")

    monkeypatch.setattr("rmqha.broker.server.run_broker", loads)
    monkeypatch.setattr("rmqha.host.process.freeze_loaded_objects", lambda: happened.append("spared"))
    monkeypatch.setattr(ProcessEnvironment, "run", lambda self, serve: trio.run(serve, trio.Event()))
    path = tmp_path / "node.conf"
    path.write_text(f"brokerName=broker-a\nlistenPort=20911\nstorePathRootDir={tmp_path}\n")
    command = cli.get_command(click.Context(cli), "broker")
    assert command is not None
    command.main(["-c", str(path)], standalone_mode=False)
    assert happened == ["loaded", "spared", "ended"]
