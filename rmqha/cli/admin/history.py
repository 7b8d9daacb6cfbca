"""`rmqha history`: what happened on all nodes, in order of wall time. Control plane."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click
import trio

from rmqha.cli.options import cluster_options, echo_json, output_option
from rmqha.model.printable import printable
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_history import collect


def line(event: dict[str, Any]) -> str:
    """One event for people."""
    at = datetime.fromtimestamp(event["at_ms"] / 1000).astimezone()
    fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("at_ms", "node", "event"))
    told = printable(f"{event['event']} {fields}", lines=False)
    return f"{at:%H:%M:%S}.{event['at_ms'] % 1000:03} {event['node']:<12} {told}".rstrip()


@click.command(epilog="Example: rmqha history -n 20")
@cluster_options
@output_option
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="N", help="Only the last N events.")
def history(state: ClusterState, output: str, last: int | None) -> None:
    """Show what happened on all running nodes, in order of wall time: elections, roles, cuts, set changes.

    A node that does not run tells nothing; its own log (`rmqha logs NODE`) still does.

    Exit code: 0 all told theirs, 1 some did not, 2 none did.
    """
    events, silent = trio.run(collect, state)
    told_nothing = len(silent) == len(state.nodes)
    shown = events[-last:] if last else events
    if output == "json" and not told_nothing:
        echo_json({"events": shown, "silent": silent})
    else:
        for event in shown:
            click.echo(line(event))
    for name, reason in sorted(silent.items()):
        click.echo(f"{name}: {reason}", err=True)
    if silent:
        sys.exit(2 if told_nothing else 1)
