"""`rmqha explain`: why a group has the master it has, or none. Control plane."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import trio
from rich.text import Text

from rmqha.cli.local.members import explained
from rmqha.cli.options import complete_group, controllers_option, echo_json, output_option, refuse_static_group
from rmqha.cli.render import console, table
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RmqhaError

COLUMNS = [
    ("ID", "right"),
    ("ADDRESS", "left"),
    ("SET", "left"),
    ("EPOCH", "right"),
    ("MAX", "right"),
    ("LAG", "right"),
]


async def ask_explanation(controllers: list[str], group: str) -> dict[str, Any]:
    """The body of the leader's answer to request 52010. Raises RmqhaError."""
    async with RemotingClient() as client:
        try:
            view, address = await explained(client, controllers, group)
        except RemoteError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RmqhaError("these controllers are Apache's and explain nothing; see rmqha history") from None
            raise
    return view | {"answeredBy": address}


@click.command(epilog="Example: rmqha explain broker-a -o json")
@click.argument("group", shell_complete=complete_group)
@controllers_option
@output_option
def explain(group: str, controllers: list[str], output: str) -> None:
    """Tell why broker group GROUP has the master it has, or none, and its last ten elections.

    Exit code: 0 the group has a master, 1 it has none, 2 nobody to ask.
    """
    refuse_static_group(group)
    view = trio.run(ask_explanation, controllers, group)
    if output == "json":
        echo_json(view)
    else:
        show(group, view)
    if view["masterBrokerId"] is None:
        sys.exit(1)


def show(group: str, view: dict[str, Any]) -> None:
    """For people: the answer, the replicas, the elections with the newest first."""
    out = console()
    out.print(Text(f"{group}: {view['answer']}", "bold"), soft_wrap=True)
    if view["nextTotalReplicas"]:
        out.print(f"totalReplicas is changing from {view['totalReplicas']} to {view['nextTotalReplicas']}")
    rows = []
    for item in view["replicas"]:
        place = "in" if item["inSyncStateSet"] else "eligible" if item["brokerId"] in view["eligible"] else "out"
        numbers = [item.get("epoch"), item.get("maxOffset"), item.get("lagBytes")]
        rows.append([item["brokerId"], item["address"], "master" if item["isMaster"] else place, *numbers])
    out.print(table(COLUMNS, rows))
    for item in view["replicas"]:
        if item["notElectable"]:
            out.print(f"replica {item['brokerId']} cannot become master: {item['notElectable']}", soft_wrap=True)
        if item.get("diskProblem"):
            out.print(Text(f"disk of replica {item['brokerId']}: {item['diskProblem']}", "red"), soft_wrap=True)
    for item in reversed(view["elections"]):
        out.print(Text(election_line(item)), soft_wrap=True)


def election_line(item: dict[str, Any]) -> str:
    """One election for people."""
    at = (
        f"{datetime.fromtimestamp(item['atMs'] / 1000).astimezone():%Y-%m-%d %H:%M:%S}" if item["atMs"] else "(no time)"
    )
    who = "no master" if item["brokerId"] is None else f"replica {item['brokerId']}"
    why = f" ({item['reason']})" if item["reason"] else ""
    return f"{at} epoch {item['masterEpoch']} {who}: {item['causeText']}{why}"
