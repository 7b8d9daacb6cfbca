"""`rmqha join`: a new replica joins a running group, or a drained one takes part again. Control plane."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.target import target_options
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import UnreachableError, UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.launch import launch
from rmqha.ops.membership.group import broker_node, keep_advice, redundancy
from rmqha.ops.membership.joining import check_controllers, join_group, joins_as_learner, new_node, write_node


@click.command(epilog="Example: rmqha join broker-a-4")
@click.argument("node")
@click.option("--learner", is_flag=True, help="As an async learner: copies and serves reads, never in the set.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=3600.0, show_default=True, help="Seconds to wait.")
@target_options
@output_option
def join(node: str, learner: bool, timeout: float, state: ClusterState, output: str) -> None:
    """Start NODE, a new replica of a running group, wait until it is in the SyncStateSet, then raise totalReplicas.

    The node gets the next number of its group. A node that was drained takes part again. Ctrl-C leaves the replica
    copying; the same command goes on from there.

    Of a cluster elsewhere NODE has been started on its machine by `rmqha broker -c FILE`, with the new totalReplicas:
    a number that is too small is refused at once.
    """
    if state.is_remote:
        if learner:
            raise UsageError(
                "--learner is for a replica that is started here; elsewhere its file has asyncLearner=true"
            )
        record = broker_node(state, node)
        if not record.alive:
            raise UnreachableError(
                f"{node} at {record.address} does not answer; start it on its machine by rmqha broker -c FILE, with "
                "the new totalReplicas"
            )
    else:
        with state.locked():
            spec = new_node(state, node, learner)
            ask_by(check_controllers, state, spec.group)
            if node not in state.nodes or not state.nodes[node].alive:
                write_node(state, spec)
                launch(state, node)
        record = state.nodes[node]
    with CopyProgressBar(node) as progress:
        view, seen = ask_by(join_group, state, record, learner, timeout, progress.show)
    where = "as an async learner" if joins_as_learner(seen, learner=learner) else "in the SyncStateSet"
    size = f"{seen.max_phy_offset if seen else 0:,} bytes"
    sentence = f"{node} has copied {size} and is {where}; {redundancy(view, record.group)}"
    if not state.is_remote and (advice := keep_advice(state, record.group)):
        sentence += f"; {advice} to keep it there"
    if output == "json":
        echo_json(
            {
                "node": node,
                "pid": None if state.is_remote else record.pid,
                "brokerId": seen.broker_id if seen else None,
                "totalReplicas": view.total_replicas,
                "sentence": sentence,
            }
        )
    else:
        click.echo(sentence)


class CopyProgressBar:
    """Progress of the copy on standard error: a bar on a terminal, else a line for each tenth."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = ""
        self._tenth = -1
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.progress import TransferSpeedColumn as Speed

            from rmqha.cli.rich_console import rich_console

            columns = (
                TextColumn("{task.description}"),
                BarColumn(20),
                DownloadColumn(),
                Speed(),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=rich_console(sys.stderr), transient=True)
            self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> CopyProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, step: str, done_bytes: int, total_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task, description=f"{self._name}: {step}", completed=done_bytes, total=max(total_bytes, 1)
            )
            return
        tenth = 10 * done_bytes // total_bytes if total_bytes else 10
        if step != self._told or tenth != self._tenth:
            self._told, self._tenth = step, tenth
            click.echo(f"{self._name}: {step}, {done_bytes:,} of {total_bytes:,} bytes", err=True)
