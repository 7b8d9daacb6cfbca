"""`rmqha drain`: take a replica out of its group's work so that it may be stopped. Control plane."""

from __future__ import annotations

import click

from rmqha.cli.options import complete_node, echo_json, output_option
from rmqha.cli.target import target_options
from rmqha.host.asking.shell import ask_by
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import broker_node, node_of, redundancy
from rmqha.ops.membership.maintenance import drain_replica
from rmqha.wire.state.explained_state import ExplainedGroup


@click.command(epilog="Example: rmqha drain broker-a-1")
@click.argument("node", shell_complete=complete_node)
@click.option("--undo", is_flag=True, help="Put a drained replica back.")
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds to wait.")
@target_options
@output_option
def drain(node: str, undo: bool, timeout: float, state: ClusterState, output: str) -> None:
    """Take NODE out of the SyncStateSet of its group and keep it out, until `drain --undo`.

    A master hands over first. The replica goes on copying and may be stopped at any time. Refused if too few would
    remain to acknowledge a send.
    """
    view = ask_by(drain_replica, state, node, undo, timeout)
    if undo:
        sentence = f"{node} takes part again: {redundancy(view, broker_node(state, node).group)}"
    else:
        sentence = f"{node} is drained and may be stopped; {redundancy(view, broker_node(state, node).group)}"
    if output == "json":
        echo_json({"node": node, "drained": not undo, "master": _master(state, view), "sentence": sentence})
    else:
        click.echo(sentence)


def _master(state: ClusterState, view: ExplainedGroup) -> str | None:
    return None if view.master_broker_id is None else node_of(state, view, view.master_broker_id)
