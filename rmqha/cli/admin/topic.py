"""`rmqha topic`: topics listed, made, deleted. Control plane."""

from __future__ import annotations

from typing import Any

import click
import trio

from rmqha.cli.options import complete_group, echo_json, namesrv_option, output_option
from rmqha.client.admin import Admin
from rmqha.client.producers.outgoing import check_topic
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

MAX_QUEUE_COUNT = 1024
_SYSTEM = frozenset(
    (
        "TBW102",
        "SELF_TEST_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)
_SYSTEM_PREFIXES = ("%", "RMQ_SYS_", "rmq_sys_")


def of_users(names: list[str], info: dict[str, Any]) -> list[str]:
    """Without the servers' own: retries, dead letters, and one called as each group and cluster of `info`."""
    servers = {*info["brokers"], *info["clusters"], *_SYSTEM}
    return [name for name in names if name not in servers and not name.startswith(_SYSTEM_PREFIXES)]


@click.group()
def topic() -> None:
    """List, make and delete topics; `rmqha describe topic` tells of one."""


@topic.command("list", epilog="Example: rmqha topic list -o json")
@click.option("--all", "every", is_flag=True, help="Also the servers' own, retries and dead letters.")
@namesrv_option
@output_option
def list_command(every: bool, namesrv: str, output: str) -> None:
    """Print the names of the topics that the name server knows."""

    async def asked() -> list[str]:
        async with Admin(namesrv) as admin:
            names = await admin.topics()
            return names if every else of_users(names, await admin.cluster_info())

    names = trio.run(asked)
    if output == "json":
        echo_json(names)
    else:
        for name in names:
            click.echo(printable(name, lines=False))


@topic.command(epilog="Example: rmqha topic create orders --queues 16")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues", type=click.IntRange(1, MAX_QUEUE_COUNT), default=8, show_default=True, help="In each group, to read."
)
@click.option(
    "--group", "groups", multiple=True, shell_complete=complete_group, help="Where; repeatable. Default: all groups."
)
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="Such as queue.type=BatchCQ.")
@namesrv_option
@output_option
def create(
    name: str, queues: int, groups: tuple[str, ...], attributes: tuple[str, ...], namesrv: str, output: str
) -> None:
    """Make TOPIC, or change it, at the masters of the groups.

    In CP the answer comes when the SyncStateSet of each group holds the change.
    """
    pairs = dict(_pair(text) for text in attributes)

    async def asked() -> list[str]:
        async with Admin(namesrv) as admin:
            return await admin.create_topic(name, queue_count=queues, groups=groups or None, attributes=pairs)

    made = trio.run(asked)
    if not made:
        raise UsageError(f"the name servers {namesrv} know no group, so nothing was made; see rmqha health")
    if output == "json":
        echo_json({"topic": name, "groups": made, "queues": queues})
    else:
        click.echo(f"{name}: {queues} queues in {', '.join(made)}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--attribute {text!r} must be KEY=VALUE")
    return key, value


@topic.command(epilog="Example: rmqha topic delete orders --yes")
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
@output_option
def delete(name: str, yes: bool, namesrv: str, output: str) -> None:
    """Delete TOPIC in all groups and at all name servers, with its messages as far as clients see.

    Made again, its queues go on behind their old ends.
    """
    check_topic(name)

    async def known() -> bool:
        async with Admin(namesrv) as admin:
            names = await admin.topics()
            if name in names and name not in of_users(names, await admin.cluster_info()):
                raise UsageError(f"{name} is the servers' own; it stays")
            return name in names

    async def asked() -> list[str]:
        async with Admin(namesrv) as admin:
            return await admin.delete_topic(name)

    if not trio.run(known):
        raise UsageError(f"the name servers {namesrv} know no topic {name!r}; see rmqha topic list")
    if not yes and not click.confirm(f"delete {name} with its messages in all groups?", err=True):
        raise UsageError("nothing deleted")
    deleted = trio.run(asked)
    if output == "json":
        echo_json({"topic": name, "groups": deleted})
    else:
        click.echo(f"{name} is deleted in {', '.join(deleted)}")
