"""The broker groups that a command may ask: those of the name servers, or of the cluster directory. Control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rmqha.cli import contexts
from rmqha.cli.main import nearest
from rmqha.host.asking.shell import Caller
from rmqha.model.error import UnreachableError, UsageError
from rmqha.ops.group_view import GroupReport, ask_groups, find_groups
from rmqha.ops.snapshot import NodeReport, ServerKind

if TYPE_CHECKING:
    from rmqha.ops.local.cluster_state import ClusterState


def cluster_here() -> ClusterState | None:
    """The cluster of the directory; None where `--namesrv`, $RMQHA_NAMESRV or a context names servers elsewhere."""
    source = click.get_current_context().get_parameter_source("namesrv")
    if source is ParameterSource.COMMANDLINE or contexts.default_context() is not None:
        return None
    from rmqha.ops.local.cluster_state import ClusterState

    return ClusterState.find(None)


async def ask_known_groups(
    client: Caller, namesrv: str, name: str | None, here: ClusterState | None
) -> tuple[list[GroupReport], str]:
    """The reports of all groups, or of the one called `name`; and a sentence if no name server told the groups. Raises
    UsageError for an unknown name, UnreachableError if nobody tells the groups, or only `here`, and no broker
    answers."""
    try:
        groups = await find_groups(client, namesrv)
    except UnreachableError as error:
        groups = {} if here is None else _groups_of(here)
        found = await ask_groups(client, _chosen(groups, name, "the cluster directory knows")) if groups else []
        if not any(group.answering for group in found):
            raise
        return found, f"{error}; the brokers of the cluster directory were asked"
    return await ask_groups(client, _chosen(groups, name, f"the name servers {namesrv} know")), ""


def _chosen(groups: dict[str, GroupReport], name: str | None, who: str) -> list[GroupReport]:
    if name is not None and name not in groups:
        near = nearest(name, list(groups))
        raise UsageError(f"{who} no group {name!r}{near}; see rmqha describe cluster")
    return [group for key, group in groups.items() if name in (None, key)]


def _groups_of(here: ClusterState) -> dict[str, GroupReport]:
    return {
        group: GroupReport(
            group,
            here.name,
            tuple(
                NodeReport(ServerKind.BROKER, node.address, node.name) for node in here.brokers if node.group == group
            ),
        )
        for group in here.groups
    }


def tell(note: str) -> None:
    """Print the note of `ask_known_groups` to standard error."""
    if note:
        click.echo(f"rmqha: {note}", err=True)
