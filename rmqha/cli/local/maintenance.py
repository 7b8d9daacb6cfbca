"""`rmqha maintenance`: an operator works on a replica: others lead, and that it is away is no alarm. Control plane."""

from __future__ import annotations

from dataclasses import replace

import click

from rmqha.cli.acting import acting_options
from rmqha.cli.local.members import ask_group, broker_node, node_of, redundancy, replica_at, tell, wait_group
from rmqha.cli.options import cluster_options, complete_node, echo_json, output_option
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=15.0, show_default=True, help="Seconds to the hand-over."
)


@click.group()
def maintenance() -> None:
    """Work on a replica: it leads only if nobody else can, and that it is away is no alarm of `rmqha health`.

    It stays in the SyncStateSet while it runs; `rmqha drain` takes it out.
    """


@maintenance.command(epilog="Example: rmqha maintenance on broker-a-1")
@click.argument("node", shell_complete=complete_node)
@timeout_option
@acting_options
@output_option
def on(node: str, timeout: float, state: ClusterState, output: str) -> None:
    """Put NODE into maintenance, over restarts of it and of the controllers, until `maintenance off`.

    A master hands over first. Exit code: 0 others lead, 1 it leads on because nobody else can, 2 could not ask.
    """
    view = ask_by(switch, state, node, True, timeout)
    group, replica = broker_node(state, node).group, _replica(state, view, node)
    if replica.is_master:
        raise RmqhaError(
            f"{node} is in maintenance and still leads {group}: nobody else can yet; `rmqha explain {group}` says why"
        )
    sentence = f"{node} is in maintenance and may be stopped; without it {redundancy(_without(view, replica), group)}"
    _tell(state, view, node, sentence, output)


@maintenance.command(epilog="Example: rmqha maintenance off broker-a-1")
@click.argument("node", shell_complete=complete_node)
@timeout_option
@acting_options
@output_option
def off(node: str, timeout: float, state: ClusterState, output: str) -> None:
    """End the maintenance of NODE: it may lead again, and its absence is an alarm."""
    view = ask_by(switch, state, node, False, timeout)
    where = "in the SyncStateSet" if _replica(state, view, node).in_sync_state_set else "not in the SyncStateSet"
    _tell(state, view, node, f"{node} is not in maintenance any more, {where}", output)


@maintenance.command(epilog="Example: rmqha maintenance show")
@click.argument("node", required=False, shell_complete=complete_node)
@cluster_options
@output_option
def show(node: str | None, state: ClusterState, output: str) -> None:
    """Show which replicas are in maintenance, or whether NODE is."""
    groups = state.groups if node is None else [broker_node(state, node).group]
    views = ask_by(_views, state, groups)
    names = [node_of(state, view, item.broker_id) for view in views for item in view.replicas if item.in_maintenance]
    if node is not None:
        _replica(state, views[0], node)
        names = [name for name in names if name == node]
    if output == "json":
        echo_json({"inMaintenance": names})
    else:
        none = f"{node} is not in maintenance" if node else "no replica is in maintenance"
        click.echo(f"in maintenance: {', '.join(names)}" if names else none)


async def _views(state: ClusterState, groups: list[str]) -> list[ExplainedGroup]:
    async with open_client() as client:
        return [await ask_group(client, state, group) for group in groups]


async def switch(state: ClusterState, name: str, wanted: bool, timeout_s: float) -> ExplainedGroup:
    """Begin or end the maintenance of a replica, and wait until a master has handed over or the time is up. Raises
    RmqhaError."""
    record = broker_node(state, name)
    async with open_client() as client:
        replica = _replica(state, await ask_group(client, state, record.group), name)
        ext = {"brokerName": record.group, "brokerId": str(replica.broker_id), "on": str(wanted).lower()}
        await tell(client, state, RequestCode.RMQHA_SET_MAINTENANCE, ext)

        def done(view: ExplainedGroup) -> bool:
            own = _replica(state, view, name)
            others = any(item.in_sync_state_set and not item.is_master and item.alive for item in view.replicas)
            return not wanted or not own.is_master or not others

        view, _ = await wait_group(client, state, record.group, timeout_s, done)
    return view


def _replica(state: ClusterState, view: ExplainedGroup, name: str) -> ExplainedReplica:
    record = broker_node(state, name)
    found = replica_at(view, record.address)
    if found is None:
        raise UsageError(f"the controllers know no replica at {record.address}; see rmqha explain {record.group}")
    return found


def _without(view: ExplainedGroup, replica: ExplainedReplica) -> ExplainedGroup:
    """The group as it would be with this replica stopped."""
    stopped = replace(replica, alive=False)
    return replace(view, replicas=[stopped if item is replica else item for item in view.replicas])


def _tell(state: ClusterState, view: ExplainedGroup, node: str, sentence: str, output: str) -> None:
    master = None if view.master_broker_id is None else node_of(state, view, view.master_broker_id)
    if output == "json":
        own = _replica(state, view, node)
        echo_json({"node": node, "inMaintenance": own.in_maintenance, "master": master, "sentence": sentence})
    else:
        click.echo(sentence)
