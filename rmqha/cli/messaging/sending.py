"""Messages sent by a producer at the wanted rate, through failovers. Control plane."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import trio

from rmqha.cli.messaging.send_input import InputMessage, SendSettings
from rmqha.cli.messaging.send_report import SendReport
from rmqha.client.admin import Admin
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.producer import Producer
from rmqha.client.producers.result import OnResult
from rmqha.host.process import cancel_on_signal
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, UsageError
from rmqha.ops.messaging.brokers import require_brokers

REFRESH_S = 0.1


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


async def send_all(
    settings: SendSettings, messages: Iterator[InputMessage], report: SendReport, on_result: OnResult
) -> None:
    """Send all messages. An interrupt ends the sending early; acknowledged messages stay counted."""
    async with Producer(settings.namesrv, settings.group) as producer:
        await _require_topic(producer, settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_signal, nursery.cancel_scope)
            if sys.stderr.isatty():
                nursery.start_soon(_show_progress, report)
            await producer.send_many(
                _Feed(messages, settings.rate, report),
                window=settings.window,
                timeout_ms=settings.timeout_ms,
                require_ok=settings.require_ok,
                on_result=on_result,
            )
            nursery.cancel_scope.cancel()


async def _require_topic(producer: Producer, settings: SendSettings) -> None:
    try:
        await producer.route(settings.topic)
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            async with Admin(settings.namesrv) as admin:
                await require_brokers(admin)
            raise UsageError(f"topic {settings.topic} does not exist; create it first (nothing was sent)") from None
        raise


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
