"""`rmqha join`: a new replica joins a running group, or a drained one takes part again. Control plane."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from rmqha.cli.acting import acting_options
from rmqha.cli.local.members import (
    POLL_S,
    ask_group,
    broker_node,
    counted,
    keep_advice,
    redundancy,
    replica_at,
    resize,
    tell,
)
from rmqha.cli.options import echo_json, output_option
from rmqha.host.access.shared_secret import make_secret_file
from rmqha.host.asking.shell import Caller, ask_by, open_client, sleep, within
from rmqha.host.disk import make_directories
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RmqhaError, UnreachableError, UsageError
from rmqha.ops.asking import state_of
from rmqha.ops.local.cluster_file import SECRET_FILE, NodeSpec, load, properties_text
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord, last_line, write_atomic
from rmqha.ops.local.launch import last_words, launch
from rmqha.ops.local.preflight import check_ports
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica
from rmqha.wire.state.replica_state import ReplicaState

RESIZE_TIMEOUT_S = 15.0


@click.command(epilog="Example: rmqha join broker-a-4")
@click.argument("node")
@click.option("--learner", is_flag=True, help="As an async learner: copies and serves reads, never in the set.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=3600.0, show_default=True, help="Seconds.")
@acting_options
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
            ask_by(_check_controllers, state, spec.group)
            if node not in state.nodes or not state.nodes[node].alive:
                _write_node(state, spec)
                launch(state, node)
        record = state.nodes[node]
    view, seen = ask_by(_join, state, record, learner, timeout)
    where = "as an async learner" if _is_learner(seen, learner=learner) else "in the SyncStateSet"
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


def new_node(state: ClusterState, name: str, learner: bool) -> NodeSpec:
    """The node as the cluster file would have it with one replica more. Raises UsageError."""
    group, _, number = name.rpartition("-")
    if group not in state.groups or not number.isdecimal() or int(number) < 1:
        raise UsageError(
            f"{name} is no new replica of a group; NODE is a group's name with the next number, and the groups are "
            f"{', '.join(state.groups)}"
        )
    state.refuse_static(group)
    numbers = [int(node.name.rpartition("-")[2]) for node in state.brokers if node.group == group]
    highest = max(numbers)
    if int(number) > highest + 1:
        raise UsageError(f"{name} leaves a gap: the next replica of {group} is {group}-{highest + 1}")
    keys = {name: {"asyncLearner": True}} if learner else {}
    spec = load(
        Path(state.cluster_file),
        ha_mode=state.ha_mode,
        directory=state.directory,
        replicas={group: max(highest, int(number))},
        node_keys=keys,
    )
    node = spec.node(name)
    if node.properties.get("enableControllerMode") == "false":
        raise UsageError(f"{group} is a static group: it changes with its file, not at run time")
    if name not in state.nodes or not state.nodes[name].alive:
        check_ports([node], spec.source)
    return dataclasses.replace(node, properties=dict(node.properties))


def _write_node(state: ClusterState, spec: NodeSpec) -> None:
    head = load(Path(state.cluster_file), ha_mode=state.ha_mode, directory=state.directory)
    make_directories(state.node_directory(spec.name))
    make_secret_file(state.directory / SECRET_FILE)
    write_atomic(state.config_path(spec.name), properties_text(head, spec))
    state.nodes[spec.name] = NodeRecord.of(spec)
    state.write()


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


async def _check_controllers(state: ClusterState, group: str) -> None:
    """Check that the controllers answer, before anything is written or started. Raises UnreachableError, RmqhaError."""
    async with open_client() as client:
        await ask_group(client, state, group)


async def _join(
    state: ClusterState, record: NodeRecord, learner: bool, timeout_s: float
) -> tuple[ExplainedGroup, ReplicaState | None]:
    group = record.group
    async with open_client() as client:
        seen: ReplicaState | None = None
        step, goal, is_learner = "starting", None, learner
        with CopyProgressBar(record.name) as progress, within(timeout_s) as limit:
            while True:
                if not record.alive:
                    raise RmqhaError(f"{record.name} ended while joining: {last_words(state, record.name)}")
                view = await ask_group(client, state, group)
                replica = replica_at(view, record.address)
                if replica is not None and replica.drained:
                    ext = {"brokerName": group, "brokerId": str(replica.broker_id), "drained": "false"}
                    await tell(client, state, RequestCode.RMQHA_DRAIN_REPLICA, ext)
                seen = await _state_of(client, record) or seen
                if seen is not None and (refusal := final_refusal(seen)):
                    raise RmqhaError(f"the controllers do not take {record.name}: {refusal}")
                step = _step(seen, replica)
                if step == "copying" and goal is None:
                    goal = _end(view)
                reached = seen.max_phy_offset if seen is not None else 0
                is_learner = _is_learner(seen, learner=learner)
                if is_learner and goal is not None and reached >= goal:
                    step = "well"
                progress.show(step, reached, _end(view))
                if step == "well":
                    break
                await sleep(POLL_S)
        if limit.cancelled_caught:
            told = "" if state.is_remote else f"; its log ends: {last_line(state.log_path(record.name))}"
            raise RmqhaError(f"{record.name} is not well after {timeout_s:g} s: {step}{told}")
        total = max(view.total_replicas, view.next_total_replicas or 0)
        if not is_learner and len(counted(view)) > total:
            await resize(client, state, group, len(counted(view)), RESIZE_TIMEOUT_S)
        return await ask_group(client, state, group), seen


def _is_learner(seen: ReplicaState | None, *, learner: bool) -> bool:
    """True if the replica is a learner, by the option or by its own file."""
    return learner or (seen is not None and bool(seen.async_learner))


async def _state_of(client: Caller, record: NodeRecord) -> ReplicaState | None:
    """The broker's state (52000), None while it does not listen yet."""
    try:
        return await state_of(client, record.address, ReplicaState)
    except UnreachableError:
        return None


def _end(view: ExplainedGroup) -> int:
    """End of the group's longest log, as last reported."""
    return max((item.max_offset or 0 for item in view.replicas), default=0)


def final_refusal(seen: ReplicaState) -> str:
    """The controllers' sentence on keys of the replica that they refuse, "" without one. The replica asks again, but is
    refused until its file is changed."""
    before = f"code {ResponseCode.CONTROLLER_INVALID_REQUEST:d}: "
    told = seen.controller_refusal or ""
    return told.removeprefix(before) if told.startswith(before) else ""


def _step(seen: ReplicaState | None, replica: ExplainedReplica | None) -> str:
    if seen is None:
        return "starting"
    if replica is None or seen.broker_id is None:
        return seen.controller_refusal or "registering"
    if seen.refusal:
        return seen.refusal
    if replica.in_sync_state_set:
        return "well"
    return "copying" if seen.follow_state == "following" else "aligning"
