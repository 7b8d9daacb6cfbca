"""`rmqha health`: HEALTHY, or each reason in one sentence with its fix. Control plane."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from rmqha.cli import contexts
from rmqha.cli.main import nearest
from rmqha.cli.options import (
    DEFAULT_NAMESRV,
    bootstrap_options,
    complete_group,
    echo_json,
    output_option,
    resolve_controllers,
)
from rmqha.cli.options import resolve_namesrv as checked_namesrv
from rmqha.cli.render import Text, console
from rmqha.host.asking.shell import ask_by, now_s, sleep
from rmqha.model.error import UsageError
from rmqha.ops.health.agreement import Agreement
from rmqha.ops.health.findings import Health, is_unsettled, judge
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.snapshot import ClusterSnapshot, ServerKind
from rmqha.ops.survey import BootstrapAddresses, run_survey

INTERVAL_S = 1.0
QUICK_START = BootstrapAddresses(name_servers=(DEFAULT_NAMESRV,))
NO_CLUSTER = (
    "rmqha: no cluster is known here, so the quick start's address was asked; start one with `rmqha up`, name its "
    "--directory, or that of one elsewhere by --namesrv"
)


@click.command(epilog="Example: rmqha health -e --within 60")
@click.argument("group", required=False, shell_complete=complete_group)
@click.option("-w", "--watch", is_flag=True, help="Go on and print each change, until Ctrl-C.")
@click.option("-e", "--exit-when-healthy", is_flag=True, help="Watch, and end as soon as all is well.")
@click.option("--within", type=click.FloatRange(min=0), metavar="S", help="Seconds after which a watch ends.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.2), default=5.0, show_default=True,
    help="Seconds for one round of questions to all nodes.",
)  # fmt: skip
@bootstrap_options
@output_option
def health(
    group: str | None,
    watch: bool,
    exit_when_healthy: bool,
    within: float | None,
    timeout: float,
    namesrv: str | None,
    controller: str | None,
    directory: Path | None,
    output: str,
) -> None:
    """Tell whether the cluster, or GROUP, is healthy: HEALTHY, or each reason with its fix.

    Asks every name server, controller and broker at once and compares what they say: the views of one kind of nodes are
    MATCHING, DIVERGENT, PARTIAL (some do not answer) or UNAVAILABLE. Without options it begins with $RMQHA_NAMESRV, the
    context in use, or the nodes of the cluster directory.

    Exit code: 0 healthy, 1 not, 2 nobody to ask; of a watch the last state's.
    """
    bootstrap = partial(bootstrap_addresses, namesrv, controller, directory)
    if not watch and not exit_when_healthy:
        found, snapshot = ask_by(examine, bootstrap(), group, timeout)
        show(found, snapshot, group, output)
    else:
        found = ask_by(_watched, bootstrap, group, timeout, exit_when_healthy, within, output)
    if not found.answered:
        if not (namesrv or controller):
            advise_on(bootstrap())
        sys.exit(2)
    if not found.healthy:
        sys.exit(1)


def bootstrap_addresses(namesrv: str | None, controller: str | None, directory: Path | None) -> BootstrapAddresses:
    """The addresses that are given, else the nodes of the cluster directory, else the quick start's name server."""
    if (
        namesrv is None
        and controller is None
        and directory is None
        and (context := contexts.default_context()) is not None
    ):
        namesrv, controller = context.namesrv or None, context.controller or None
    if namesrv is None and controller is None:
        state = ClusterState.find(directory) if directory is None else ClusterState.require(directory)
        return QUICK_START if state is None else BootstrapAddresses.of_state(state)
    name_servers = tuple(checked_namesrv(namesrv).split(";")) if namesrv else ()
    return BootstrapAddresses(name_servers, tuple(resolve_controllers(controller)) if controller else ())


def advise_on(asked: BootstrapAddresses) -> None:
    """Say how to get or name a cluster if nobody had named one, so that the quick start's address was asked."""
    if asked is QUICK_START:  # the same address may also have been named
        click.echo(NO_CLUSTER, err=True)


async def examine(bootstrap: BootstrapAddresses, group: str | None, timeout_s: float) -> tuple[Health, ClusterSnapshot]:
    """Take one snapshot and judge it. Raises UsageError for a group that is not known although name servers or
    controllers answer."""
    found = await run_survey(bootstrap, timeout_s, group, is_unsettled)
    known = found.groups
    if group is not None and group not in known and found.answered:
        told = sorted({name for word in found.nodes for name in [*word.routes, *word.reported_groups]})
        hint = nearest(group, told) or (f"; they know {', '.join(told)}" if told else "; they know no group")
        raise UsageError(f"nobody of {_addresses(found)} knows a group {group!r}{hint}")
    return judge(found, known if group is None else [group] if group in known else []), found


def _addresses(snapshot: ClusterSnapshot) -> str:
    return ", ".join(word.address for word in snapshot.nodes if word.answers and word.kind is not ServerKind.BROKER)


async def _watched(
    bootstrap: Callable[[], BootstrapAddresses],
    group: str | None,
    timeout_s: float,
    until_healthy: bool,
    within_s: float | None,
    output: str,
) -> Health:
    """Check again and again, print each change, until healthy or the time is over; the last state. `bootstrap` is asked
    each time: which processes live changes."""
    deadline = now_s() + (within_s if within_s is not None else float("inf"))
    shown: object = None
    while True:
        began = now_s()
        found, snapshot = await examine(bootstrap(), group, timeout_s)
        essence = _essence(found)
        if essence != shown:
            shown = essence
            if output == "json":
                click.echo(json.dumps({"at": _now(), **as_json(found, snapshot)}, ensure_ascii=False))
            else:
                click.echo(_now())
                show(found, snapshot, group, output)
        now = now_s()
        if (until_healthy and found.healthy) or now >= deadline:
            return found
        await sleep(max(0.0, min(began + max(INTERVAL_S, now - began), deadline) - now))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def _essence(found: Health) -> object:
    """Values by which two states are compared, without numbers that only grow."""
    return found.healthy, [(item.subject, re.sub(r"\d+", "#", item.sentence)) for item in found.reasons]


# --- told -------------------------------------------------------------------------------------------------------------
def state_word(found: Health) -> str:
    return "HEALTHY" if found.healthy else "UNHEALTHY" if found.answered else "UNKNOWN"


def as_json(found: Health, snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {
        "health": state_word(found),
        "reasons": [item.as_reason() for item in found.reasons],
        "notes": [item.as_reason() for item in found.findings if item.is_note],
        "views": [
            {
                "group": view.group,
                "about": view.about,
                "agreement": view.agreement.value,
                "says": dict(view.says),
                "silent": list(view.silent),
            }
            for view in found.views
        ],
        "nodes": [
            {"kind": word.kind.value, "address": word.address, "name": word.name or None, "error": word.error or None}
            | ({"release": word.release} if word.release else {})
            for word in snapshot.nodes
        ],
    }  # fmt: skip


def show(found: Health, snapshot: ClusterSnapshot, group: str | None, output: str) -> None:
    """Print the health, for scripts or for people; nodes without an answer are printed even if none answers."""
    if output == "json":
        echo_json(as_json(found, snapshot))
        return
    out = console()
    groups = len({view.group for view in found.views})
    scope = group or f"{groups} group{'' if groups == 1 else 's'}"
    count = f"{found.answered} of {len(snapshot.nodes)} nodes answer"
    style = "bold green" if found.healthy else "bold red"
    known = [release for release in snapshot.releases if release]
    release = f", release {' and '.join(known)}" if known else ""
    out.print(Text(f"{state_word(found)}: {scope}, {count}{release}", style))
    for item in found.reasons:
        out.print(Text(item.line, "red"))
    for view in found.views:
        title = f"{view.group}: {view.about} {view.agreement.value}"
        asked = f"{len(view.says)} of {len(view.says) + len(view.silent)}"
        if view.agreement is Agreement.DIVERGENT:
            told = "; ".join(f"{name}: {sentence}" for name, sentence in view.says.items())
        else:
            told = next(iter(view.says.values()), f"none of {', '.join(view.silent)} answers")
        out.print(Text(f"{title} ({asked}): {told}"))
    for item in found.findings:
        if item.is_note:
            out.print(Text(f"note: {item.line}", "yellow"))
