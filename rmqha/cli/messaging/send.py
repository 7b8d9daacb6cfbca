"""`rmqha send`: a file's lines or JSON records to a topic, each acknowledged or counted as not."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, get_args

import click
import trio

from rmqha.cli.messaging.asking import topic_option
from rmqha.cli.messaging.send_input import (
    InputFormat,
    InputMessage,
    OpenInput,
    SendInput,
    later_property,
    parse_properties,
)
from rmqha.cli.options import echo_json, namesrv_option, output_option
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import SendResult
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UsageError

SHOWN_REASONS = 5
REFRESH_S = 0.1


@dataclass
class SendReport:
    """The outcome of each message, as it comes. Gaps lie between two acknowledgements of the run."""

    total: int
    acked: TextIO | None = None
    started_ms: float = 0.0
    handed_over: int = 0
    acknowledged: int = 0
    failed: int = 0
    retried: int = 0
    duplicates_possible: int = 0
    longest_gap_ms: int = 0
    first_ack_after_gap_at_ms: int | None = None
    lines: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Count, lowest line and that line's text, by kind of error."""
    _last_ack_ms: float | None = None

    def note(self, position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError) -> None:
        line = self.lines.pop(position)
        if not isinstance(outcome, SendResult):
            self.failed += 1
            code = outcome.code if isinstance(outcome, RemoteError) else ""
            kind = f"{type(outcome).__name__} {code}"
            count, first_line, first = self.reasons.get(kind, (0, line, ""))
            self.reasons[kind] = count + 1, min(line, first_line), str(outcome) if line <= first_line else first
            return
        now_ms, wall_ms = time.monotonic() * 1000, time.time_ns() // 1_000_000
        if self._last_ack_ms is not None and round(now_ms - self._last_ack_ms) > self.longest_gap_ms:
            self.longest_gap_ms = round(now_ms - self._last_ack_ms)
            self.first_ack_after_gap_at_ms = wall_ms
        self._last_ack_ms = now_ms
        self.acknowledged += 1
        self.retried += outcome.tries > 1
        self.duplicates_possible += outcome.copies_possible
        if self.acked is not None:
            self.acked.write(json.dumps(_acked_line(line, message, outcome, wall_ms), ensure_ascii=False) + "\n")

    def finish(self) -> None:
        """A gap that no acknowledgement has ended counts too."""
        now_ms = time.monotonic() * 1000
        open_since = self._last_ack_ms or self.started_ms
        if self.acknowledged < self.total and round(now_ms - open_since) > self.longest_gap_ms:
            self.longest_gap_ms = round(now_ms - open_since)
            self.first_ack_after_gap_at_ms = None

    def as_dict(self, topic: str, elapsed_ms: float, blank_line_count: int) -> dict[str, Any]:
        return {
            "topic": topic,
            "messages": self.total,
            "sent": self.handed_over,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "not_sent": self.total - self.acknowledged - self.failed,
            "retried": self.retried,
            "duplicates_possible": self.duplicates_possible,
            "longest_gap_ms": self.longest_gap_ms,
            "first_ack_after_gap_at_ms": self.first_ack_after_gap_at_ms,
            "elapsed_ms": round(elapsed_ms),
            "messages_per_second": round(self.acknowledged * 1000 / elapsed_ms, 1) if elapsed_ms else 0.0,
            "blank_lines": blank_line_count,
            "reasons": [
                {"count": number, "first_line": line, "first": text} for number, line, text in self.reasons.values()
            ],
        }


def _acked_line(line: int, message: OutgoingMessage, result: SendResult, wall_ms: int) -> dict[str, Any]:
    handle = {"recallHandle": result.recall_handle} if result.recall_handle else {}
    return {
        "line": line,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "brokerName": result.broker_name,
        "queueId": result.queue_id,
        "queueOffset": result.queue_offset,
        "key": message.keys,
        "sha256": hashlib.sha256(message.body).hexdigest(),
        "ackedAtMs": wall_ms,
        "tries": result.tries,
        "duplicatePossible": result.duplicate_possible,
        **handle,
    }


class _Feed:
    """The messages at the wanted rate, as an async iterable."""

    def __init__(self, messages: Iterator[InputMessage], rate: float | None, report: SendReport) -> None:
        self._messages = messages
        self._interval_s = 1 / rate if rate else 0.0
        self._due = trio.current_time()
        self._report = report

    def __aiter__(self) -> _Feed:
        return self

    async def __anext__(self) -> OutgoingMessage:
        item = next(self._messages, None)
        if item is None:
            raise StopAsyncIteration
        if self._interval_s:
            await trio.sleep_until(self._due)
            self._due = max(self._due + self._interval_s, trio.current_time() - 1)
        self._report.lines[self._report.handed_over] = item.line
        self._report.handed_over += 1
        return item.message


def parse_rate(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """ "500" or "500/s": messages per second."""
    if value is None:
        return None
    try:
        rate = float(value.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise UsageError(f"--rate {value!r} must be a number of messages per second, such as 500 or 500/s")
    return rate


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
@namesrv_option
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
    settings = SendInput(topic, bodies, path, input_format, key_field, tag_field, order_by, keys, tag, given)
    with settings.open() as messages, ExitStack() as stack:
        report = SendReport(messages.check())
        if acked is not None:
            try:
                report.acked = stack.enter_context(acked.open("w", buffering=1, encoding="utf-8"))
            except OSError as error:
                raise UsageError(f"--acked {acked}: cannot be written: {error.strerror}") from None
        producer = Producer(namesrv, group)
        elapsed_ms = trio.run(
            _run, producer, messages, report, topic, rate, window, round(timeout_s * 1000), require_ok
        )
        result = report.as_dict(topic, elapsed_ms, messages.blank_line_count)
    if output == "json":
        echo_json(result)
    else:
        _print(result)
    if report.acknowledged < report.total:
        sys.exit(1)


async def _run(
    producer: Producer,
    messages: OpenInput,
    report: SendReport,
    topic: str,
    rate: float | None,
    window: int,
    timeout_ms: int,
    require_ok: bool,
) -> float:
    """Send all; the elapsed milliseconds. An interrupt ends it early, what was acknowledged stays counted."""
    async with producer:
        await _require_topic(producer, topic)
        report.started_ms = time.monotonic() * 1000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, nursery.cancel_scope)
            if sys.stderr.isatty():
                nursery.start_soon(_show_progress, report)
            await producer.send_many(
                _Feed(iter(messages), rate, report),
                window=window,
                timeout_ms=timeout_ms,
                require_ok=require_ok,
                on_result=report.note,
            )
            nursery.cancel_scope.cancel()
        report.finish()
        return time.monotonic() * 1000 - report.started_ms


async def _require_topic(producer: Producer, topic: str) -> None:
    try:
        await producer.route(topic)
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise UsageError(f"topic {topic} does not exist; create it first (nothing was sent)") from None
        raise


async def _stop_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def _show_progress(report: SendReport) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rmqha.cli.rich_console import rich_console

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]:,.0f} msg/s"), TimeRemainingColumn())
    with Progress(*columns, console=rich_console(sys.stderr), transient=True) as progress:
        task = progress.add_task("send", total=report.total, rate=0.0)
        while True:
            await trio.sleep(REFRESH_S)
            elapsed_ms = time.monotonic() * 1000 - report.started_ms
            progress.update(task, completed=report.acknowledged, rate=report.acknowledged * 1000 / elapsed_ms)


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
