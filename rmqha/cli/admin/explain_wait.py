"""`rmqha explain-wait`: for whom the sends of a group wait right now, and how that ends. Control plane."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rmqha.cli.admin.known_groups import ask_known_groups, cluster_here, tell
from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.render import Text, console
from rmqha.host.asking.shell import ask_by, open_client
from rmqha.model.error import UnreachableError
from rmqha.ops.group_view import GroupReport
from rmqha.ops.wait_explanation import view_of

if TYPE_CHECKING:
    from rmqha.ops.local.cluster_state import ClusterState


async def _ask(namesrv: str, name: str | None, here: ClusterState | None) -> tuple[list[GroupReport], str]:
    async with open_client() as client:
        return await ask_known_groups(client, namesrv, name, here)


@click.command("explain-wait", epilog="Example: rmqha explain-wait broker-a")
@click.argument("group", required=False)
@namesrv_option
@output_option
def explain_wait(group: str | None, namesrv: str, output: str) -> None:
    """Tell for whom the unacknowledged sends of GROUP (default: of all groups) wait, and how that ends.

    Exit code: 0 nothing waits for long, 1 a send has waited for more than 500 ms or sends are refused, 2 nobody to ask.
    """
    found, note = ask_by(_ask, namesrv, group, cluster_here())
    if not any(item.answering for item in found):
        trouble = sorted({view.error for item in found for view in item.brokers}) or ["no broker is registered"]
        raise UnreachableError(f"no broker can be asked: {'; '.join(trouble)}")
    tell(note)
    views = [view_of(item) for item in found]
    if output == "json":
        echo_json({"groups": views})
    else:
        for view in views:
            for place, line in enumerate(view["sentences"]):
                console().print(Text(line, "bold" if place == 0 else ""))
    if any(view["wrong"] for view in views):
        sys.exit(1)
