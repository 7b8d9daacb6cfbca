"""`rmqha consumer reset|skip|create|alter|delete`: a consumer group goes on from elsewhere, gets other settings, or is
deleted. Each shows what it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from rmqha.cli.messaging.asking import ask_admin, group_argument, topic_option
from rmqha.cli.options import confirm, echo_json, output_option, yes_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.target import target_namesrv_option
from rmqha.cli.times import local_time, parse_time
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.ops.messaging.brokers import EditResult
    from rmqha.ops.messaging.consumer_reset import QueueChange, ResetPlan, ResetResult, Target
    from rmqha.ops.messaging.group_settings import GroupChange

F = TypeVar("F", bound=Callable[..., Any])

SETTING_COLUMNS = [("BROKER", "left"), ("SETTING", "left"), ("BEFORE", "left"), ("AFTER", "left")]
COLUMNS = [("QUEUE", "left"), ("BEFORE", "right"), ("AFTER", "right"), ("CHANGE", "left")]


def parse_target(text: str, now_ms: int) -> Target:
    """The target in a text: first, last, a time or an offset. Raises UsageError, also for a time in the future."""
    from rmqha.ops.messaging.consumer_reset import ResetPlace, Target

    if text in ("first", "last"):
        return Target(ResetPlace(text))
    if text.isascii() and text.isdigit():
        return Target(ResetPlace.OFFSET, int(text))
    at_ms = parse_time(text)
    if at_ms is None or at_ms < 0:
        raise UsageError(f"--to {text!r} must be first, last, a time such as 2026-11-21T14:00:00, or an offset")
    if at_ms > now_ms:
        raise UsageError(f"--to {text} is {local_time(at_ms)}, which is to come; for the end of each queue say last")
    return Target(ResetPlace.TIME, at_ms)


queue_option = click.option("--queue", metavar="QUEUE", help="Only this queue, such as broker-a:0.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would change.")


@click.command(epilog="Example: rmqha consumer reset billing --to 2026-11-21T14:00:00 --dry-run")
@group_argument
@click.option("--to", "place", required=True, metavar="PLACE", help="first, last, a time (ISO 8601) or an offset.")
@topic_option(text="Topic; needed if the group reads several.")
@queue_option
@dry_run_option
@yes_option
@target_namesrv_option()
@output_option
def reset(
    group: str, place: str, topic: str | None, queue: str | None, dry_run: bool, yes: bool, namesrv: str, output: str
) -> None:
    """Let GROUP go on from another place: the first message, the last, those stored since a time, an offset.

    Connected members notice at their next pull. If none is connected, the next one begins there. An offset needs
    --queue unless the topic has only one. Nothing is changed unless every master of the topic answers.

    Exit code: 0 done, or shown with --dry-run; 1 some queues were not changed; 2 unclear, refused or nobody to ask.
    """
    import time

    target = parse_target(place, time.time_ns() // 1_000_000)
    _move(group, target, topic, queue, dry_run, yes, namesrv, output)


@click.command(epilog="Example: rmqha consumer skip billing --queue broker-a:0 --count 1")
@group_argument
@click.option(
    "--count", type=click.IntRange(1), metavar="N",
    help="Messages of one queue to pass over; default: all that wait, in each queue.",
)  # fmt: skip
@topic_option(text="Topic; needed if the group reads several.")
@queue_option
@dry_run_option
@yes_option
@target_namesrv_option()
@output_option
def skip(
    group: str,
    count: int | None,
    topic: str | None,
    queue: str | None,
    dry_run: bool,
    yes: bool,
    namesrv: str,
    output: str,
) -> None:
    """Let GROUP pass over the next N messages of a queue, or over all that wait.

    The messages stay in the topic: `rmqha consumer reset` goes back to them. A --count needs --queue unless the topic
    has only one.

    Exit code: 0 done, or shown with --dry-run; 1 some queues were not changed; 2 unclear, refused or nobody to ask.
    """
    from rmqha.ops.messaging.consumer_reset import ResetPlace, Target

    target = Target(ResetPlace.LAST) if count is None else Target(ResetPlace.SKIP, count)
    _move(group, target, topic, queue, dry_run, yes, namesrv, output)


def _move(
    name: str,
    target: Target,
    topic: str | None,
    queue: str | None,
    dry_run: bool,
    yes: bool,
    namesrv: str,
    output: str,
) -> None:
    from rmqha.ops.messaging import consumer_reset
    from rmqha.ops.messaging.brokers import parse_queue
    from rmqha.ops.messaging.consumer_group import describe_group

    wanted = None if queue is None else parse_queue(queue)

    async def question(admin: Admin) -> ResetPlan:
        group = await describe_group(admin, name, topic, whole=False)
        return await consumer_reset.plan(admin, group, consumer_reset.chosen_topic(group, topic), target, wanted)

    made = ask_admin(namesrv, question)
    if output != "json":
        _show_plan(made)
    if dry_run or not any(change.moves for change in made.changes):
        if output == "json":
            echo_json(plan_json(made) | {"dryRun": dry_run, "changed": 0, "failed": {}})
        elif dry_run:
            click.echo("dry run: nothing was changed")
        return
    confirm(f"change the offsets of {printable(name, lines=False)}?", "nothing changed", yes=yes)
    result = ask_admin(namesrv, lambda admin: consumer_reset.apply(admin, made))
    _tell(made, result, output)


def _change_text(change: QueueChange) -> str:
    if not change.moves:
        return "stays"
    if change.before is None:
        return "had committed nothing"
    return f"{change.read_again} again" if change.read_again else f"{change.passed_over} passed over"


def _show_plan(made: ResetPlan) -> None:
    rows = [
        [change.queue, "none" if change.before is None else change.before, change.after, _change_text(change)]
        for change in made.changes
    ]
    echo_table(COLUMNS, rows)
    again = sum(change.read_again for change in made.changes)
    passed_over = sum(change.passed_over for change in made.changes)
    members = f"{made.member_count} connected" if made.member_count else "nobody is connected"
    click.echo(
        printable(f"{made.group} in {made.topic}: {again} again, {passed_over} passed over; {members}", lines=False)
    )


def plan_json(made: ResetPlan) -> dict[str, Any]:
    """The plan for scripts."""
    return {
        "group": made.group,
        "topic": made.topic,
        "members": made.member_count,
        "by": {name: way.value for name, way in made.ways.items()},
        "queues": [
            {
                "brokerName": change.queue.broker_name,
                "queueId": change.queue.queue_id,
                "before": change.before,
                "after": change.after,
                "readAgain": change.read_again,
                "passedOver": change.passed_over,
            }
            for change in made.changes
        ],
    }


def _tell(made: ResetPlan, result: ResetResult, output: str) -> None:
    if output == "json":
        failed = {str(queue): why for queue, why in result.failed.items()}
        echo_json(plan_json(made) | {"dryRun": False, "changed": len(result.done), "failed": failed})
    else:
        count = len(result.done)
        click.echo(f"{count} queue{'' if count == 1 else 's'} changed")
        for queue, why in result.failed.items():
            click.echo(f"rmqha: {queue} was not changed: {why}", err=True)
    if result.failed:
        sys.exit(1)


def _settings_options(command: F) -> F:
    """`--max-retries N`, `--broadcast|--no-broadcast`, `--broker NAME`."""
    made: Any = click.option("--broker", "brokers", multiple=True, metavar="NAME", help="Only there; repeatable.")(
        command
    )
    made = click.option(
        "--broadcast/--no-broadcast", default=None, help="Whether members may read as BROADCASTING (default: yes)."
    )(made)
    return cast(F, click.option(
        "--max-retries", type=click.IntRange(0, 1_000_000), metavar="N",
        help="Deliveries after the first one, then a dead letter. A client that names its own number keeps that.",
    )(made))  # fmt: skip


@click.command(epilog="Example: rmqha consumer create billing --max-retries 3")
@group_argument
@_settings_options
@target_namesrv_option()
@output_option
def create(
    group: str, max_retries: int | None, broadcast: bool | None, brokers: tuple[str, ...], namesrv: str, output: str
) -> None:
    """Make GROUP before its first member connects, as brokers with autoCreateSubscriptionGroup=false want it.

    Where it exists it stays as it is. In CP the answer comes when the SyncStateSet of each broker group holds it.

    Exit code: 0 it is there; 1 some broker groups, which are named, did not make it; 2 refused or nobody to ask.
    """
    from rmqha.client.names import check_group
    from rmqha.ops.messaging.group_settings import GroupEdit, plan_creation

    check_group(group)
    edit = GroupEdit(broadcasts=broadcast, max_retries=max_retries)
    changes = ask_admin(namesrv, lambda admin: plan_creation(admin, group, edit, brokers))
    _change_settings(group, changes, namesrv, output, creates=True, dry_run=False)


@click.command(epilog="Example: rmqha consumer alter billing --pause")
@group_argument
@click.option("--pause/--resume", default=None, help="Let its members read nothing, or let them read again.")
@_settings_options
@dry_run_option
@target_namesrv_option()
@output_option
def alter(
    group: str,
    pause: bool | None,
    max_retries: int | None,
    broadcast: bool | None,
    brokers: tuple[str, ...],
    dry_run: bool,
    namesrv: str,
    output: str,
) -> None:
    """Change settings of GROUP in the broker groups that know it; what is not given stays as it is.

    Members of a paused group stay connected and ask again and again; brokers answer NO_PERMISSION (16) until --resume.
    Messages wait meanwhile. In CP the answer comes when the SyncStateSet of each broker group holds the change. A
    broker group that is added later makes the consumer group with reading on: pause it there too.

    Exit code: 0 done, or shown with --dry-run; 1 some broker groups, which are named, were not changed; 2 refused or
    nobody to ask.
    """
    from rmqha.ops.messaging.group_settings import GroupEdit, plan_edit

    edit = GroupEdit(None if pause is None else not pause, broadcast, max_retries)
    if edit == GroupEdit():
        raise UsageError("nothing to change: give --pause, --resume, --max-retries, --broadcast or --no-broadcast")
    changes = ask_admin(namesrv, lambda admin: plan_edit(admin, group, edit, brokers))
    _change_settings(group, changes, namesrv, output, creates=False, dry_run=dry_run)


def _change_settings(
    group: str, changes: list[GroupChange], namesrv: str, output: str, *, creates: bool, dry_run: bool
) -> None:
    """Show the changes, make them unless `dry_run`, and tell where. `creates`: only where the group does not exist."""
    from rmqha.ops.messaging.brokers import EditResult
    from rmqha.ops.messaging.group_settings import apply_edit

    if output != "json":
        rows = [
            [change.broker.name, name, _setting(change.before.get(name)), _setting(value)]
            for change in changes
            if change.before is not None
            for name, value in change.wanted.items()
            if change.before.get(name) != value
        ]
        if rows:
            echo_table(SETTING_COLUMNS, rows)
    result = EditResult() if dry_run else ask_admin(namesrv, lambda admin: apply_edit(admin, group, changes))
    if output == "json":
        echo_json(edit_json(group, changes, result, dry_run=dry_run))
    elif dry_run:
        click.echo("dry run: nothing was changed")
    else:
        click.echo(printable(edit_sentence(group, changes, result, creates=creates), lines=False))
        for name, why in result.failed.items():
            did = "was not made" if creates else "was not changed"
            click.echo(printable(f"rmqha: {group} {did} in {name}: {why}", lines=False), err=True)
    if result.failed:
        sys.exit(1)


def edit_json(group: str, changes: Sequence[GroupChange], result: EditResult, *, dry_run: bool) -> dict[str, Any]:
    """The changes and their result for scripts."""
    told = [
        {
            "broker": change.broker.name,
            "before": {name: (change.before or {}).get(name) for name in change.wanted},
            "after": dict(change.wanted),
        }
        for change in changes
    ]
    return {
        "group": group,
        "dryRun": dry_run,
        "changed": list(result.done),
        "failed": dict(result.failed),
        "brokers": told,
    }


def edit_sentence(group: str, changes: Sequence[GroupChange], result: EditResult, *, creates: bool) -> str:
    """The result in words, without failures."""
    told = [f"{'made' if creates else 'changed'} in {', '.join(result.done)}"] if result.done else []
    if creates:
        existing = [change.broker.name for change in changes if change.before is not None]
        if existing:
            where = f" in {', '.join(existing)}" if len(existing) < len(changes) else ""
            told.append(f"exists already{where} and stays as it is; see rmqha consumer alter")
    elif not told and not result.failed:
        told.append("is so already")
    return f"{group}: {', '.join(told) or 'nothing changed'}"


def _setting(value: object) -> str:
    """A setting as a properties file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@click.command(epilog="Example: rmqha consumer delete billing --yes")
@group_argument
@yes_option
@target_namesrv_option()
@output_option
def delete(group: str, yes: bool, namesrv: str, output: str) -> None:
    """Delete the settings and offsets of GROUP at every broker, once none of its members is connected.

    Its dead letters and what was sent back stay. A group of the same name that connects again begins as a new one.

    Exit code: 0 deleted, 2 refused or nobody to ask.
    """
    from rmqha.ops.messaging.consumer_group import describe_group, is_system_group
    from rmqha.ops.messaging.consumer_reset import delete_group

    if is_system_group(group):
        raise UsageError(f"{group} is the servers' own; it stays")
    found = ask_admin(namesrv, lambda admin: describe_group(admin, group, whole=False))
    told = f"delete {group} with its offsets in {', '.join(found.topics) or 'no topic'} ({found.lag} wait)?"
    confirm(printable(told, lines=False), "nothing deleted", yes=yes)
    deleted = ask_admin(namesrv, lambda admin: delete_group(admin, group))
    if output == "json":
        echo_json({"group": group, "brokers": deleted})
    else:
        click.echo(f"{printable(group, lines=False)} is deleted in {', '.join(deleted)}")
