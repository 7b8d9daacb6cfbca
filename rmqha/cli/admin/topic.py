"""`rmqha topic`: topics listed, described, made, changed, deleted. Control plane."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, complete_topic
from rmqha.cli.options import complete_group, confirm, echo_json, namesrv_option, output_option, yes_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.target import target_namesrv_option
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.ops.messaging.topics import TopicChange, TopicEdit, TopicSettings

MAX_QUEUE_COUNT = 1024
PERMISSIONS = ("none", "write", "read", "both")
COLUMNS = [("GROUP", "left"), ("", "left"), ("BEFORE", "left"), ("AFTER", "left")]


@click.group()
def topic() -> None:
    """List, describe, make, change and delete topics."""


name_argument = click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
group_option = click.option(
    "--group", "groups", multiple=True, shell_complete=complete_group, help="Where; repeatable. Default: all groups."
)
all_option = click.option("--all", "every", is_flag=True, help="Also the servers' own, retries and dead letters.")


@topic.command("ls", epilog="Example: rmqha topic ls -o json")
@all_option
@namesrv_option
@output_option
def ls_command(every: bool, namesrv: str, output: str) -> None:
    """Print the names of the topics that the name server knows."""
    _list(every, namesrv, output)


@topic.command("list", hidden=True, epilog="Example: rmqha topic list -o json")
@all_option
@namesrv_option
@output_option
def list_command(every: bool, namesrv: str, output: str) -> None:
    """Print the names of the topics: another name of `rmqha topic ls`."""
    _list(every, namesrv, output)


def _list(every: bool, namesrv: str, output: str) -> None:
    async def question(admin: Admin) -> list[str]:
        from rmqha.ops.messaging.brokers import require_brokers
        from rmqha.ops.messaging.topics import of_users

        names = await admin.topics()
        if not names:
            await require_brokers(admin)
        return names if every else of_users(names, await admin.cluster_info())

    names = ask_admin(namesrv, question)
    if output == "json":
        echo_json(names)
        return
    for name in names:
        click.echo(printable(name, lines=False))
    if not names:
        hint = "the first send makes one, or rmqha topic create; --all shows the servers' own"
        click.echo(f"rmqha: there is no topic yet, or none that you may use: {hint}", err=True)


@topic.command("describe", epilog="Example: rmqha topic describe orders")
@name_argument
@namesrv_option
@output_option
def describe_command(name: str, namesrv: str, output: str) -> None:
    """Tell in which groups TOPIC is, its queues with their offsets, and what those groups promise.

    Exit code: 0 every group of it was asked, 1 one could not be, 2 there is no such topic or nobody to ask.
    """
    from rmqha.cli.admin.describe_topic import describe_topic

    describe_topic(name, namesrv, output)


@topic.command(epilog="Example: rmqha topic create orders --queues 16")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--queues", type=click.IntRange(1, MAX_QUEUE_COUNT), metavar="N", help="Queues in each group. Default: 8."
)
@group_option
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="Such as queue.type=BatchCQ.")
@target_namesrv_option()
@output_option
def create(
    name: str, queues: int | None, groups: tuple[str, ...], attributes: tuple[str, ...], namesrv: str, output: str
) -> None:
    """Make TOPIC at the masters of the groups.

    Where it exists it stays as it is; it is refused if it has other queues or attributes there than you give. In CP the
    answer comes when the SyncStateSet of each group holds it.

    Exit code: 0 it is there; 1 some groups, which are named, did not make it; 2 it is there otherwise, or nobody to
    ask.
    """
    from rmqha.client.names import check_topic
    from rmqha.ops.messaging import topics

    check_topic(name)
    pairs = dict(_pair(text) for text in attributes)
    plan = ask_admin(namesrv, lambda admin: topics.plan_creation(admin, name, queues, pairs, groups))
    if not plan.making and not plan.existing:
        raise UsageError(f"the name servers {namesrv} know no group, so nothing was made; see rmqha health")
    result = ask_admin(namesrv, lambda admin: topics.create(admin, name, plan))
    count = plan.settings.write_queues
    if output == "json":
        existing = {group: _settings_json(settings) for group, settings in plan.existing.items()}
        echo_json({
            "topic": name,
            "groups": list(result.done),
            "queues": count if plan.making else None,
            "existing": existing,
            "failed": dict(result.failed),
        })  # fmt: skip
    else:
        if result.done:
            click.echo(f"{name}: {count} queue{'' if count == 1 else 's'} in {', '.join(result.done)}")
        if plan.existing:
            click.echo(
                f"{name}: exists already in {', '.join(plan.existing)} and stays as it is; see rmqha topic alter"
            )
    _end(name, "was not made", result.failed)


def _end(name: str, what: str, failed: Mapping[str, str]) -> None:
    """Tell which groups refused, and end with code 1 if one did."""
    for group, why in failed.items():
        click.echo(printable(f"rmqha: {name} {what} in {group}: {why}", lines=False), err=True)
    if failed:
        sys.exit(1)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--attribute {text!r} must be KEY=VALUE")
    return key, value


# --- alter ------------------------------------------------------------------------------------------------------------
def _edit(
    queues: int | None, read_queues: int | None, write_queues: int | None, perm: str | None, attributes: tuple[str, ...]
) -> TopicEdit:
    """The change that the options ask for. Raises UsageError for none, and for options that contradict each other."""
    from rmqha.ops.messaging.topics import PERMISSIONS as BITS
    from rmqha.ops.messaging.topics import TopicEdit

    if queues is not None and (read_queues is not None or write_queues is not None):
        raise UsageError("--queues stands for --read-queues and --write-queues: give it alone")
    wanted: dict[str, str | None] = {}
    for text in attributes:
        if text.startswith("-") and "=" not in text:
            wanted[text[1:]] = None
        else:
            key, value = _pair(text)
            wanted[key] = value
    edit = TopicEdit(
        queues if read_queues is None else read_queues,
        queues if write_queues is None else write_queues,
        None if perm is None else BITS[perm],
        wanted,
    )
    if edit == TopicEdit():
        raise UsageError("nothing to change: give --queues, --read-queues, --write-queues, --permission or --attribute")
    return edit


@topic.command(epilog="Example: rmqha topic alter orders --queues 16 --dry-run")
@name_argument
@click.option(
    "--queues", type=click.IntRange(1, MAX_QUEUE_COUNT), metavar="N", help="In each group, to read and write."
)
@click.option("--read-queues", type=click.IntRange(0, MAX_QUEUE_COUNT), metavar="N", help="In each group, to read.")
@click.option("--write-queues", type=click.IntRange(0, MAX_QUEUE_COUNT), metavar="N", help="In each group, to write.")
@click.option("--permission", type=click.Choice(PERMISSIONS), help="What clients may do.")
@click.option(
    "--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="Set it; -KEY removes it. Repeatable."
)
@group_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@target_namesrv_option()
@output_option
def alter(
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    attributes: tuple[str, ...],
    groups: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    namesrv: str,
    output: str,
) -> None:
    """Change TOPIC in the groups that hold it; what is not given stays as it is.

    To have fewer queues, lower --write-queues first, and --read-queues once the others are read: it asks before
    messages become unreadable. In CP the answer comes when the SyncStateSet of each group holds the change.

    Exit code: 0 done, or shown with --dry-run; 1 some groups, which are named, were not changed; 2 refused or nobody to
    ask.
    """
    from rmqha.ops.messaging import topics
    from rmqha.ops.messaging.brokers import EditResult

    edit = _edit(queues, read_queues, write_queues, permission, attributes)
    changes = ask_admin(namesrv, lambda admin: topics.plan_edit(admin, name, edit, groups))
    if output != "json":
        _show_changes(changes)
    unread = sum(count for change in changes for count in change.unread.values())
    if unread and not dry_run:
        question = f"{unread} messages of {name} are in queues that nobody could read then; go on?"
        confirm(question, "nothing changed", yes=yes)
    result = EditResult() if dry_run else ask_admin(namesrv, lambda admin: topics.apply_edit(admin, name, changes))
    if output == "json":
        echo_json({
            "topic": name,
            "dryRun": dry_run,
            "changed": list(result.done),
            "failed": dict(result.failed),
            "groups": [
                {
                    "group": change.broker.name,
                    "before": _settings_json(change.before),
                    "after": _settings_json(change.after),
                    "unread": {str(queue): count for queue, count in change.unread.items()},
                }
                for change in changes
            ],
        })  # fmt: skip
    elif dry_run:
        click.echo("dry run: nothing was changed")
    elif result.done:
        click.echo(f"{name}: changed in {', '.join(result.done)}")
    elif not result.failed:
        click.echo(f"{name}: is so already")
    _end(name, "was not changed", result.failed)


def _permission(perm: int) -> str:
    return PERMISSIONS[perm >> 1 & 3]


def _settings_json(settings: TopicSettings) -> dict[str, Any]:
    return {
        "readQueues": settings.read_queues,
        "writeQueues": settings.write_queues,
        "permission": _permission(settings.perm),
        "attributes": dict(settings.attributes),
    }


def _show_changes(changes: list[TopicChange]) -> None:
    rows = []
    for change in changes:
        before, after = _settings_json(change.before), _settings_json(change.after)
        for what in before:
            if before[what] != after[what]:
                rows.append([change.broker.name, what, _value(before[what]), _value(after[what])])
    if rows:
        echo_table(COLUMNS, rows)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in sorted(value.items())) or "none"
    return str(value)


# --- delete -----------------------------------------------------------------------------------------------------------
@topic.command(epilog="Example: rmqha topic delete orders --yes")
@name_argument
@yes_option
@target_namesrv_option()
@output_option
def delete(name: str, yes: bool, namesrv: str, output: str) -> None:
    """Delete TOPIC in all groups and at all name servers, with its messages as far as clients see.

    Made again, its queues go on behind their old ends.
    """
    from rmqha.client.names import check_topic
    from rmqha.ops.messaging.topics import of_users

    check_topic(name)

    async def known(admin: Admin) -> bool:
        names = await admin.topics()
        if name in names and name not in of_users(names, await admin.cluster_info()):
            raise UsageError(f"{name} is the servers' own; it stays")
        return name in names

    if not ask_admin(namesrv, known):
        raise UsageError(f"the name servers {namesrv} know no topic {name!r}; see rmqha topic ls")
    confirm(f"delete {name} with its messages in all groups?", "nothing deleted", yes=yes)
    deleted = ask_admin(namesrv, lambda admin: admin.delete_topic(name))
    if output == "json":
        echo_json({"topic": name, "groups": deleted})
    else:
        click.echo(f"{name} is deleted in {', '.join(deleted)}")
