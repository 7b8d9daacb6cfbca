"""`rmqha message`: messages found by id, key, time and content; who has read one; one sent again."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from rmqha.cli.messaging.asking import ask_admin, complete_topic, topic_option
from rmqha.cli.messaging.message_lines import (
    FORMAT_HELP,
    Line,
    echo_bytes,
    json_line,
    parse_format,
    table_line,
)
from rmqha.cli.options import confirm, echo_json, namesrv_option, output_option, yes_option
from rmqha.cli.plain_table import echo_table
from rmqha.cli.target import target_namesrv_option
from rmqha.cli.times import local_time, moment
from rmqha.model.error import UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.admin import Admin
    from rmqha.client.consumers.message import Message
    from rmqha.ops.messaging.messages import MessageTrack

TRACK_COLUMNS = [("GROUP", "left"), ("STATE", "left"), ("DETAIL", "left")]

format_option = click.option("--format", "line", callback=parse_format, metavar="FORMAT", help=FORMAT_HELP)
id_argument = click.argument("message_id", metavar="ID")


@click.group()
def message() -> None:
    """Messages: get one, find some, track who has read one, resend one.

    ID is the id that `rmqha send --acked` and `receive -o json` tell: msgId, for which --topic helps, or offsetMsgId.
    """


def show(found: Message, output: str, line: Line | None, *, in_short: bool = False) -> None:
    """Print one message."""
    if line is not None:
        echo_bytes(line(found))
    elif output == "json":
        click.echo(json_line(found))
    elif in_short:
        click.echo(table_line(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    else:
        _show_whole(found)


def _show_whole(found: Message) -> None:
    rows: list[tuple[str, Any]] = [
        ("topic", found.topic),
        ("place", f"{found.broker_name}:{found.queue_id}@{found.queue_offset}"),
        ("msgId", found.msg_id),
        ("offsetMsgId", found.offset_msg_id),
        ("stored", local_time(found.stored_at_ms)),
        ("born", local_time(found.born_at_ms)),
        ("keys", found.keys),
        ("tags", found.tags),
        ("sent back", found.reconsume_times or ""),
        ("bytes", len(found.body)),
    ]
    rows += [(f"property {name}", value) for name, value in sorted(found.properties.items())]
    for name, value in rows:
        if value != "":
            click.echo(f"{printable(name, lines=False):<12} {printable(str(value), lines=False)}")
    click.echo()
    if sys.stdout.isatty():
        click.echo(found.body.decode("utf-8", "replace"))
    else:
        echo_bytes(found.body + b"\n")


@message.command("get", epilog="Example: rmqha message get 7F00000100002A9F0000000000000A18")
@id_argument
@topic_option(text="Topic of a msgId; default: all topics of users are searched.")
@format_option
@namesrv_option
@output_option
def get_command(message_id: str, topic: str | None, line: Line | None, namesrv: str, output: str) -> None:
    """Print the message with that ID: where it is, its properties, its body.

    A msgId that a producer's retry has stored twice gives both. With -o json each is a line.

    Exit code: 0 found, 2 there is none or nobody to ask.
    """
    from rmqha.ops.messaging import messages

    for found in ask_admin(namesrv, lambda admin: messages.by_id(admin, message_id, topic)):
        show(found, output, line)


@message.command("find", epilog="Example: rmqha message find --topic orders --since 2026-11-21T14:00:00 --grep error")
@topic_option(required=True, text="Topic to search.")
@click.option("--key", metavar="K", help="With this key: by the index, the newest first, 64 of each group at most.")
@click.option("--since", "since_ms", callback=moment, metavar="TIME", help="Stored at TIME or later.")
@click.option("--until", "until_ms", callback=moment, metavar="TIME", help="Stored before TIME.")
@click.option("--grep", "pattern", metavar="PATTERN", help="Body or a property matches this regular expression (RE2).")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="Print no more.")
@format_option
@namesrv_option
@output_option
def find_command(
    topic: str,
    key: str | None,
    since_ms: int | None,
    until_ms: int | None,
    pattern: str | None,
    limit: int,
    line: Line | None,
    namesrv: str,
    output: str,
) -> None:
    """Print the messages of a topic that have a key, were stored in a time, or match a pattern.

    Without --key the queues are read from --since on, a line per message in order of time of storing.

    Exit code: 0 found, 1 none, 2 wrong usage or nobody to ask.
    """
    from rmqha.ops.messaging import messages

    if key is None and since_ms is None and until_ms is None and pattern is None:
        raise UsageError("say what to find: --key, --since, --until or --grep; rmqha receive prints a whole topic")
    wanted = _matcher(pattern)

    async def question(admin: Admin) -> list[Message]:
        if key is not None:
            found = await messages.by_key(admin, topic, key, since_ms, until_ms)
            return [item for item in found if wanted(item)][: limit + 1]
        taken = [item async for item in messages.scan(admin, topic, since_ms, until_ms, wanted, limit + 1)]
        return sorted(taken, key=lambda item: (item.stored_at_ms, item.broker_name, item.queue_id))[: limit + 1]

    found = ask_admin(namesrv, question)
    for item in found[:limit]:
        show(item, output, line, in_short=True)
    if len(found) > limit:
        click.echo(f"rmqha: there are more than {limit}: raise --limit or narrow the time", err=True)
    if not found:
        click.echo(printable(f"rmqha: no message of {topic} matches", lines=False), err=True)
        sys.exit(1)


def _matcher(pattern: str | None) -> Any:
    """A test that is True for a message whose body or a property matches. Raises UsageError for what is no pattern."""
    if pattern is None:
        return lambda message: True
    from rmqha.model.pattern import Pattern

    try:
        compiled = Pattern(pattern)
    except ValueError as error:
        raise UsageError(f"--grep {pattern!r} is no pattern: {error}") from None
    return lambda message: (
        compiled.is_in(message.body) or any(compiled.is_in(value.encode()) for value in message.properties.values())
    )


@message.command("track", epilog="Example: rmqha message track 7F00000100002A9F0000000000000A18")
@id_argument
@topic_option(text="Topic of a msgId; default: all topics of users are searched.")
@namesrv_option
@output_option
def track_command(message_id: str, topic: str | None, namesrv: str, output: str) -> None:
    """Tell how far each consumer group of its topic is with the message: read, waiting, sent back, a dead letter.

    "read" means that the group has committed a later offset.

    Exit code: 0 told, 2 there is no such message or nobody to ask.
    """
    from rmqha.ops.messaging import messages

    async def question(admin: Admin) -> tuple[Message, list[MessageTrack]]:
        found = (await messages.by_id(admin, message_id, topic))[-1]
        return found, await messages.track(admin, found)

    found, tracks = ask_admin(namesrv, question)
    place = f"{found.broker_name}:{found.queue_id}@{found.queue_offset}"
    if output == "json":
        echo_json({
            "msgId": found.msg_id,
            "topic": found.topic,
            "place": place,
            "groups": [
                {
                    "group": item.group,
                    "state": item.state.value,
                    "ahead": item.ahead,
                    "sentBack": item.tries,
                    "members": item.member_count,
                }
                for item in tracks
            ],
        })  # fmt: skip
        return
    click.echo(printable(f"{found.msg_id} in {found.topic} at {place}", lines=False))
    if tracks:
        echo_table(TRACK_COLUMNS, [[item.group, item.state.value, _detail(item)] for item in tracks])
    else:
        click.echo("no consumer group reads this topic")


def _detail(item: MessageTrack) -> str:
    parts = []
    if item.ahead:
        parts.append(f"{item.ahead} before it")
    if item.tries:
        parts.append(f"sent back {item.tries} time{'' if item.tries == 1 else 's'}")
    if not item.member_count:
        parts.append("nobody is connected")
    return ", ".join(parts)


@message.command("resend", epilog="Example: rmqha message resend 7F00000100002A9F0000000000000A18 --yes")
@id_argument
@topic_option(text="Topic of a msgId; default: all topics of users are searched.")
@click.option("--to", "target", metavar="TOPIC", shell_complete=complete_topic, help="Another topic; default: its own.")
@yes_option
@target_namesrv_option()
@output_option
def resend_command(
    message_id: str, topic: str | None, target: str | None, yes: bool, namesrv: str, output: str
) -> None:
    """Send a copy of the message: same body, keys, tags and properties, another id. All groups of the topic read it.

    For one group only see `rmqha consumer reset` and `rmqha dlq resend`.

    Exit code: 0 acknowledged, 1 not, 2 there is no such message, refused or nobody to ask.
    """
    from rmqha.ops.messaging import messages, resending

    found = ask_admin(namesrv, lambda admin: messages.by_id(admin, message_id, topic))[-1]
    to = target or found.topic
    confirm(f"send a copy of {found.msg_id} to {to}?", "nothing sent", yes=yes)
    result = resending.send_all(namesrv, [messages.copy_of(found, to)])[0]
    if output == "json":
        echo_json({"topic": to, "msgId": result.msg_id, "copyOf": found.msg_id})
    else:
        click.echo(f"sent to {to} as {result.msg_id}")
