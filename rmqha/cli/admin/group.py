"""`rmqha group`: what the controllers keep about a broker group. Control plane."""

from __future__ import annotations

from functools import partial

import click

from rmqha.cli.options import echo_json, output_option
from rmqha.cli.target import target_controllers_option
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.code import RequestCode
from rmqha.ops.answer import readable_answer
from rmqha.ops.asking import ask_leader
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.group import explained, refuse_to_stop_sends
from rmqha.wire.command import Command


@click.group()
def group() -> None:
    """Change what the controllers keep about a broker group."""


async def _resize(controllers: list[str], name: str, total_replicas: int, *, even_so: bool) -> dict[str, int]:
    ext = {"brokerName": name, "totalReplicas": str(total_replicas)}
    async with open_client() as client:
        view, _ = await explained(client, controllers, name)
        if not even_so:
            refuse_to_stop_sends(view, name, total_replicas)
        request = lambda: Command(RequestCode.RMQHA_RESIZE_GROUP, dict(ext))  # noqa: E731
        reply, address = await ask_leader(client, controllers, request)
    with readable_answer(address, "a controller's"):
        return {name: int(reply.ext[name]) for name in ("totalReplicas", "nextTotalReplicas")}


@group.command(epilog="Example: rmqha group resize broker-a 5")
@click.argument("name", metavar="GROUP")
@click.argument("total_replicas", type=click.IntRange(1, 9), metavar="N")
@click.option("--yes", is_flag=True, help="Even if the group then takes no messages until more replicas are there.")
@target_controllers_option
@output_option
def resize(
    name: str, total_replicas: int, yes: bool, controllers: list[str], state: ClusterState | None, output: str
) -> None:
    """Set totalReplicas of broker group GROUP to N while it runs.

    One change at a time. A larger number counts for acknowledgements at once and is final when the master goes by it; a
    smaller one needs the replicas that are too many to be stopped and cleaned first. A number of which the SyncStateSet
    is no majority is refused in CP, since sends would be.
    """
    if state is not None:
        state.refuse_static(name)
    result = ask_by(partial(_resize, controllers, name, total_replicas, even_so=yes))
    if output == "json":
        echo_json({"group": name, **result})
    elif result["nextTotalReplicas"]:
        click.echo(f"totalReplicas of {name}: {result['totalReplicas']}, on its way to {result['nextTotalReplicas']}")
    else:
        click.echo(f"totalReplicas of {name}: {result['totalReplicas']}")
