"""`rmqha remove`: a replica leaves its group for good. Control plane."""

from __future__ import annotations

import click

from rmqha.cli.options import complete_node, echo_json, output_option
from rmqha.cli.target import target_options
from rmqha.host.asking.shell import ask_by
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import broker_node, keep_advice, redundancy
from rmqha.ops.membership.removal import remove_replica


@click.command(epilog="Example: rmqha drain broker-a-3 && rmqha remove broker-a-3")
@click.argument("node", shell_complete=complete_node)
@click.option("--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds to wait.")
@target_options
@output_option
def remove(node: str, timeout: float, state: ClusterState, output: str) -> None:
    """Stop counting NODE: stop it, clean it from the controllers, lower totalReplicas.

    It must be drained, or dead and out of the SyncStateSet. Its directory stays. The same command finishes a removal
    that was cut short.
    """
    record = broker_node(state, node)
    sentence = f"{node} is no replica of {record.group} any more"
    if state.is_remote:
        view = ask_by(remove_replica, state, record, timeout)
        sentence = f"{sentence}: {redundancy(view, record.group)}; its data stays on its machine"
    else:
        with state.locked():
            view = ask_by(remove_replica, state, record, timeout)
            del state.nodes[node]
            state.write()
        advice = keep_advice(state, record.group)
        sentence = (
            f"{sentence}: {redundancy(view, record.group)}; its data stays in {state.node_directory(node)}"
            f"{f'; {advice}, else the next `rmqha up` starts it again' if advice else ''}"
        )
    if output == "json":
        echo_json({"node": node, "totalReplicas": view.total_replicas, "sentence": sentence})
    else:
        click.echo(sentence)
