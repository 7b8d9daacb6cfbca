"""`rmqha explain`: why a group has the master it has, or none. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from functools import partial

import click

from rmqha.cli.options import complete_group, controllers_option, echo_json, output_option, refuse_static_group
from rmqha.cli.render import Text, console, table
from rmqha.host.asking.shell import Caller, ask_by, open_client, open_tasks
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.model.identity import name_replicas
from rmqha.ops.asking import ASK_TIMEOUT_MS, ask_state
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import explained, node_of, replica_label
from rmqha.wire.state.explained_state import ExplainedElection, ExplainedGroup
from rmqha.wire.state.replica_state import ReplicaState

COLUMNS = [
    ("NODE", "left"),
    ("ID", "right"),
    ("ADDRESS", "left"),
    ("SET", "left"),
    ("EPOCH", "right"),
    ("MAX", "right"),
    ("LAG", "right"),
]


async def ask_explanation(controllers: list[str], group: str) -> tuple[ExplainedGroup, str]:
    """The leader's answer to request 52010, and its address. Raises RmqhaError."""
    async with open_client() as client:
        try:
            return await explained(client, controllers, group)
        except RemoteError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RmqhaError("these controllers are Apache's and explain nothing; see rmqha history") from None
            raise


@click.command(epilog="Example: rmqha explain broker-a -o json")
@click.argument("group", shell_complete=complete_group)
@controllers_option
@output_option
def explain(group: str, controllers: list[str], output: str) -> None:
    """Tell why broker group GROUP has the master it has, or none, and its last ten elections.

    Exit code: 0 the group has a master, 1 it has none, 2 nobody to ask.
    """
    refuse_static_group(group)
    view, address = ask_by(ask_explanation, controllers, group)
    refusals = ask_by(ask_refusals, view)
    if output == "json":
        refused = {str(broker_id): words for broker_id, words in refusals.items()}
        echo_json(view.to_json() | {"answeredBy": address, "refusals": refused})
    else:
        show(group, view, refusals)
    if view.master_broker_id is None:
        sys.exit(1)


async def ask_refusals(view: ExplainedGroup, timeout_ms: int = ASK_TIMEOUT_MS) -> dict[int, str]:
    """Reasons of replicas that are not in the set and follow nobody, by broker id, as each tells (request 52000)."""
    found: dict[int, str] = {}

    async def ask(client: Caller, broker_id: int, address: str) -> None:
        try:
            state = await ask_state(client, address, ReplicaState, timeout_ms)
        except (RmqhaError, ValueError):
            return  # the controllers' word on it is shown
        if state.refusal:
            found[broker_id] = state.refusal

    async with open_client() as client, open_tasks() as tasks:
        for item in view.replicas:
            if not item.in_sync_state_set:
                tasks.start_soon(ask, client, item.broker_id, item.address)
    return found


def show(group: str, view: ExplainedGroup, refusals: Mapping[int, str]) -> None:
    """Print for people: the answer, the replicas, the elections with the newest first."""
    out, state = console(), ClusterState.find(None)
    out.print(Text(f"{group}: {view.answer}", "bold"))
    if view.next_total_replicas:
        out.print(f"totalReplicas is changing from {view.total_replicas} to {view.next_total_replicas}")
    rows = []
    for item in view.replicas:
        place = "in" if item.in_sync_state_set else "eligible" if item.broker_id in view.eligible else "out"
        numbers = [item.epoch, item.max_offset, item.lag_bytes]
        name = node_of(state, view, item.broker_id)
        rows.append([name, item.broker_id, item.address, "master" if item.is_master else place, *numbers])
    out.print(table(COLUMNS, rows))
    for item in view.replicas:
        who = replica_label(state, view, item.broker_id)
        if item.not_electable:
            out.print(f"{who} cannot become master: {item.not_electable}")
        if item.broker_id in refusals:
            why = name_replicas(refusals[item.broker_id], partial(replica_label, state, view))
            words = f"{who} follows nobody: {why}"
            out.print(Text(f"{words}; see rmqha fork ls", "red"))
        if item.disk_problem:
            out.print(Text(f"disk of {who}: {item.disk_problem}", "red"))
    for election in reversed(view.elections):
        who = "no master" if election.broker_id is None else replica_label(state, view, election.broker_id)
        out.print(Text(election_line(election, who)))


def election_line(item: ExplainedElection, who: str) -> str:
    """One election for people; `who` won it."""
    at = f"{datetime.fromtimestamp(item.at_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}" if item.at_ms else "(no time)"
    why = f" ({item.reason})" if item.reason else ""
    return f"{at} epoch {item.master_epoch} {who}: {item.cause_text}{why}"
