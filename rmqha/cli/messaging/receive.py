"""`rmqha receive`: the messages of a topic, a line each, as they come."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rmqha.cli.messaging.asking import complete_consumer_group, topic_option
from rmqha.cli.messaging.first_messages import ShownMessages, WantedMessages, check_readable, show_first
from rmqha.cli.messaging.message_lines import (
    FORMAT_HELP,
    Line,
    compiled,
    echo_bytes,
    json_line,
    parse_format,
    table_line,
)
from rmqha.cli.options import output_option
from rmqha.cli.target import target_namesrv_option
from rmqha.cli.times import moment
from rmqha.client.consumers.expression import parse_tags
from rmqha.client.consumers.read_range import ReadRange
from rmqha.client.names import check_group, check_topic
from rmqha.client.route import MessageQueue
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import RemoteError, UsageError
from rmqha.model.printable import printable

if TYPE_CHECKING:
    from rmqha.client.consumers.consumer import Start
    from rmqha.client.consumers.message import Message

NO_GROUP = "rmqha-receive"
"""Name in the requests of a reader that belongs to no group."""


@click.command(epilog="Example: rmqha receive --topic orders --from first --idle 2")
@topic_option(required=True, text="Topic to read.")
@click.option(
    "--group", metavar="G", shell_complete=complete_consumer_group,
    help="Consumer group to join; without one all queues are read, nothing committed.",
)  # fmt: skip
@click.option(
    "--from", "start", type=click.Choice(["first", "last", "committed"]),
    help="Where to begin, with --group in queues that it has no offset in; default: committed with it, else first.",
)  # fmt: skip
@click.option(
    "--since", "since_ms", callback=moment, metavar="TIME", help="Begin with what was stored at TIME or later."
)
@click.option("--queue", metavar="QUEUE", help="Only this queue, such as broker-a:0.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Begin there in the queue of --queue.")
@click.option("--tags", default="*", show_default=True, metavar="EXPR", help='Tags to read, such as "A || B".')
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option(
    "--idle", "idle_s", type=click.FloatRange(0, min_open=True), metavar="S",
    help="Stop after S seconds without a message.",
)  # fmt: skip
@click.option("--format", "line", callback=parse_format, metavar="FORMAT", help=FORMAT_HELP)
@target_namesrv_option(lambda given: given["group"] is not None)
@output_option
def receive(
    topic: str,
    group: str | None,
    start: Start | None,
    since_ms: int | None,
    queue: str | None,
    offset: int | None,
    tags: str,
    limit: int | None,
    idle_s: float | None,
    line: Line | None,
    namesrv: str,
    output: str,
) -> None:
    """Print the messages of a topic, one line each, through failovers, until interrupted.

    On a terminal a line is cut to its width. Where the output is none, each message is its body, byte for byte, and a
    newline; -o table or --format tell more.

    Exit code: 0 well, 1 nothing could be read or nothing more may be, 2 wrong usage or nobody to ask.
    """
    if start == "committed" and group is None:
        raise UsageError("--from committed needs --group, whose offsets they are")
    context = click.get_current_context()
    if line is not None and context.get_parameter_source("output") is ParameterSource.COMMANDLINE:
        raise UsageError("--format and -o each say how a message is printed: give one")
    read_range = _read_range(topic, group, start, since_ms, queue, offset)
    check_topic(topic)
    if group is not None:
        check_group(group)
    parse_tags(tags)
    asked_for_table = context.get_parameter_source("output") is ParameterSource.COMMANDLINE
    show = _printer(line, output, asked_for_table=asked_for_table)
    count, refusals, statistics = -1, list[RemoteError](), dict[str, Any]()
    ask_by(check_readable, namesrv, topic)
    try:
        if group is None and start != "last":
            wanted = WantedMessages(NO_GROUP, topic, read_range or ReadRange(), tags, limit)
            seen = ask_by(show_first, namesrv, wanted, show)
            read_range = replace(read_range or ReadRange(), known=seen.offsets)
        else:
            seen = ShownMessages()
        if seen.count == limit:
            count = seen.count
        else:
            sys.stdout.flush()
            if not seen.count:
                # what reads on takes a moment to load
                told = f"connecting to {namesrv} to read topic {topic}{f' as group {group}' if group else ''}"
                click.echo(printable(told, lines=False), err=True)
            import trio

            from rmqha.cli.messaging.receiving import receive_all
            from rmqha.client.consumers.consumer import Consumer

            consumer = Consumer(
                namesrv,
                group or NO_GROUP,
                topic,
                tags,
                start=start or ("committed" if group else "first"),
                standalone=group is None,
                read_range=read_range,
            )
            left = None if limit is None else limit - seen.count
            try:
                more = trio.run(receive_all, consumer, topic, left, idle_s, show, refusals)
            finally:
                statistics = consumer.statistics()
            count = seen.count + more
    except* BrokenPipeError:
        # whoever read our lines has seen enough, e.g. `head`; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if count >= 0:
        _tell_end(topic, group, output, count, refusals, statistics)


def _tell_end(
    topic: str,
    group: str | None,
    output: str,
    count: int,
    refusals: Sequence[RemoteError],
    statistics: Mapping[str, Any],
) -> None:
    """Print the number of messages that were read, or the reason why none could be, and exit with 1 then."""
    problem = statistics.get("last_error", "")
    if refusals:
        click.echo(f"rmqha: topic {topic} may not be read: {refusals[0]}", err=True)
        sys.exit(1)
    if passed_over := int(statistics.get("too_large", 0)):
        where = "to the dead letters" if group else "passed over"
        click.echo(f"rmqha: {passed_over} too large when decompressed, {where}; the last: {problem}", err=True)
    elif not count and problem:
        click.echo(f"rmqha: nothing was read from topic {topic}: {problem}", err=True)
        sys.exit(1)
    if output != "json":
        click.echo(f"{count} message{'' if count == 1 else 's'}", err=True)


def _read_range(
    topic: str, group: str | None, start: Start | None, since_ms: int | None, queue: str | None, offset: int | None
) -> ReadRange | None:
    """The part of the topic to read. Raises UsageError for options that contradict each other."""
    if since_ms is None and queue is None and offset is None:
        return None
    if group is not None:
        raise UsageError(
            "--since, --queue and --offset read without a group, whose members divide the queues; "
            "a group goes elsewhere by rmqha consumer reset"
        )
    if offset is not None and queue is None:
        raise UsageError("--offset is one of a queue: say which with --queue")
    if sum(given is not None for given in (start, since_ms, offset)) > 1:
        raise UsageError("--from, --since and --offset each say where to begin: give one")
    found = None
    if queue is not None:
        from rmqha.ops.messaging.brokers import parse_queue

        name = parse_queue(queue)
        found = MessageQueue(topic, name.broker_name, name.queue_id)
    return ReadRange(found, since_ms, offset)


def _printer(line: Line | None, output: str, *, asked_for_table: bool) -> Callable[[Message], None]:
    """The function that prints a message. Bodies that a script reads are the bytes that were sent."""
    if line is None and output != "json" and not asked_for_table and not sys.stdout.isatty():
        line = compiled("%v\\n")
    if line is not None:
        chosen = line
        return lambda message: echo_bytes(chosen(message))
    if output == "json":
        return lambda message: click.echo(json_line(message))
    is_terminal = sys.stdout.isatty()
    return lambda message: click.echo(table_line(message, shutil.get_terminal_size().columns if is_terminal else None))
