"""`rmqha upgrade`: which release every node runs, and in which order to install another. Control plane."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from rmqha import __version__
from rmqha.cli.options import cluster_options, echo_json, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.model.error import UnreachableError, UsageError

if TYPE_CHECKING:
    from rmqha.ops.health.upgrade import UpgradeStep
    from rmqha.ops.local.cluster_state import ClusterState

ASK_TIMEOUT_S = 5.0
RELEASE = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([.a-z+-][0-9a-z.+-]*)?")
COLUMNS = [("", "right"), ("NODE", "left"), ("RELEASE", "left"), ("LEADS", "left"), ("DO", "left")]


@click.group()
def upgrade() -> None:
    """Upgrades of a running cluster: check."""


def _release(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if RELEASE.fullmatch(value) is None:
        raise UsageError(f"--to {value!r} is no release: write all of its numbers, such as 0.2.0")
    return value


@upgrade.command(epilog="Example: rmqha upgrade check --to 0.2.0")
@click.option(
    "--to", "wanted", default=__version__, show_default=True, metavar="RELEASE", callback=_release,
    help="The release to come.",
)  # fmt: skip
@cluster_options
@output_option
def check(wanted: str, state: ClusterState, output: str) -> None:
    """Tell which release every node runs, what speaks against going on now, and the order in which to go on.

    Exit code: 0 nothing speaks against it (or all run that release), 1 something does, 2 could not ask.
    """
    from rmqha.host.asking.shell import ask_by
    from rmqha.ops.health.findings import is_unsettled
    from rmqha.ops.health.upgrade import plan_of
    from rmqha.ops.survey import BootstrapAddresses, run_survey

    snapshot = ask_by(run_survey, BootstrapAddresses.of_state(state), ASK_TIMEOUT_S, None, is_unsettled)
    plan = plan_of(snapshot, wanted)
    if not plan.steps:
        raise UnreachableError("no node tells which release it runs; see rmqha status")
    if output == "json":
        echo_json(
            {
                "wanted": plan.wanted,
                "due": len(plan.due),
                "blocks": list(plan.blocks),
                "steps": [
                    {"node": step.node, "kinds": list(step.kinds), "release": step.release or None}
                    | {"leads": step.leads, "due": step.is_due}
                    for step in plan.steps
                ],
            }
        )
    else:
        rows = [
            [place, step.node, step.release or "unknown", "leads" if step.leads else "", _words(step)]
            for place, step in enumerate(plan.steps, 1)
        ]
        echo_table(COLUMNS, rows)
        for line in plan.blocks:
            click.echo(f"not now: {line}")
        if not plan.due:
            click.echo(f"every node runs {plan.wanted}")
        elif not plan.blocks:
            click.echo("one node after the other, in this order; go on when rmqha health is HEALTHY again")
    if plan.blocks:
        sys.exit(1)


def _words(step: UpgradeStep) -> str:
    if not step.is_due:
        return "done"
    if "broker" in step.kinds:
        return f"rmqha maintenance on {step.node}; stop, install, start; rmqha maintenance off {step.node}"
    return "rmqha quorum transfer; stop, install, start" if step.leads else "stop, install, start"
