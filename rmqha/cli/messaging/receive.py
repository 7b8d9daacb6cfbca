"""`rmqha receive`: the messages of a topic, a line each, as they come."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
from datetime import datetime
from typing import Any

import click
import trio

from rmqha.cli.options import namesrv_option, output_option
from rmqha.client.consumers.consumer import Consumer, Start
from rmqha.client.consumers.message import Message
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, UsageError

NO_GROUP = "rmqha-receive"
"""Name in the requests of a reader that belongs to no group."""


@click.command(epilog="Example: rmqha receive --topic orders --from first --idle 2")
@click.option("--topic", required=True, metavar="T", help="Topic to read.")
@click.option(
    "--group", metavar="G", help="Consumer group to join; without one all queues are read, nothing committed."
)
@click.option(
    "--from", "start", type=click.Choice(["first", "last", "committed"]),
    help="Where to begin; default: committed with --group, else first.",
)  # fmt: skip
@click.option("--tags", default="*", show_default=True, metavar="EXPR", help='Tags to read, such as "A || B".')
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option(
    "--idle", "idle_s", type=click.FloatRange(0, min_open=True), metavar="S",
    help="Stop after S seconds without a message.",
)  # fmt: skip
@namesrv_option
@output_option
def receive(
    topic: str,
    group: str | None,
    start: Start | None,
    tags: str,
    limit: int | None,
    idle_s: float | None,
    namesrv: str,
    output: str,
) -> None:
    """Print the messages of a topic, one line each, through failovers, until interrupted.

    Exit code: 0 well, 1 nothing could be read, 2 wrong usage or nobody to ask.
    """
    if start == "committed" and group is None:
        raise UsageError("--from committed needs --group, whose offsets they are")
    consumer = Consumer(
        namesrv,
        group or NO_GROUP,
        topic,
        tags,
        start=start or ("committed" if group else "first"),
        standalone=group is None,
    )
    count = -1
    try:
        count = trio.run(_run, consumer, topic, limit, idle_s, output == "json")
    except* BrokenPipeError:
        # whoever read our lines has seen enough, e.g. `head`; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if count < 0:
        return
    problem = consumer.statistics()["last_error"]
    if passed_over := int(consumer.statistics()["too_large"]):
        where = "to the dead letters" if group else "passed over"
        click.echo(f"rmqha: {passed_over} too large when decompressed, {where}; the last: {problem}", err=True)
    elif not count and problem:
        click.echo(f"rmqha: nothing was read from topic {topic}: {problem}", err=True)
        sys.exit(1)
    if output != "json":
        click.echo(f"{count} message{'' if count == 1 else 's'}", err=True)


async def _run(consumer: Consumer, topic: str, limit: int | None, idle_s: float | None, as_json: bool) -> int:
    """Print until the limit, the silence or a signal; the number of messages."""
    count = 0
    try:
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
            while limit is None or count < limit:
                message = None
                with trio.move_on_after(float("inf") if idle_s is None else idle_s):
                    message = await consumer.receive()
                if message is None:
                    break
                click.echo(json_line(message) if as_json else table_line(message, shutil.get_terminal_size().columns))
                count += 1
            nursery.cancel_scope.cancel()
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise UsageError(f"topic {topic} does not exist") from None
        raise
    return count


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


def json_line(message: Message) -> str:
    """One object; the body as text if it is UTF-8, else in base64 under bodyBase64."""
    value: dict[str, Any] = {
        "topic": message.topic,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "bornAtMs": message.born_at_ms,
        "storedAtMs": message.stored_at_ms,
        "reconsumeTimes": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        value["body"] = message.body.decode()
    except UnicodeDecodeError:
        value["bodyBase64"] = base64.b64encode(message.body).decode()
    return json.dumps(value, ensure_ascii=False)


def table_line(message: Message, width: int) -> str:
    """Place, time of storing, tags, keys and the body's beginning, at most `width` characters, nothing unprintable."""
    stamp = datetime.fromtimestamp(message.stored_at_ms / 1000).isoformat(sep=" ", timespec="milliseconds")[5:]
    place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    labels = "".join(f"[{label}] " for label in (message.tags, message.keys) if label)
    body = message.body[: 4 * width].decode("utf-8", "replace")
    line = f"{place:<14} {stamp} {labels}{body}"
    line = "".join(char if char.isprintable() else "·" for char in line[: width + 1])
    return line if len(line) <= width else line[: width - 1] + "…"
