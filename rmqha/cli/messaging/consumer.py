"""`rmqha consumer`: consumer groups shown: how far they have read, who is connected, what is paused."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, group_argument, topic_option
from rmqha.cli.messaging.consumer_change import alter, create, delete, reset, skip
from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.times import age_text, local_time, short_time
from rmqha.model.message import RETRY_PREFIX
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.ops.messaging.consumer_group import ConsumerGroup, GroupMember, QueueProgress

LAG_COLUMNS = [
    ("TOPIC", "left"),
    ("QUEUE", "left"),
    ("COMMITTED", "right"),
    ("END", "right"),
    ("LAG", "right"),
    ("OLDEST WAITS", "right"),
    ("LAST READ", "left"),
]
LS_COLUMNS = [("GROUP", "left"), ("MEMBERS", "right"), ("LAG", "right"), ("MODEL", "left"), ("TOPICS", "left")]
MEMBER_COLUMNS = [("CLIENT", "left"), ("ADDRESS", "left"), ("LANGUAGE", "left"), ("CONNECTED TO", "left")]


@click.group()
def consumer() -> None:
    """Consumer groups: list, describe, lag, members; reset, skip, create, alter, delete.

    QUEUE is BROKER:N, such as broker-a:0, as `rmqha receive` writes it.
    """


for command in (reset, skip, create, alter, delete):
    consumer.add_command(command)


@consumer.command("ls", epilog="Example: rmqha consumer ls -o json")
@click.option("--all", "every", is_flag=True, help="Also those that servers and tools make for themselves.")
@namesrv_option
@output_option
def ls_command(every: bool, namesrv: str, output: str) -> None:
    """List the consumer groups: members, messages that wait, topics.

    Exit code: 0 every broker told, 1 one did not, 2 nobody to ask.
    """
    from rmqha.ops.messaging import consumer_group
    from rmqha.ops.messaging.brokers import require_brokers

    async def question(admin: Any) -> tuple[list[ConsumerGroup], dict[str, str]]:
        await require_brokers(admin)
        told = await consumer_group.group_names(admin, every=every)
        told.require_one()
        names = sorted({name for found in told.answers.values() for name in found})
        return await consumer_group.describe_groups(admin, names), told.silent

    groups, silent = ask_admin(namesrv, question)
    for group in groups:
        silent |= group.silent
    if output == "json":
        echo_json({"groups": [_summary(group) for group in groups], "silent": silent})
    else:
        rows = [
            [group.name, len(group.members), group.lag, (group.message_model or "").lower(), ", ".join(group.topics)]
            for group in groups
        ]
        echo_table(LS_COLUMNS, rows)
    _end(silent, output)


def _summary(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "group": group.name,
        "members": len(group.members),
        "messageModel": group.message_model,
        "topics": group.topics,
        "lag": group.lag,
    }


def _end(silent: dict[str, str], output: str) -> None:
    """Print the brokers that did not answer, and exit with 1 if there are any."""
    if output != "json":
        for name, why in sorted(silent.items()):
            click.echo(f"rmqha: {name} does not tell: {why}", err=True)
    if silent:
        sys.exit(1)


# --- lag --------------------------------------------------------------------------------------------------------------
@consumer.command("lag", epilog="Example: rmqha consumer lag billing -w")
@group_argument
@topic_option(text="Only this topic.")
@click.option("-w", "--watch", is_flag=True, help="Go on asking, until Ctrl-C.")
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.1), default=2.0, show_default=True, metavar="S",
    help="Seconds between two answers.",
)  # fmt: skip
@namesrv_option
@output_option
def lag_command(group: str, topic: str | None, watch: bool, interval_s: float, namesrv: str, output: str) -> None:
    """Tell how many messages wait for GROUP, in each queue and in all, and for how long the oldest does.

    With -w the total of each answer is a line; with -o json each answer is one.

    Exit code: 0 every broker told, 1 one did not, 2 nobody knows the group.
    """
    from rmqha.ops.messaging import consumer_group

    if not watch:
        found = ask_admin(namesrv, lambda admin: consumer_group.describe_group(admin, group, topic, whole=False))
        if output == "json":
            echo_json(lag_json(found))
        else:
            _show_lag(found)
        _end(found.silent, output)
        return

    async def watching(admin: Any) -> None:
        from rmqha.host.asking.shell import now_s, sleep

        before: tuple[float, ConsumerGroup] | None = None
        while True:
            now = now_s()
            found = await consumer_group.describe_group(admin, group, topic, whole=False)
            wall_ms = time.time_ns() // 1_000_000
            if output == "json":
                click.echo(json.dumps({"atMs": wall_ms, **lag_json(found)}, ensure_ascii=False))
            else:
                rate = _read_per_second(before, (now, found))
                click.echo(f"{local_time(wall_ms)}  {total_lag_text(found)}{rate}")
            before = now, found
            await sleep(max(0.0, now + interval_s - now_s()))

    ask_admin(namesrv, watching)


def _read_per_second(before: tuple[float, ConsumerGroup] | None, now: tuple[float, ConsumerGroup]) -> str:
    if before is None or now[0] <= before[0]:
        return ""
    read = [sum(item.committed or 0 for item in group.progress) for group in (before[1], now[1])]
    return f", {(read[1] - read[0]) / (now[0] - before[0]):.0f} read a second"


def total_lag_text(group: ConsumerGroup) -> str:
    """The lag of all queues in words."""
    age = group.oldest_age_ms
    what = "1 message waits" if group.lag == 1 else f"{group.lag} messages wait"
    deleted = f"; {group.deleted} were deleted before it had read them" if group.deleted else ""
    return f"{what}, the oldest for {age_text(age)}{deleted}" if group.lag and age is not None else f"{what}{deleted}"


def lag_json(group: ConsumerGroup) -> dict[str, Any]:
    """The progress of a group for scripts."""
    return {
        "group": group.name,
        "lag": group.lag,
        "deletedUnread": group.deleted,
        "oldestWaitsMs": group.oldest_age_ms,
        "queues": [_queue_json(item) for item in group.progress],
        "silent": group.silent,
    }


def _queue_json(item: QueueProgress) -> dict[str, Any]:
    return {
        "topic": item.topic,
        "brokerName": item.queue.broker_name,
        "queueId": item.queue.queue_id,
        "committed": item.committed,
        "end": item.end,
        "lag": item.lag,
        "deletedUnread": item.deleted,
        "oldestWaitsMs": item.oldest_age_ms,
        "lastReadStoredAtMs": item.read_at_ms or None,
    }


def _show_lag(group: ConsumerGroup) -> None:
    rows = [
        [
            item.topic,
            item.queue,
            "none" if item.committed is None else item.committed,
            item.end,
            item.lag,
            age_text(item.oldest_age_ms),
            short_time(item.read_at_ms),
        ]
        for item in group.progress
    ]
    echo_table(LAG_COLUMNS, rows)
    click.echo(f"{printable(group.name, lines=False)}: {total_lag_text(group)}")


# --- members and all else ---------------------------------------------------------------------------------------------
@consumer.command("members", epilog="Example: rmqha consumer members billing")
@group_argument
@namesrv_option
@output_option
def members_command(group: str, namesrv: str, output: str) -> None:
    """List the connected clients of GROUP: client id, address, language, the broker groups that know it.

    Exit code: 0 every broker told, 1 one did not, 2 nobody knows the group.
    """
    from rmqha.ops.messaging import consumer_group

    found = ask_admin(namesrv, lambda admin: consumer_group.describe_group(admin, group, whole=False))
    if output == "json":
        members = [member_json(member) for member in found.members]
        echo_json({"group": found.name, "members": members, "silent": found.silent})
    else:
        _show_members(found)
    _end(found.silent, output)


def member_json(member: GroupMember) -> dict[str, Any]:
    """A connected client for scripts."""
    return {
        "clientId": member.client_id,
        "address": member.address,
        "language": member.language,
        "version": member.version,
        "brokers": list(member.brokers),
    }


def _show_members(group: ConsumerGroup) -> None:
    if not group.members:
        click.echo(f"{printable(group.name, lines=False)}: nobody is connected")
        return
    rows = [[item.client_id, item.address, item.language, ", ".join(item.brokers)] for item in group.members]
    echo_table(MEMBER_COLUMNS, rows)


@consumer.command("describe", epilog="Example: rmqha consumer describe billing")
@group_argument
@namesrv_option
@output_option
def describe_command(group: str, namesrv: str, output: str) -> None:
    """Tell all about GROUP: members, subscriptions, progress, retries, dead letters, and what is paused.

    Exit code: 0 every broker told, 1 one did not, 2 nobody knows the group.
    """
    from rmqha.ops.messaging import consumer_group

    found = ask_admin(namesrv, lambda admin: consumer_group.describe_group(admin, group))
    if output == "json":
        echo_json({
            **lag_json(found),
            "messageModel": found.message_model,
            "consumeFrom": found.consume_from,
            "subscriptions": found.subscriptions,
            "subscribedAlike": found.subscribed_alike,
            "members": [member_json(member) for member in found.members],
            "settings": found.settings,
            "poppedInFlight": found.popped,
            "retriesWaiting": found.retries_waiting,
            "delayed": {
                topic: {"messages": count, "firstInMs": first_in_ms}
                for topic, (count, first_in_ms) in sorted(found.delayed.items())
            },
            "delayedNotLookedAt": found.delayed_unread,
            "delayedNotTold": found.delayed_untold,
            "deadLetters": found.dead_letters,
            "paused": found.paused,
        })  # fmt: skip
    else:
        _show_group(found)
    _end(found.silent, output)


def _show_group(group: ConsumerGroup) -> None:
    model = f", {group.message_model.lower()}" if group.message_model else ""
    count = len(group.members)
    _say(f"{group.name}: {count} member{'' if count == 1 else 's'}{model}; {total_lag_text(group)}")
    for topic, expression in sorted(group.subscriptions.items()):
        _say(f"subscribes to {topic}, {'all tags' if expression == '*' else expression}")
    if group.subscribed_alike:
        ways = "; others ".join(", ".join(ids) for ids in group.subscribed_alike)
        _say(f"its members subscribe differently: {ways}")
        _say("what one of them filters out no other gets: give all the same topics and tags")
    for topic, popped in sorted(group.popped.items()):
        _say(f"{popped} popped from {topic}, not acknowledged yet")
    if group.retries_waiting:
        _say(f"{group.retries_waiting} sent back, waiting to be tried again")
    for topic, (count, first_in_ms) in sorted(group.delayed.items()):
        first = f"the first for {age_text(first_in_ms)} more"
        if topic == RETRY_PREFIX + group.name:
            _say(f"{count} sent back, waiting in a delay level to be tried again, {first}")
        else:
            _say(f"{count} for {topic} waiting in a delay level, {first}")
    if group.delayed_untold:
        _say(f"not known: what waits in delay levels of {', '.join(group.delayed_untold)}")
    if group.delayed_unread:
        _say(f"{group.delayed_unread} other messages in delay levels were not searched: some may be for it")
    if group.dead_letters:
        _say(f"{group.dead_letters} dead letters; see rmqha dlq ls {group.name}")
    for where, why in sorted(group.paused.items()):
        _say(f"paused: {where}: {why}")
    for broker, settings in sorted(group.settings.items()):
        _say(
            f"{broker}: retryMaxTimes {settings.get('retryMaxTimes')}, retryQueueNums {settings.get('retryQueueNums')}"
        )
    if group.members:
        click.echo()
        _show_members(group)
    if group.progress:
        click.echo()
        _show_lag(group)


def _say(text: str) -> None:
    click.echo(printable(text, lines=False))
