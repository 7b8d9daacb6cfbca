"""`rmqha maintenance`: an operator works on a replica: others lead, and that it is away is no alarm. Control plane."""

from __future__ import annotations

from dataclasses import replace

import click

from rmqha.cli.options import cluster_options, complete_node, echo_json, output_option
from rmqha.cli.target import target_options
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.error import RmqhaError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import ask_group, broker_node, node_of, redundancy
from rmqha.ops.membership.maintenance import known_replica, switch_maintenance
from rmqha.wire.state.explained_state import ExplainedGroup, ExplainedReplica

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=15.0, show_default=True, help="Seconds to the hand-over."
)


@click.group()
def maintenance() -> None:
    """Work on a replica: it leads only if no other replica can, and its absence is no alarm of `rmqha health`.

    It stays in the SyncStateSet while it runs; `rmqha drain` takes it out.
    """


@maintenance.command(epilog="Example: rmqha maintenance on broker-a-1")
@click.argument("node", shell_complete=complete_node)
@timeout_option
@target_options
@output_option
def on(node: str, timeout: float, state: ClusterState, output: str) -> None:
    """Put NODE into maintenance, over restarts of it and of the controllers, until `maintenance off`.

    A master hands over first. Exit code: 0 others lead, 1 it leads on because nobody else can, 2 could not ask.
    """
    view = ask_by(switch_maintenance, state, node, True, timeout)
    group, replica = broker_node(state, node).group, known_replica(state, view, node)
    if replica.is_master:
        raise RmqhaError(
            f"{node} is in maintenance and still leads {group}: nobody else can yet; `rmqha explain {group}` says why"
        )
    sentence = f"{node} is in maintenance and may be stopped; without it {redundancy(_without(view, replica), group)}"
    _tell(state, view, node, sentence, output)


@maintenance.command(epilog="Example: rmqha maintenance off broker-a-1")
@click.argument("node", shell_complete=complete_node)
@timeout_option
@target_options
@output_option
def off(node: str, timeout: float, state: ClusterState, output: str) -> None:
    """End the maintenance of NODE: it may lead again, and its absence is an alarm."""
    view = ask_by(switch_maintenance, state, node, False, timeout)
    where = "in the SyncStateSet" if known_replica(state, view, node).in_sync_state_set else "not in the SyncStateSet"
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
        known_replica(state, views[0], node)
        names = [name for name in names if name == node]
    if output == "json":
        echo_json({"inMaintenance": names})
    else:
        none = f"{node} is not in maintenance" if node else "no replica is in maintenance"
        click.echo(f"in maintenance: {', '.join(names)}" if names else none)


async def _views(state: ClusterState, groups: list[str]) -> list[ExplainedGroup]:
    async with open_client() as client:
        return [await ask_group(client, state, group) for group in groups]


def _without(view: ExplainedGroup, replica: ExplainedReplica) -> ExplainedGroup:
    """The group as it would be with this replica stopped."""
    stopped = replace(replica, alive=False)
    return replace(view, replicas=[stopped if item is replica else item for item in view.replicas])


def _tell(state: ClusterState, view: ExplainedGroup, node: str, sentence: str, output: str) -> None:
    master = None if view.master_broker_id is None else node_of(state, view, view.master_broker_id)
    if output == "json":
        own = known_replica(state, view, node)
        echo_json({"node": node, "inMaintenance": own.in_maintenance, "master": master, "sentence": sentence})
    else:
        click.echo(sentence)
