"""The cluster that a command changes: asked for where several run in a folder and none is named, and named itself.
Control plane."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from rmqha.cli.options import elsewhere, find_cluster, place_options
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, FILE, LAST_UP, ClusterState

F = TypeVar("F", bound=Callable[..., Any])


def acting_options(command: F) -> F:
    """`--namesrv`, `--controller`, `--directory` of a command that changes it, which gets `state: ClusterState`."""

    @wraps(command)
    def found(*args: Any, namesrv: str | None, controller: str | None, directory: Path | None, **others: Any) -> Any:
        if elsewhere(namesrv, controller, directory) is None:
            state = acting_cluster(directory)
        else:
            state = find_cluster(namesrv, controller, directory)
            announce(state)
        return command(*args, state=state, **others)

    return cast(F, place_options(found))


def acting_cluster(directory: Path | None) -> ClusterState:
    """The cluster of this machine to change: that of --directory or $RMQHA_DIRECTORY, else the last that was started in
    this folder; somebody at a terminal is asked which if several run there. Raises UsageError."""
    running = running_here() if directory is None and not os.environ.get(DIRECTORY_VARIABLE) else []
    state = _asked(running) if len(running) > 1 else ClusterState.require(directory)
    announce(state)
    return state


def running_here() -> list[ClusterState]:
    """Clusters in this folder of which a process runs, by name."""
    found = {path.parent.absolute() for path in LAST_UP.parent.glob(f"*/{FILE}")}
    states = filter(None, map(ClusterState.read, sorted(found)))
    return [state for state in states if any(node.alive for node in state.nodes.values())]


def announce(state: ClusterState) -> None:
    """Name the cluster to whoever sits at a terminal, and in any case one that is none of this folder."""
    if state.is_remote or sys.stderr.isatty():
        click.echo(f"cluster {state.name}, {state.where}", err=True)


def _asked(running: list[ClusterState]) -> ClusterState:
    names = [_short(state.directory) for state in running]
    told = f"several clusters run in this folder, in {' and in '.join(names)}"
    if not sys.stdin.isatty():
        raise UsageError(f"{told}; name one by --directory")
    click.echo(told, err=True)
    chosen = click.prompt("Which one", type=click.Choice(names), err=True)
    return running[names.index(chosen)]


def _short(directory: Path) -> str:
    """The directory as seen from here."""
    return str(directory.relative_to(Path.cwd())) if directory.is_relative_to(Path.cwd()) else str(directory)
