"""Messages of a topic as they arrive, through failovers, until a limit or a signal. Control plane."""

from __future__ import annotations

from collections.abc import Callable

import click
import trio

from rmqha.client.consumers.consumer import Consumer
from rmqha.client.consumers.message import Message
from rmqha.host.process import cancel_on_signal
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, UsageError
from rmqha.model.printable import printable

TROUBLE_S = 3.0
"""Interval (s) without a message after which a new error is printed."""


async def receive_all(
    consumer: Consumer,
    topic: str,
    limit: int | None,
    idle_s: float | None,
    show: Callable[[Message], None],
    refusals: list[RemoteError],
) -> int:
    """Print messages until the limit, `idle_s` without one, a signal or a refusal, which `refusals` takes. Returns the
    number of messages."""
    count = 0
    try:
        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(cancel_on_signal, nursery.cancel_scope)
            nursery.start_soon(_stop_on_refusal, consumer, nursery.cancel_scope, refusals)
            nursery.start_soon(_tell_trouble, consumer, topic)
            while limit is None or count < limit:
                message = None
                with trio.move_on_after(float("inf") if idle_s is None else idle_s):
                    message = await consumer.receive()
                if message is None:
                    break
                show(message)
                count += 1
            nursery.cancel_scope.cancel()
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise UsageError(f"topic {topic} does not exist") from None
        raise
    return count


async def _stop_on_refusal(consumer: Consumer, scope: trio.CancelScope, refusals: list[RemoteError]) -> None:
    refusals.append(await consumer.refused())
    scope.cancel()


async def _tell_trouble(consumer: Consumer, topic: str) -> None:
    """Print each error once to standard error: the consumer goes on trying, and silence would mean an empty topic."""
    told, before = set[str](), consumer.statistics()
    while True:
        await trio.sleep(TROUBLE_S)
        now = consumer.statistics()
        error = str(now["last_error"])
        if now["errors"] > before["errors"] and now["received"] == before["received"] and error not in told:
            told.add(error)
            click.echo(printable(f"rmqha: nothing comes from topic {topic}, trying on: {error}", lines=False), err=True)
        before = now
