"""The screen of `rmqha top`, drawn anew with each sample and each key. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime

import trio
from rich.console import Group
from rich.live import Live

from rmqha.cli.admin.history import line
from rmqha.cli.rich_console import drawn, rich_console
from rmqha.cli.top.screen import ConsumerRow, PendingAction, Screen, TopAction, TopView
from rmqha.cli.top.terminal import pressed, single_keys
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.ops.asking import ask, ask_leader
from rmqha.ops.health.sample import TopSample, take_sample
from rmqha.ops.replica_rows import Row
from rmqha.ops.snapshot import ClusterSnapshot, ServerKind
from rmqha.ops.survey import BootstrapAddresses
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.history import parse_history

ORDER_TIMEOUT_MS = 5000
CONSUMERS_S = 3.0
"""Pause (s) between two samples of consumer groups, which cost several requests each."""
DETAIL_EVENTS = 14
FRESH_S = 1.0
"""Time (s) that a sample may take before the one on the screen is called old."""


def live(bootstrap: Callable[[], BootstrapAddresses], group: str | None, interval_s: float, timeout_s: float) -> None:
    """Draw until a key ends it. Raises UsageError for an unknown group."""
    with single_keys(sys.stdin.fileno()):
        trio.run(_live, bootstrap, group, interval_s, timeout_s)


async def _live(
    bootstrap: Callable[[], BootstrapAddresses], group: str | None, interval_s: float, timeout_s: float
) -> None:
    screen, sample, asked_s = Screen(), TopSample(), trio.current_time()
    with Live(console=rich_console(), auto_refresh=False, screen=True) as live:

        def draw() -> None:
            lasted_s = trio.current_time() - asked_s - interval_s
            overdue_s = lasted_s if sample.at and lasted_s > FRESH_S else None
            parts = screen.render(sample.at or f"{datetime.now():%H:%M:%S}", overdue_s=overdue_s)
            live.update(Group(*map(drawn, parts)), refresh=True)

        async with RemotingClient() as client, trio.open_nursery() as nursery:

            async def keys() -> None:
                async for key in pressed(sys.stdin.fileno()):
                    order = screen.press(key)
                    if screen.quits:
                        break
                    if order is not None and order.action is TopAction.DETAILS:
                        nursery.start_soon(show_details, order)
                    elif order is not None:
                        screen.message = f"{order.action.value} {order.row.node} …"
                        nursery.start_soon(carry_out, order)
                    draw()
                nursery.cancel_scope.cancel()

            async def carry_out(order: PendingAction) -> None:
                screen.message = await execute_action(client, order, sample.snapshot)
                draw()

            async def show_details(order: PendingAction) -> None:
                screen.details = await details(client, order.row)
                draw()

            async def consumers() -> None:
                while True:
                    if screen.view is TopView.CONSUMERS:
                        screen.consumers = await consumer_rows(bootstrap())
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
                sample = await take_sample(client, bootstrap(), group, timeout_s, sample)
                screen.update(sample.rows, sample.health)
                screen.release = " and ".join(release for release in sample.snapshot.releases if release)
                asked_s = trio.current_time()
                draw()
                await trio.sleep(interval_s)


async def details(client: RemotingClient, row: Row) -> list[str]:
    """Facts about a replica and its last events, a line each."""
    lines = [
        f"id {row.broker_id}, epoch {row.epoch}, {'in' if row.in_set else 'not in'} the set",
        f"log end {row.max_offset}, confirmed {row.confirm_offset}, lag {row.lag_bytes} bytes",
        "",
    ]
    try:
        reply = await ask(client, row.address, Command(RequestCode.RMQHA_GET_HISTORY))
        return lines + [line(event) for event in parse_history(loads(bytes(reply.body)))[-DETAIL_EVENTS:]]
    except RmqhaError as error:
        return [*lines, str(error)]
    except ValueError as error:
        return [*lines, f"its answer cannot be read: {error}"]


async def consumer_rows(bootstrap: BootstrapAddresses) -> list[ConsumerRow]:
    """All consumer groups, those with the highest lag first; [] if no name server answers."""
    from rmqha.client.admin import Admin
    from rmqha.ops.messaging import consumer_group

    try:
        async with Admin(";".join(bootstrap.name_servers)) as admin:
            told = await consumer_group.group_names(admin)
            names = sorted({name for found in told.answers.values() for name in found})
            groups = await consumer_group.describe_groups(admin, names)
    except RmqhaError:
        return []  # what does not answer is told above, with its fix
    made = [ConsumerRow(item.name, item.lag, len(item.members), tuple(item.topics)) for item in groups]
    return sorted(made, key=lambda row: (-row.lag, row.name))


async def execute_action(client: RemotingClient, order: PendingAction, snapshot: ClusterSnapshot) -> str:
    """Ask the leading controller for an action. Returns the outcome as a sentence."""
    row = order.row
    controllers = [word.address for word in snapshot.of_kind(ServerKind.CONTROLLER)]
    if order.action is TopAction.SWITCH:
        state = snapshot.replicas.get(row.address)
        cluster = state.cluster_name if state is not None else ""
        code, ext = RequestCode.CONTROLLER_ELECT_MASTER, {"clusterName": cluster, "designateElect": "true"}
    else:
        code, ext = RequestCode.RMQHA_SET_MAINTENANCE, {"on": str(order.action is TopAction.MAINTENANCE_ON).lower()}
    ext |= {"brokerName": row.group, "brokerId": str(row.broker_id)}
    try:
        reply, _ = await ask_leader(client, controllers, lambda: Command(code, dict(ext)), ORDER_TIMEOUT_MS)
    except RemoteError as error:
        return f"refused: {error.remark or error}"
    except RmqhaError as error:
        return str(error)
    if order.action is TopAction.SWITCH:
        return f"{row.node} is master of {row.group}, epoch {reply.ext.get('masterEpoch')}"
    return f"{order.action.value} {row.node}: done"
