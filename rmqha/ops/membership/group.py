"""Parts that all changes of a group share: the controllers' view of it and waiting for it. Control plane."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from rmqha.host.asking.shell import Caller, now_s, sleep
from rmqha.host.text_file import read_text
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError
from rmqha.model.identity import node_label
from rmqha.ops.answer import readable_answer
from rmqha.ops.asking import ask_leader
from rmqha.ops.local.cluster_state import QUICKSTART, ClusterState, NodeRecord, write_atomic
from rmqha.wire.command import Command
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica

POLL_S = 0.1


def broker_node(state: ClusterState, name: str) -> NodeRecord:
    """The record of a broker's node. UsageError if the node is unknown, no broker, or of a static group."""
    record = state.node(name)
    if not record.is_broker:
        raise UsageError(f"{name} is no broker; see rmqha quorum for controllers")
    state.refuse_static(record.group)
    return record


def keep_advice(state: ClusterState, group: str) -> str:
    """Advice so that the next `rmqha up` starts as many brokers of the group as there are now; "" if its file says so.
    The file of the quick start is the package's, which no one should write into."""
    from rmqha.ops.local.cluster_file import load

    count = sum(1 for other in state.brokers if other.group == group)
    path = Path(state.cluster_file)
    try:
        groups = load(path, ha_mode=state.ha_mode, directory=state.directory).groups
    except RmqhaError:
        groups = ()  # the file was moved or is being edited: the advice names it all the same
    if any(item.name == group and item.replicas == count for item in groups):
        return ""
    if path == QUICKSTART:
        ap = " --ap" if state.ha_mode == "ap" else ""
        return f"start the cluster by `rmqha up --brokers {count}{ap}` from now on"
    return f"write replicas = {count} into {path}"


async def explained(client: Caller, controllers: list[str], group: str) -> tuple[ExplainedGroup, str]:
    """The leading controller's report on a group (request 52010), and its address.

    Raises UsageError if it knows no such group, RemoteError for another refusal, UnreachableError without a leader.
    """
    request = lambda: Command(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": group})  # noqa: E731
    try:
        reply, address = await ask_leader(client, controllers, request)
    except RemoteError as error:
        if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            raise UsageError(f"the controllers know no group {group!r}; see rmqha health") from None
        raise
    with readable_answer(address, "a controller's"):
        return ExplainedGroup.from_json(json.loads(bytes(reply.body))), address


async def ask_group(client: Caller, state: ClusterState, group: str) -> ExplainedGroup:
    """The leading controller's report on a group. Raises UnreachableError without a leader, RmqhaError if it is
    Apache's or knows no such group."""
    try:
        return (await explained(client, state.controller_addresses, group))[0]
    except RemoteError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RmqhaError("these controllers are Apache's: they can neither drain nor resize a group") from None
        raise


async def tell(client: Caller, state: ClusterState, code: RequestCode, ext: dict[str, str]) -> Command:
    """Send one request to the leader. Its refusal is raised as a sentence without the code."""
    try:
        reply, _ = await ask_leader(client, state.controller_addresses, lambda: Command(code, dict(ext)))
    except RemoteError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RmqhaError("these controllers do not know that request; upgrade all of them first") from None
        raise RmqhaError(error.remark or str(error)) from None
    return reply


async def wait_group(
    client: Caller,
    state: ClusterState,
    group: str,
    timeout_s: float,
    done: Callable[[ExplainedGroup], bool],
) -> tuple[ExplainedGroup, bool]:
    """Ask until `done` holds or the time is over. Returns the last view, and True if it holds."""
    deadline = now_s() + timeout_s
    while True:
        view = await ask_group(client, state, group)
        if done(view) or now_s() >= deadline:
            return view, done(view)
        await sleep(POLL_S)


def replica_at(view: ExplainedGroup, address: str) -> ExplainedReplica | None:
    """The replica that registered with this address."""
    return next((item for item in view.replicas if item.address == address), None)


def _named(state: ClusterState | None, view: ExplainedGroup, broker_id: int | None) -> tuple[str, str]:
    """Name of a replica's node, by the cluster directory, else by the controllers, "" if neither knows it; and its
    address."""
    item = next((item for item in view.replicas if item.broker_id == broker_id), None)
    if item is None:
        return "", ""
    here = [node.name for node in state.brokers if node.address == item.address] if state is not None else []
    return here[0] if here else item.node_name or "", item.address


def node_of(state: ClusterState | None, view: ExplainedGroup, broker_id: int | None) -> str:
    """Name of a replica's node; its id and address in words if the name is not known."""
    name, address = _named(state, view, broker_id)
    return name or node_label("", broker_id, address)


def replica_label(state: ClusterState | None, view: ExplainedGroup, broker_id: int) -> str:
    """The name in sentences, with the id beside it where they differ."""
    name, address = _named(state, view, broker_id)
    return node_label(name, broker_id, address)


def counted(view: ExplainedGroup) -> list[ExplainedReplica]:
    """The replicas that totalReplicas counts."""
    return [item for item in view.replicas if not item.async_learner]


async def resize(client: Caller, state: ClusterState, group: str, total: int, timeout_s: float) -> None:
    """Make totalReplicas `total` and wait until it is final; the nodes' files say so too. Raises RmqhaError."""
    ext = {"brokerName": group, "totalReplicas": str(total)}
    await tell(client, state, RequestCode.RMQHA_RESIZE_GROUP, ext)
    final = lambda view: view.total_replicas == total and not view.next_total_replicas  # noqa: E731
    _, done = await wait_group(client, state, group, timeout_s, final)
    if not done:
        raise RmqhaError(
            f"totalReplicas of {group} is on its way to {total}: its master has not taken it over within {timeout_s:g} "
            "s; see rmqha explain"
        )
    for node in state.brokers:
        if node.group == group and not state.is_remote:
            _write_total(state.config_path(node.name), total)


def _write_total(path: Path, total: int) -> None:
    text = read_text(path, "the configuration")
    write_atomic(path, re.sub(r"(?m)^totalReplicas=.*$", f"totalReplicas={total}", text))


def redundancy(view: ExplainedGroup, group: str) -> str:
    """The number of copies that remain, and of those that may still fail, in words."""
    members = [item for item in view.replicas if item.in_sync_state_set and item.alive]
    total, count = max(view.total_replicas, view.next_total_replicas or 0), len(members)
    copies = f"{count} of {total} copies of {group} remain in the SyncStateSet"
    if view.ha_mode != "cp":
        return f"{copies}; it stays writable with one"
    if count == 1:
        return f"{copies}: one copy, synced before each acknowledgement" if total == 2 else f"{copies}: one copy"
    spare = count - (total // 2 + 1) if total > 2 else count - 1
    if spare <= 0:
        return f"{copies}: the loss of one more takes no acknowledged message, but sends are refused until it is back"
    return f"{copies}: sends go on if {spare} more {'fails' if spare == 1 else 'fail'}"


def needed_in_cp(total: int) -> int:
    """Members of the SyncStateSet that a CP group of `total` replicas needs to take messages (ruling 1, 6)."""
    return 1 if total == 2 else total // 2 + 1


def refuse_to_stop_sends(view: ExplainedGroup, group: str, total: int) -> None:
    """Raise RmqhaError if a CP group would take no messages with this totalReplicas, and takes them now."""
    members = sum(1 for item in view.replicas if item.in_sync_state_set and item.alive)
    needed, needed_now = needed_in_cp(total), needed_in_cp(view.total_replicas)
    if view.ha_mode == "cp" and needed_now <= members < needed:
        raise RmqhaError(
            f"with totalReplicas = {total} {group} takes no messages until {needed} replicas are in the SyncStateSet, "
            f"and {members} {'is' if members == 1 else 'are'}; start the others first (rmqha join), or add --yes"
        )
