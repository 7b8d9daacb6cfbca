"""`rmqha status`: the nodes of a cluster as they are now. Control plane."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rmqha.cli.options import cluster_options, echo_json, output_option

if TYPE_CHECKING:
    from rmqha.ops.cluster_view import ClusterView
    from rmqha.ops.local.cluster_state import ClusterState


async def view_once(state: ClusterState) -> ClusterView:
    """Ask all nodes once."""
    from rmqha.host.asking.shell import open_client
    from rmqha.ops.cluster_view import ask_cluster

    async with open_client() as client:
        return await ask_cluster(client, state)


def remote_view(state: ClusterState) -> ClusterView:
    """View of a cluster elsewhere, from the snapshot by which it has just been found."""
    from rmqha.ops.remote_cluster import RemoteCluster

    assert isinstance(state, RemoteCluster)
    return state.view()


def show(view: ClusterView, output: str) -> None:
    """Print the table or the JSON document."""
    from rmqha.cli.cluster_table import cluster_json, print_cluster
    from rmqha.cli.render import console

    if output == "json":
        echo_json(cluster_json(view))
    else:
        print_cluster(view, console())


@click.command(epilog="Example: rmqha status -o json")
@cluster_options
@output_option
def status(state: ClusterState, output: str) -> None:
    """Show the nodes of a cluster as they are now: role, id, epoch, offsets, who is in the set.

    Exit code: 0 all is well, 1 something is not (each with its reason), 2 nodes run and none answers.
    A replica that was stopped in maintenance is well, and said to be.
    """
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.cluster_view import faults

    view = remote_view(state) if state.is_remote else ask_by(view_once, state)
    show(view, output)
    if any(node.alive for node in view.nodes.values()) and not any(node.answers for node in view.nodes.values()):
        sys.exit(2)
    if faults(view):
        sys.exit(1)
