"""`rmqha describe topic`: where a topic's messages are, and what the groups that hold it promise. Control plane."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.cli.render import Text, console, table
from rmqha.host.asking.shell import ask_by
from rmqha.ops.description.topic import TopicDescription, ask_topic

QUEUE_COLUMNS = [
    ("GROUP", "left"),
    ("QUEUE", "right"),
    ("MIN", "right"),
    ("MAX", "right"),
    ("MESSAGES", "right"),
    ("LAST STORED", "left"),
]


@click.command("topic", epilog="Example: rmqha describe topic orders")
@click.argument("name", metavar="TOPIC")
@namesrv_option
@output_option
def topic_command(name: str, namesrv: str, output: str) -> None:
    """Tell in which groups TOPIC is, its queues with their offsets, and what those groups promise.

    Exit code: 0 every group of it was asked, 1 one could not be, 2 there is no such topic or nobody to ask.
    """
    describe_topic(name, namesrv, output)


def describe_topic(name: str, namesrv: str, output: str) -> None:
    """Print a topic; exit code 1 if one of its groups could not be asked."""
    view = ask_by(ask_topic, namesrv, name)
    if output == "json":
        echo_json(view.to_json())
    else:
        _show(view)
    if any(group.error for group in view.groups):
        sys.exit(1)


def _show(view: TopicDescription) -> None:
    out = console()
    count = sum(queue.message_count for group in view.groups for queue in group.queues)
    names = ", ".join(group.group for group in view.groups)
    what = "1 message" if count == 1 else f"{count} messages"
    out.print(Text(f"{view.topic} in {names}: {what}", "bold"))
    rows = []
    for group in view.groups:
        for queue in group.queues:
            stored_ms = queue.last_stored_ms
            at = f"{datetime.fromtimestamp(stored_ms / 1000).astimezone():%m-%d %H:%M:%S}" if stored_ms else ""
            offsets = (queue.min_offset, queue.max_offset)
            rows.append([group.group, queue.queue_id, *offsets, queue.message_count, at])
    out.print(table(QUEUE_COLUMNS, rows))
    for group in view.groups:
        sizes = f"{group.read_queues} queues to read, {group.write_queues} to write, {group.permission} allowed"
        told = "".join(f", {key} {value}" for key, value in sorted(group.all_attributes.items()))
        out.print(Text(f"{group.group}: {sizes}{told}"))
        if group.acknowledged:
            out.print(Text(f"{group.group}: {group.kind}: {group.acknowledged}"))
        if group.master is None:
            out.print(Text(f"{group.group}: it has no master", "red"))
        if group.error:
            out.print(Text(f"{group.group}: {group.error}", "red"))
