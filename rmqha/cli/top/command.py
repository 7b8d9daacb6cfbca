"""`rmqha top`: the replicas of the groups, live; switch and maintenance by a key. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import click
import trio
from rich.live import Live

from rmqha.cli.admin.history import line
from rmqha.cli.health.command import seeds_of, state_word
from rmqha.cli.options import complete_group, directory_option, echo_json, output_option
from rmqha.cli.render import console
from rmqha.cli.top.screen import ConsumerRow, Deed, Order, Screen, TopView
from rmqha.cli.top.terminal import pressed, single_keys
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError
from rmqha.ops.asking import ask, ask_leader
from rmqha.ops.health.findings import Health, judge
from rmqha.ops.replica_rows import Row, rows
from rmqha.ops.snapshot import ClusterSnapshot, ServerKind
from rmqha.ops.survey import BootstrapAddresses, Survey
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

ORDER_TIMEOUT_MS = 5000
CONSUMERS_S = 3.0
"""Pause between two looks at consumer groups, which cost several requests each."""
STORY_EVENTS = 14
FRESH_S = 1.0
"""A look may last so long before the one on the screen is called old."""


@click.command(epilog="Example: rmqha top broker-a")
@click.argument("group", required=False, shell_complete=complete_group)
@click.option("--once", is_flag=True, help="Print one look and end; so too where the output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.2), default=3.0, show_default=True, help="Seconds for one look at all."
)
@click.option("--namesrv", metavar="HOST:PORT", help="Name servers to begin with, joined by ';'.")
@click.option("--controller", metavar="HOST:PORT", help="Controllers to begin with, joined by ';'.")
@directory_option
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

    Keys: ↑ ↓ select a replica, Enter tells its story, / filters, o orders, c shows consumer groups, s makes it the
    master, m puts it into maintenance or back (both ask first), ? explains all, q ends. Rates and latencies (p50/p99,
    rounded up to a power of two) are of the time between two looks.

    Exit code: 0; of a single look 1 if the cluster is not healthy; 2 if nobody answers.
    """
    seeds = partial(seeds_of, namesrv, controller, directory)
    if once or output == "json" or not (sys.stdout.isatty() and sys.stdin.isatty()):
        look = trio.run(_once, seeds, group, interval, timeout)
        _print(look, output)
        sys.exit(0 if look.health.healthy else 1 if look.health.answered else 2)
    with single_keys(sys.stdin.fileno()):
        trio.run(_live, seeds, group, interval, timeout)


@dataclass(slots=True)
class Look:
    """One look at everybody, beside the one before it."""

    snapshot: ClusterSnapshot = field(default_factory=ClusterSnapshot)
    at_s: float = 0.0
    at: str = ""
    """Time of day when it began: what is shown is not younger."""
    rows: list[Row] = field(default_factory=list)
    health: Health = field(default_factory=lambda: judge(ClusterSnapshot(), []))


async def _look(
    client: RemotingClient, seeds: BootstrapAddresses, group: str | None, timeout_s: float, before: Look
) -> Look:
    """Raises UsageError for a group that nobody knows."""
    at = f"{datetime.now():%H:%M:%S}"
    found = (await Survey(client, seeds, timeout_s, group).run()).after(before.snapshot.replicas)
    known = found.groups
    if group is not None and group not in known and found.answered:
        raise UsageError(f"nobody knows a group {group!r}; see rmqha describe cluster")
    chosen = known if group is None else [name for name in known if name == group]
    now_s = trio.current_time()
    told = [row for row in rows(found, before.snapshot, now_s - before.at_s) if row.group in chosen]
    return Look(found, now_s, at, told, judge(found, chosen))


async def _once(
    seeds: Callable[[], BootstrapAddresses], group: str | None, interval_s: float, timeout_s: float
) -> Look:
    """Two looks, for the rates."""
    async with RemotingClient() as client:
        first = await _look(client, seeds(), group, timeout_s, Look())
        if not first.health.answered:
            return first
        await trio.sleep(interval_s)
        return await _look(client, seeds(), group, timeout_s, first)


def _print(look: Look, output: str) -> None:
    at = datetime.now().astimezone()
    if output == "json":
        reasons = [item.as_reason() for item in look.health.reasons]
        told = [row.as_json() for row in look.rows]
        stamp = at.isoformat(timespec="milliseconds")
        echo_json({"at": stamp, "health": state_word(look.health), "replicas": told, "reasons": reasons})
        return
    screen = Screen()
    screen.update(look.rows, look.health)
    screen.release = " and ".join(release for release in look.snapshot.releases if release)
    console().print(screen.render(f"{at:%H:%M:%S}", keys=False))


# --- live -------------------------------------------------------------------------------------------------------------
async def _live(
    seeds: Callable[[], BootstrapAddresses], group: str | None, interval_s: float, timeout_s: float
) -> None:
    screen, look, asked_s = Screen(), Look(), trio.current_time()
    with Live(console=console(), auto_refresh=False, screen=True) as live:

        def draw() -> None:
            lasted_s = trio.current_time() - asked_s - interval_s
            overdue_s = lasted_s if look.at and lasted_s > FRESH_S else None
            live.update(screen.render(look.at or f"{datetime.now():%H:%M:%S}", overdue_s=overdue_s), refresh=True)

        async with RemotingClient() as client, trio.open_nursery() as nursery:

            async def keys() -> None:
                async for key in pressed(sys.stdin.fileno()):
                    order = screen.press(key)
                    if screen.quits:
                        break
                    if order is not None and order.deed is Deed.STORY:
                        nursery.start_soon(tell_story, order)
                    elif order is not None:
                        screen.message = f"{order.deed.value} {order.row.node} …"
                        nursery.start_soon(carry_out, order)
                    draw()
                nursery.cancel_scope.cancel()

            async def carry_out(order: Order) -> None:
                screen.message = await obey(client, order, look.snapshot)
                draw()

            async def tell_story(order: Order) -> None:
                screen.story = await story(client, order.row)
                draw()

            async def consumers() -> None:
                while True:
                    if screen.view is TopView.CONSUMERS:
                        screen.consumers = await consumer_rows(seeds())
                        draw()
                    await trio.sleep(CONSUMERS_S if screen.view is TopView.CONSUMERS else 0.2)

            async def tick() -> None:
                while True:
                    await trio.sleep(FRESH_S)
                    draw()

            nursery.start_soon(keys)
            nursery.start_soon(tick)
            nursery.start_soon(consumers)
            draw()
            while True:
                look = await _look(client, seeds(), group, timeout_s, look)
                screen.update(look.rows, look.health)
                screen.release = " and ".join(release for release in look.snapshot.releases if release)
                asked_s = trio.current_time()
                draw()
                await trio.sleep(interval_s)


async def story(client: RemotingClient, row: Row) -> list[str]:
    """Facts about a replica and its last events, a line each."""
    lines = [
        f"id {row.broker_id}, epoch {row.epoch}, {'in' if row.in_set else 'not in'} the set",
        f"log end {row.max_offset}, confirmed {row.confirm_offset}, lag {row.lag_bytes} bytes",
        "",
    ]
    try:
        reply = await ask(client, row.address, Command(RequestCode.RMQHA_GET_HISTORY))
        events = loads(bytes(reply.body))["events"]
        return lines + [line({**event, "node": ""}) for event in events[-STORY_EVENTS:]]
    except RmqhaError as error:
        return [*lines, str(error)]
    except (ValueError, KeyError, TypeError) as error:
        return [*lines, f"its answer cannot be read: {error}"]


async def consumer_rows(seeds: BootstrapAddresses) -> list[ConsumerRow]:
    """All consumer groups, those with the most that waits first; none where no name server tells."""
    from rmqha.client.admin import Admin
    from rmqha.ops.messaging import consumer_group

    try:
        async with Admin(";".join(seeds.name_servers)) as admin:
            told = await consumer_group.group_names(admin)
            names = sorted({name for found in told.answers.values() for name in found})
            groups = await consumer_group.look_at_groups(admin, names)
    except RmqhaError:
        return []  # what does not answer is told above, with its fix
    made = [ConsumerRow(item.name, item.lag, len(item.members), tuple(item.topics)) for item in groups]
    return sorted(made, key=lambda row: (-row.lag, row.name))


async def obey(client: RemotingClient, order: Order, snapshot: ClusterSnapshot) -> str:
    """Ask the leading controller for it; what came of it, as a sentence."""
    row = order.row
    controllers = [word.address for word in snapshot.of_kind(ServerKind.CONTROLLER)]
    if order.deed is Deed.SWITCH:
        state = snapshot.replicas.get(row.address)
        cluster = state.cluster_name if state is not None else ""
        code, ext = RequestCode.CONTROLLER_ELECT_MASTER, {"clusterName": cluster, "designateElect": "true"}
    else:
        code, ext = RequestCode.RMQHA_SET_MAINTENANCE, {"on": str(order.deed is Deed.MAINTENANCE_ON).lower()}
    ext |= {"brokerName": row.group, "brokerId": str(row.broker_id)}
    try:
        reply, _ = await ask_leader(client, controllers, lambda: Command(code, dict(ext)), ORDER_TIMEOUT_MS)
    except RemoteError as error:
        return f"refused: {error.remark or error}"
    except RmqhaError as error:
        return str(error)
    if order.deed is Deed.SWITCH:
        return f"{row.node} is master of {row.group}, epoch {reply.ext.get('masterEpoch')}"
    return f"{order.deed.value} {row.node}: done"
