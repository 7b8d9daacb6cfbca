"""`rmqha fork`: replicas that refuse to follow: the messages that only they have, and a new copy beside the old one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmqha.cli.options import (
    cluster_options,
    complete_node,
    confirm,
    directory_option,
    echo_json,
    output_option,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rmqha.ops.fork import RefusedFork
    from rmqha.ops.local.cluster_state import ClusterState
    from rmqha.store.log.record import Record


@click.group()
def fork() -> None:
    """Replicas that refuse to follow their master: ls, show, repair."""


@fork.command("ls", epilog="Example: rmqha fork ls")
@cluster_options
@output_option
def ls_command(state: ClusterState, output: str) -> None:
    """List the replicas that refuse to follow.

    A replica that does not answer is named on standard error. Exit code: 0 none does, 1 one does, 2 nobody answers.
    """
    from rmqha.cli.local.status import view_once
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.fork import forks_of, silent_replicas

    view = ask_by(view_once, state)
    found, silent = forks_of(view), silent_replicas(view)
    if output == "json":
        echo_json([asdict(item) for item in found])
    else:
        for item in found:
            click.echo(item.sentence)
        if not found:
            click.echo("no replica that answers refuses to follow" if silent else "no replica refuses to follow")
    if silent:
        click.echo(f"not known of {', '.join(silent)}, which did not answer; see rmqha status", err=True)
    if found:
        sys.exit(1)


@fork.command(epilog="Example: rmqha fork show broker-a-3")
@click.argument("node", shell_complete=complete_node)
@directory_option
def show(node: str, directory: Path | None) -> None:
    """Tell where the log of NODE parts from its master's, and which messages it has alone, without changing anything.

    Exit code: 0 told, 1 it refuses nothing, 2 it does not answer.
    """
    from rmqha.ops.local.cluster_state import ClusterState

    state = ClusterState.require(directory)
    _require_broker(state, node)
    item = _repairable(state, node)
    click.echo(item.sentence)
    for line in _alone(state, item):
        click.echo(line)


@fork.command(epilog="Example: rmqha fork repair broker-a-3")
@click.argument("node", shell_complete=complete_node)
@yes_option
@click.option("--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to well.")
@directory_option
def repair(node: str, yes: bool, timeout: float, directory: Path | None) -> None:
    """Let NODE copy its master anew. Its store is moved aside whole, and the messages that it has alone are exported.

    NODE is stopped, its store becomes DIR/NODE/store.fork-<n>, the messages DIR/NODE/fork-<n>.jsonl; then it starts
    empty, with its id, and copies. Nothing is deleted.

    Exit code: 0 it is back in the SyncStateSet, 1 refused, or it did not get there in time.
    """
    from rmqha.cli.local.launch_progress import wait_shown
    from rmqha.cli.local.nodes import running, started_state
    from rmqha.cli.storage.log_export import export_lines
    from rmqha.cli.target import target_cluster
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.local.fresh_store import put_aside
    from rmqha.ops.local.launch import launch
    from rmqha.ops.local.supervisor import DRAIN_TIMEOUT_S, require_gone, stop_all

    state = target_cluster(directory)
    _require_broker(state, node)
    item = _repairable(state, node)
    click.echo(item.sentence)
    for line in _alone(state, item):
        click.echo(line)
    confirm(f"put the log of {node} aside and copy that of {item.master}?", "nothing changed", yes=yes)
    with state.locked():
        process = running(state, node)
        stop_all([process], DRAIN_TIMEOUT_S)
        require_gone([process])
        store = state.data_path(state.node(node))
        number = _next_number(store.parent)
        target = store.parent / f"fork-{number}.jsonl"
        count = export_lines(_records(store, item.point), target, "base64", force=False)
        aside = put_aside(store, number)
        launch(state, node)
    click.echo(f"{count} messages are in {target}; the whole store is kept in {aside}", err=True)
    view = ask_by(wait_shown, state, [node], timeout)
    click.echo(started_state(view, node)["sentence"])


def _require_broker(state: ClusterState, node: str) -> None:
    """Raise UsageError unless the node is a broker."""
    from rmqha.model.error import UsageError

    if not state.node(node).is_broker:
        raise UsageError(f"{node} is no broker")


def _repairable(state: ClusterState, node: str) -> RefusedFork:
    from rmqha.cli.local.status import view_once
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.fork import require_repairable

    return require_repairable(ask_by(view_once, state), node)


def _records(store: Path, point: int) -> Iterator[Record]:
    """Records of the log from `point` on, committed or not."""
    from rmqha.host.read_disk import HostReadDisk
    from rmqha.inspect.log_query import RecordQuery, entries, record_of
    from rmqha.inspect.store_inspection import inspect_store

    for entry, parts in entries(inspect_store(HostReadDisk(store)), RecordQuery(start=point, uncommitted=True)):
        yield record_of(entry, parts)


def _alone(state: ClusterState, item: RefusedFork) -> list[str]:
    """A line for each topic: the number of messages that only this replica has, and their store times."""
    from rmqha.cli.times import local_time
    from rmqha.model.printable import printable

    topics: dict[str, tuple[int, int, int]] = {}
    for record in _records(state.data_path(state.node(item.node)), item.point):
        count, first_ms, last_ms = topics.get(record.topic, (0, record.store_timestamp_ms, 0))
        topics[record.topic] = (
            count + 1,
            min(first_ms, record.store_timestamp_ms),
            max(last_ms, record.store_timestamp_ms),
        )
    if not topics:
        return [f"{item.node} has no whole message alone"]
    return [
        f"alone on {item.node}: {count} messages of {printable(topic, lines=False)}, stored {local_time(first_ms)} to "
        f"{local_time(last_ms)}"
        for topic, (count, first_ms, last_ms) in sorted(topics.items())
    ]


def _next_number(directory: Path) -> int:
    taken = [path.name.rpartition("-")[2].removesuffix(".jsonl") for path in directory.glob("*fork-*")]
    return 1 + max((int(text) for text in taken if text.isdigit()), default=0)
