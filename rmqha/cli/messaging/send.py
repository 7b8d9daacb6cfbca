"""`rmqha send`: a file's lines or JSON records to a topic, each acknowledged or counted as not."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, get_args

import click

from rmqha.cli.messaging.asking import topic_option
from rmqha.cli.messaging.send_input import (
    InputFormat,
    InputMessage,
    SendInput,
    SendSettings,
    later_property,
    parse_properties,
)
from rmqha.cli.messaging.send_report import SendReport
from rmqha.cli.options import echo_json, output_option
from rmqha.cli.target import target_namesrv_option
from rmqha.client.names import check_topic
from rmqha.client.producers.one_by_one import FEW, Unsent, send_one_by_one
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.result import SendResult
from rmqha.host.asking.shell import ask_by
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.printable import printable

SHOWN_REASONS = 5


def parse_rate(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of `--rate`: messages per second, of "500" or "500/s"."""
    if value is None:
        return None
    try:
        rate = float(value.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise UsageError(f"--rate {value!r} must be a number of messages per second, such as 500 or 500/s")
    return rate


class _NamedFile(FileIO):
    """A file whose failed writes name it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.name)) from None


@click.command(epilog="Example: rmqha send --topic orders --file orders.jsonl --format jsonl --key-field id")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@topic_option(required=True, text="Topic to send to.")
@click.option("--file", "path", type=click.Path(path_type=Path), metavar="FILE", help="File to send; - reads stdin.")
@click.option(
    "--format", "input_format", type=click.Choice(get_args(InputFormat)), default="lines", show_default=True,
    help="A message per line, or a JSON object per line.",
)  # fmt: skip
@click.option("--key-field", metavar="FIELD", help="JSON field that becomes the message key.")
@click.option("--tag-field", metavar="FIELD", help="JSON field that becomes the tag.")
@click.option("--key", "keys", multiple=True, metavar="K", help="Key of each message; repeatable.")
@click.option("--tag", default="", metavar="TAG", help="Tag of each message.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Of each message; repeatable.")
@click.option("--delay", metavar="LEVEL", help="Deliver each later: a delay level, or a time, such as 30s.")
@click.option("--at", metavar="TIME", help="Deliver each at this time: ISO 8601, local unless it says so, or ms.")
@click.option("--order-by", metavar="FIELD", help="JSON field whose equal values keep their order.")
@click.option("--rate", callback=parse_rate, metavar="N/s", help="Send no faster than this.")
@click.option("--group", default="rmqha-send", show_default=True, metavar="G", help="Producer group.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, metavar="S",
    help="Try each message for this many seconds.",
)  # fmt: skip
@click.option(
    "--window", type=click.IntRange(1, 10_000), default=64, show_default=True, metavar="N",
    help="Messages on their way at once.",
)  # fmt: skip
@click.option(
    "--require-ok/--any-status", default=True, show_default=True,
    help="Send again what was stored but not copied in time.",
)  # fmt: skip
@click.option("--acked", type=click.Path(path_type=Path), metavar="FILE", help="Write a line per acknowledged message.")
@target_namesrv_option()
@output_option
def send(
    bodies: tuple[str, ...],
    topic: str,
    path: Path | None,
    input_format: InputFormat,
    key_field: str | None,
    tag_field: str | None,
    keys: tuple[str, ...],
    tag: str,
    properties: tuple[str, ...],
    delay: str | None,
    at: str | None,
    order_by: str | None,
    rate: float | None,
    group: str,
    timeout_s: float,
    window: int,
    require_ok: bool,
    acked: Path | None,
    namesrv: str,
    output: str,
) -> None:
    """Send messages to a topic and wait until each is acknowledged.

    A file is checked whole before anything is sent. Through a failover each message is tried again, with the same id,
    until its group has acknowledged it or the timeout is over.

    Exit code: 0 all acknowledged, 1 some not, 2 wrong usage or nobody to ask.
    """
    given = parse_properties(properties)
    given |= later_property(delay, at, given, time.time_ns() // 1_000_000)
    check_topic(topic)
    given_input = SendInput(topic, bodies, path, input_format, key_field, tag_field, order_by, keys, tag, given)
    settings = SendSettings(namesrv, group, topic, rate, window, round(timeout_s * 1000), require_ok)
    with given_input.open() as messages, ExitStack() as stack:
        report = SendReport(messages.check())
        if acked is not None:
            try:
                named = BufferedWriter(_NamedFile(acked, "w"))
                report.acked = stack.enter_context(TextIOWrapper(named, encoding="utf-8", line_buffering=True))
            except OSError as error:
                raise UsageError(f"--acked {acked}: cannot be written: {error.strerror}") from None
        report.started_ms = time.monotonic() * 1000
        waiting, unsent = iter(messages), Unsent([])
        if report.total > FEW or rate is not None:
            # a producer takes a moment to load
            what = f"{report.total} message{'' if report.total == 1 else 's'}"
            told = f"connecting to {namesrv} to send {what} to topic {topic}"
            click.echo(printable(told, lines=False), err=True)
        else:
            few = list(waiting)
            noted = partial(report.note_next, few)
            outgoing = [item.message for item in few]
            unsent = ask_by(
                partial(send_one_by_one, namesrv, group, outgoing, settings.timeout_ms, noted, require_ok=require_ok)
            )
            lines = [item.line for item in few[report.handed_over :]]
            waiting = iter([InputMessage(line, left) for line, left in zip(lines, unsent.messages, strict=True)])
        if report.handed_over < report.total:
            _send_the_rest(settings, waiting, unsent, report)
        report.finish()
        elapsed_ms = time.monotonic() * 1000 - report.started_ms
        result = report.as_dict(topic, elapsed_ms, messages.blank_line_count)
    if output == "json":
        echo_json(result)
    else:
        _print(result)
    if report.acknowledged < report.total:
        sys.exit(1)


def _send_the_rest(settings: SendSettings, waiting: Iterator[InputMessage], unsent: Unsent, report: SendReport) -> None:
    before = report.handed_over
    import trio

    from rmqha.cli.messaging.sending import send_all

    def note(position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
        whole = unsent.whole(outcome) if position == 0 and isinstance(outcome, SendResult) else outcome
        report.note(before + position, message, whole)

    trio.run(send_all, settings, waiting, report, note)


def _print(result: dict[str, Any]) -> None:
    elapsed_s = result["elapsed_ms"] / 1000
    click.echo(f"sent                 {result['sent']} of {result['messages']} to topic {result['topic']}")
    click.echo(f"acknowledged         {result['acknowledged']}")
    for name in ("failed", "not_sent"):
        if result[name]:
            click.echo(f"{name.replace('_', ' '):<20} {result[name]}")
    click.echo(f"retried              {result['retried']}")
    click.echo(f"duplicates possible  {result['duplicates_possible']}")
    gap_end = result["first_ack_after_gap_at_ms"]
    if gap_end is not None:
        stamp = datetime.fromtimestamp(gap_end / 1000).isoformat(sep=" ", timespec="milliseconds")
        click.echo(f"longest gap          {result['longest_gap_ms']} ms, next acknowledgement {stamp}")
    elif result["longest_gap_ms"]:
        click.echo(f"longest gap          {result['longest_gap_ms']} ms, to the end")
    click.echo(f"rate                 {result['messages_per_second']:.0f} msg/s over {elapsed_s:.2f} s")
    if result["blank_lines"]:
        click.echo(f"blank lines skipped  {result['blank_lines']}")
    for reason in result["reasons"][:SHOWN_REASONS]:
        click.echo(
            f"{reason['count']} not acknowledged, first line {reason['first_line']}: {reason['first']}", err=True
        )
