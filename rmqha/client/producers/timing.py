"""Delayed messages: the property by which a message names its time, and the recall of one. Data plane."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

import trio

from rmqha.client.arguments import require_type
from rmqha.client.route import TopicRoute
from rmqha.client.route_table import Backoff
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError, UsageError
from rmqha.model.message import (
    PROPERTY_DELAY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    RecallHandle,
)
from rmqha.wire.command import Command

_NAMED = (PROPERTY_DELAY, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELIVER_MS)
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_NOW = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
"""Answers after which a recall is tried again: recalling twice does no harm."""


class _Routes(Protocol):
    async def get(self, topic: str) -> TopicRoute: ...

    async def recover(self, topic: str, backoff: Backoff) -> None: ...


class _Caller(Protocol):
    async def call(self, address: str, command: Command, timeout_ms: int | None) -> Command: ...


def timer_properties(
    deliver_at: datetime | None, delay: timedelta | None, given: Mapping[str, str], now_ms: int
) -> dict[str, str]:
    """The `given` properties of a message, with the one that names its time. Raises UsageError, one sentence."""
    require_type("the argument properties", given, Mapping)
    if deliver_at is None and delay is None:
        return dict(given)
    if deliver_at is not None and delay is not None:
        raise UsageError("deliver_at and delay each say when a message comes: give one")
    for name in _NAMED:
        if name in given:
            raise UsageError(f"property {name} and deliver_at or delay each say when a message comes: give one")
    if delay is not None:
        require_type(f"delay = {delay!r}", delay, timedelta, "; for seconds write timedelta(seconds=…)")
        if delay < _MILLISECOND:
            raise UsageError(f"delay = {delay} must be a millisecond at least")
        return {**given, PROPERTY_TIMER_DELAY_MS: str(delay // _MILLISECOND)}
    require_type(f"deliver_at = {deliver_at!r}", deliver_at, datetime, "; it needs a time zone too")
    assert deliver_at is not None
    if deliver_at.utcoffset() is None:
        raise UsageError(f"deliver_at = {deliver_at} has no time zone; say which, for example tzinfo=datetime.UTC")
    at_ms = -((_EPOCH - deliver_at) // _MILLISECOND)
    if at_ms <= now_ms:
        raise UsageError(f"deliver_at = {deliver_at} is over")
    return {**given, PROPERTY_TIMER_DELIVER_MS: str(at_ms)}


async def recall(routes: _Routes, remoting: _Caller, group: str, handle: str, timeout_ms: int) -> str:
    """Take back the message that the handle names, trying again until `timeout_ms` are over; its id. Raises as
    `Producer.recall`."""
    require_type(f"handle = {handle!r}", handle, str, "; it is the recall_handle of a send's result")
    try:
        named = RecallHandle.decode(handle)
    except ValueError as error:
        raise UsageError(str(error)) from None
    ext = {"producerGroup": group, "topic": named.topic, "recallHandle": handle}
    failure: RmqhaError = UnreachableError(f"group {named.broker_name} has no master")
    backoff = Backoff()
    with trio.move_on_after(timeout_ms / 1000):
        while True:
            try:
                address = (await routes.get(named.topic)).master(named.broker_name)
                if address is not None:
                    answer = await remoting.call(address, Command(RequestCode.RECALL_MESSAGE, ext), None)
                    if answer.code == ResponseCode.SUCCESS:
                        return answer.ext.get("msgId", named.unique_key)
                    failure = RemoteError(answer.code, answer.remark or "", address)
                    if answer.code not in _NOT_NOW:
                        raise failure
            except UnreachableError as error:
                failure = error
            await routes.recover(named.topic, backoff)
    raise failure
