"""`rmqha elect`: hand the mastership of a group over, or force it. Control plane."""

from __future__ import annotations

import click

from rmqha.cli.options import complete_group, complete_node, echo_json, output_option
from rmqha.cli.target import target_options
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import UsageError
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.membership.election import elect_master, preferred_node


@click.command(epilog="Example: rmqha elect broker-a --to broker-a-2")
@click.argument("group", shell_complete=complete_group)
@click.option(
    "--to",
    "target",
    metavar="NODE",
    shell_complete=complete_node,
    help="The replica to elect; default: the best member of the set.",
)
@click.option("--preferred", is_flag=True, help="The replica that the group prefers: lowest priority, then lowest id.")
@click.option("--unclean", is_flag=True, help="Elect a replica outside the SyncStateSet: may lose messages.")
@click.option("--yes", is_flag=True, help="Accept the loss that --unclean shows.")
@target_options
@output_option
def elect(
    group: str,
    target: str | None,
    preferred: bool,
    unclean: bool,
    yes: bool,
    state: ClusterState,
    output: str,
) -> None:
    """Make another replica of GROUP its master."""
    if group not in state.groups:
        raise UsageError(f"there is no group {group}; the cluster {state.name} has {', '.join(state.groups)}")
    if preferred and target is not None:
        raise UsageError("--preferred and --to name two replicas; give one of them")
    if unclean and target is None:
        raise UsageError("--unclean needs --to NODE: name the replica whose messages are to be kept")
    if target is not None and state.node(target).group != group:
        raise UsageError(f"{target} is not a replica of {group}")
    if preferred:
        target = ask_by(preferred_node, state, group)

    def accept(sentence: str) -> None:
        click.echo(sentence, err=True)
        if not yes:
            raise UsageError("nothing changed; add --yes to accept that")

    result = ask_by(elect_master, state, group, target, unclean, accept)
    if output == "json":
        echo_json(result.to_json())
    else:
        already = "" if result.elected else " already"
        click.echo(f"{result.master} is master of {group}{already}, epoch {result.epoch}")
