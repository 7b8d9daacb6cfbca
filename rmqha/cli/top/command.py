"""`rmqha top`: the replicas of the groups, live; switch and maintenance by a key. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from rmqha.cli.health.command import advise_on, bootstrap_addresses, state_word
from rmqha.cli.options import bootstrap_options, complete_group, echo_json, output_option
from rmqha.cli.render import console
from rmqha.cli.target import target_directory
from rmqha.cli.top.screen import Screen
from rmqha.host.asking.shell import ask_by, open_client, sleep
from rmqha.ops.health.sample import TopSample, first_sample, take_sample
from rmqha.ops.survey import BootstrapAddresses


@click.command(epilog="Example: rmqha top broker-a")
@click.argument("group", required=False, shell_complete=complete_group)
@click.option("--once", is_flag=True, help="Print one sample and end; so too where the output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two samples."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.2),
    default=3.0,
    show_default=True,
    help="Seconds for one round of questions.",
)
@bootstrap_options
@output_option
def top(
    group: str | None,
    once: bool,
    interval: float,
    timeout: float,
    namesrv: str | None,
    controller: str | None,
    directory: Path | None,
    output: str,
) -> None:
    """Show the replicas of all groups, or of GROUP, live: role, epoch, set, lag, confirm offset, rates, ack latency.

    Keys: ↑ ↓ select a replica, Enter shows its facts, / filters, o orders, c shows consumer groups, s makes it the
    master, m puts it into maintenance or back (both ask first), ? explains all, q ends. Rates and latencies (p50/p99,
    rounded up to a power of two) are of the time between two samples.

    Exit code: 0; of a single sample 1 if the cluster is not healthy; 2 if nobody answers.
    """
    if once or output == "json" or not (sys.stdout.isatty() and sys.stdin.isatty()):
        bootstrap = partial(bootstrap_addresses, namesrv, controller, directory)
        sample = ask_by(_once, bootstrap, group, interval, timeout)
        _print(sample, output)
        if not (sample.health.answered or namesrv or controller):
            advise_on(bootstrap())
        sys.exit(0 if sample.health.healthy else 1 if sample.health.answered else 2)
    # keys change it, so one of several is asked for
    chosen = target_directory(namesrv, controller, directory)
    click.echo("asking the nodes …")
    from rmqha.cli.top.live import live

    bootstrap = partial(bootstrap_addresses, namesrv, controller, chosen)
    live(bootstrap, group, interval, timeout)


async def _once(
    bootstrap: Callable[[], BootstrapAddresses], group: str | None, interval_s: float, timeout_s: float
) -> TopSample:
    """Take two samples, for the rates."""
    async with open_client() as client:
        first = await first_sample(client, bootstrap(), group, timeout_s)
        if not first.snapshot.answered:
            return first
        await sleep(interval_s)
        return await take_sample(client, bootstrap(), group, timeout_s, first)


def _print(sample: TopSample, output: str) -> None:
    at = datetime.now().astimezone()
    if output == "json":
        reasons = [item.as_reason() for item in sample.health.reasons]
        told = [row.as_json() for row in sample.rows]
        stamp = at.isoformat(timespec="milliseconds")
        echo_json({"at": stamp, "health": state_word(sample.health), "replicas": told, "reasons": reasons})
        return
    screen = Screen()
    screen.update(sample.rows, sample.health)
    screen.release = " and ".join(release for release in sample.snapshot.releases if release)
    out = console()
    for part in screen.render(f"{at:%H:%M:%S}", keys=False):
        out.print(part)
