"""Options of commands that change a cluster: if several run in a folder and none is named, the user is asked which; the
command then names the cluster. Control plane."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from rmqha.cli import contexts
from rmqha.cli.options import (
    DEFAULT_NAMESRV,
    controllers_parameters,
    find_cluster,
    namesrv_parameter,
    place_options,
    remote_context,
    resolve_controllers,
    resolve_namesrv,
)
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_state import DIRECTORY_VARIABLE, FILE, LAST_UP, ClusterState

F = TypeVar("F", bound=Callable[..., Any])
Acts = Callable[[Mapping[str, Any]], bool]
"""Test that is True if a command with these arguments changes something: some only read with certain arguments."""


def _always(given: Mapping[str, Any]) -> bool:
    return True


# --- options ----------------------------------------------------------------------------------------------------------
def target_options(command: F) -> F:
    """`--namesrv`, `--controller`, `--directory` of a command that changes the cluster: it gets `state:
    ClusterState`."""

    @wraps(command)
    def found(*args: Any, namesrv: str | None, controller: str | None, directory: Path | None, **others: Any) -> Any:
        if remote_context(namesrv, controller, directory) is None:
            state = target_cluster(directory)
        else:
            state = find_cluster(namesrv, controller, directory)
            announce(state)
        return command(*args, state=state, **others)

    return cast(F, place_options(found))


def optional_target_options(acts: Acts) -> Callable[[F], F]:
    """Options as of `target_options`; the command gets `state: ClusterState | None`, None where no cluster is known: it
    then takes addresses only. The user is asked only if the command `acts` on what the cluster names."""

    def made(command: F) -> F:
        @wraps(command)
        def found(
            *args: Any, namesrv: str | None, controller: str | None, directory: Path | None, **others: Any
        ) -> Any:
            state: ClusterState | None
            if remote_context(namesrv, controller, directory) is not None:
                state = find_cluster(namesrv, controller, directory)
                announce(state)
            elif acts(others):
                state = _here(directory, "--directory")
                if state is not None:
                    announce(state)
            else:
                state = ClusterState.find(directory)
            return command(*args, state=state, **others)

        return cast(F, place_options(found))

    return made


def target_namesrv_option(acts: Acts = _always) -> Callable[[F], F]:
    """`--namesrv HOST:PORT` of a command that changes the cluster of these name servers: it gets `namesrv: str`,
    resolved. The user is asked only if the command `acts`."""

    def made(command: F) -> F:
        @wraps(command)
        def found(*args: Any, namesrv: str | None, **others: Any) -> Any:
            chosen = target_namesrv(namesrv) if acts(others) else resolve_namesrv(namesrv)
            return command(*args, namesrv=chosen, **others)

        return cast(F, namesrv_parameter(found))

    return made


def target_controllers_option(command: F) -> F:
    """`--controller HOST:PORT`, `--namesrv HOST:PORT` of a command that changes what controllers keep: it gets
    `controllers: list[str]`, resolved, and `state: ClusterState | None`, the cluster of this machine that they belong
    to."""

    @wraps(command)
    def found(*args: Any, controllers: str | None, namesrv: str | None, **others: Any) -> Any:
        if controllers is not None or namesrv is not None or contexts.default_context() is not None:
            resolved, state = resolve_controllers(controllers, namesrv), None
            _announce_servers("controllers", ";".join(resolved), is_given=bool(controllers or namesrv))
        else:
            state = target_cluster(None, "--controller")
            resolved = state.controller_addresses
        return command(*args, controllers=resolved, state=state, **others)

    return cast(F, controllers_parameters(found))


# --- the cluster ------------------------------------------------------------------------------------------------------
def target_cluster(directory: Path | None, option: str = "--directory") -> ClusterState:
    """The cluster of this machine to change: that of --directory or $RMQHA_DIRECTORY, else the last that was started in
    this folder; somebody at a terminal is asked which if several run there. `option`: the one that would have named it.
    Raises UsageError."""
    state = _here(directory, option) or ClusterState.require(directory)
    announce(state)
    return state


def target_directory(namesrv: str | None, controller: str | None, directory: Path | None) -> Path | None:
    """Directory of the cluster to change: `directory`, or that of the cluster which the user chose of several that run
    here; None if there is no choice. Raises UsageError."""
    if directory is not None or namesrv or controller or contexts.default_context() is not None:
        return directory
    state = _here(None, "--directory")
    return None if state is None else state.directory


def target_namesrv(given: str | None) -> str:
    """The name servers of the cluster to change, joined by ";": as given, else those of the context in use, else those
    of `target_cluster`, else the quick start's. Raises UsageError."""
    if given is not None or contexts.default_context() is not None:
        addresses = resolve_namesrv(given)
        _announce_servers("name servers", addresses, is_given=given is not None)
        return addresses
    state = _here(None, "--namesrv")
    if state is None:
        _announce_servers("name servers", DEFAULT_NAMESRV, is_given=True)
        return DEFAULT_NAMESRV
    announce(state)
    return state.namesrv_addresses or DEFAULT_NAMESRV


def _here(directory: Path | None, option: str) -> ClusterState | None:
    running = running_here() if directory is None and not os.environ.get(DIRECTORY_VARIABLE) else []
    return _asked(running, option) if len(running) > 1 else ClusterState.find(directory)


def running_here() -> list[ClusterState]:
    """Clusters in this folder of which a process runs, by name."""
    found = {path.parent.absolute() for path in LAST_UP.parent.glob(f"*/{FILE}")}
    states = filter(None, map(ClusterState.read, sorted(found)))
    return [state for state in states if any(node.alive for node in state.nodes.values())]


def announce(state: ClusterState) -> None:
    """Print which cluster is changed: on a terminal, and always for a cluster that is not in this folder."""
    if state.is_remote or sys.stderr.isatty():
        click.echo(f"cluster {state.name}, {state.where}", err=True)


def _announce_servers(what: str, addresses: str, *, is_given: bool) -> None:
    """Print which servers are asked, as `announce` does. `is_given`: the command itself names them, which is enough for
    a script."""
    if not is_given or sys.stderr.isatty():
        click.echo(f"{what} {addresses}", err=True)


def _asked(running: list[ClusterState], option: str) -> ClusterState:
    names = [_short(state.directory) for state in running]
    told = f"several clusters run in this folder, in {' and in '.join(names)}"
    if not sys.stdin.isatty():
        other = "" if option == "--directory" else f" or ${DIRECTORY_VARIABLE}"
        raise UsageError(f"{told}; name one by {option}{other}")
    click.echo(told, err=True)
    chosen = click.prompt("Which one", type=click.Choice(names), err=True)
    return running[names.index(chosen)]


def _short(directory: Path) -> str:
    """The directory as a short path: relative to the current one if it lies below."""
    return str(directory.relative_to(Path.cwd())) if directory.is_relative_to(Path.cwd()) else str(directory)
