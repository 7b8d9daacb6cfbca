"""`rmqha drain`: take a replica out of its group's work so that it may be stopped. Control plane."""

from __future__ import annotations

import click

from rmqha.cli.acting import acting_options
from rmqha.cli.local.members import (
    ask_group,
    broker_node,
    counted,
    node_of,
    redundancy,
    replica_at,
    tell,
    wait_group,
)
from rmqha.cli.options import complete_node, echo_json, output_option
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.state.explained_state import ExplainedGroup

SETTLE_S = 5.0


@click.command(epilog="Example: rmqha drain broker-a-1")
@click.argument("node", shell_complete=complete_node)
@click.option("--undo", is_flag=True, help="Put a drained replica back.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds.")
@acting_options
@output_option
def drain(node: str, undo: bool, timeout: float, state: ClusterState, output: str) -> None:
    """Take NODE out of the SyncStateSet of its group and keep it out, until `drain --undo`.

    A master hands over first. The replica goes on copying and may be stopped at any time. Refused if too few would
    remain to acknowledge a send.
    """
    view = ask_by(_drain, state, node, undo, timeout)
    if undo:
        sentence = f"{node} takes part again: {redundancy(view, broker_node(state, node).group)}"
    else:
        sentence = f"{node} is drained and may be stopped; {redundancy(view, broker_node(state, node).group)}"
    if output == "json":
        echo_json({"node": node, "drained": not undo, "master": _master(state, view), "sentence": sentence})
    else:
        click.echo(sentence)


def _others_are_in(view: ExplainedGroup) -> bool:
    return all(item.in_sync_state_set or not item.alive or item.drained for item in counted(view))


def _master(state: ClusterState, view: ExplainedGroup) -> str | None:
    return None if view.master_broker_id is None else node_of(state, view, view.master_broker_id)


async def _drain(state: ClusterState, name: str, undo: bool, timeout_s: float) -> ExplainedGroup:
    record = broker_node(state, name)
    async with open_client() as client:
        replica = replica_at(await ask_group(client, state, record.group), record.address)
        if replica is None:
            raise UsageError(f"the controllers know no replica at {record.address}; see rmqha explain {record.group}")
        ext = {"brokerName": record.group, "brokerId": str(replica.broker_id), "drained": str(not undo).lower()}
        await tell(client, state, RequestCode.RMQHA_DRAIN_REPLICA, ext)

        def done(view: ExplainedGroup) -> bool:
            item = replica_at(view, record.address)
            if undo:
                return item is None or bool(item.in_sync_state_set) or item.async_learner or not item.alive
            is_out = item is None or not (item.is_master or item.in_sync_state_set)
            return is_out and view.master_broker_id is not None

        view, well = await wait_group(client, state, record.group, timeout_s, done)
        if well and not undo:
            # after a switch the others follow the new master within moments
            view, _ = await wait_group(client, state, record.group, SETTLE_S, _others_are_in)
    if not well and undo:
        raise RmqhaError(f"{name} is not drained any more, but not in the SyncStateSet after {timeout_s:g} s either")
    if not well:
        own = replica_at(view, record.address)
        where = "still master" if own is not None and own.is_master else "out of the set, but its group has no master"
        raise RmqhaError(
            f"{name} is drained and {where} after {timeout_s:g} s; the controllers go on trying, "
            f"`rmqha explain {record.group}` says why not yet, `rmqha drain {name} --undo` takes it back"
        )
    return view
