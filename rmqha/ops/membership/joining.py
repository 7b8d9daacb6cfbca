"""A replica that joins its group: its node's file, and the wait until it is in the SyncStateSet. Control plane."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from rmqha.host.access.shared_secret import make_secret_file
from rmqha.host.asking.shell import Caller, open_client, sleep, within
from rmqha.host.disk import make_directories
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RmqhaError, UnreachableError, UsageError
from rmqha.ops.asking import state_of
from rmqha.ops.local.cluster_file import SECRET_FILE, NodeSpec, load, properties_text
from rmqha.ops.local.cluster_state import ClusterState, NodeRecord, last_line, write_atomic
from rmqha.ops.local.launch import last_log_line
from rmqha.ops.local.preflight import check_ports
from rmqha.ops.membership.group import POLL_S, ask_group, counted, replica_at, resize, tell
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica
from rmqha.wire.state.replica_state import ReplicaState

RESIZE_TIMEOUT_S = 15.0


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


def write_node(state: ClusterState, spec: NodeSpec) -> None:
    """Write the files of a node and add it to the record of the cluster."""
    head = load(Path(state.cluster_file), ha_mode=state.ha_mode, directory=state.directory)
    make_directories(state.node_directory(spec.name))
    make_secret_file(state.directory / SECRET_FILE)
    write_atomic(state.config_path(spec.name), properties_text(head, spec))
    state.nodes[spec.name] = NodeRecord.of(spec)
    state.write()


async def check_controllers(state: ClusterState, group: str) -> None:
    """Check that the controllers answer, before anything is written or started. Raises UnreachableError, RmqhaError."""
    async with open_client() as client:
        await ask_group(client, state, group)


async def join_group(
    state: ClusterState, record: NodeRecord, learner: bool, timeout_s: float, show: Callable[[str, int, int], None]
) -> tuple[ExplainedGroup, ReplicaState | None]:
    """Wait until a running replica has joined, then raise totalReplicas. `show` takes the step, the bytes that are
    copied and those in all. Raises RmqhaError."""
    group = record.group
    async with open_client() as client:
        seen: ReplicaState | None = None
        step, goal, is_learner = "starting", None, learner
        with within(timeout_s) as limit:
            while True:
                if not record.alive:
                    raise RmqhaError(f"{record.name} ended while joining: {last_log_line(state, record.name)}")
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
                is_learner = joins_as_learner(seen, learner=learner)
                if is_learner and goal is not None and reached >= goal:
                    step = "well"
                show(step, reached, _end(view))
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


def joins_as_learner(seen: ReplicaState | None, *, learner: bool) -> bool:
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
