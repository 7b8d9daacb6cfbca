"""Planted bugs of the shells around the machines: what only a run that draws them reveals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from rmqha.broker.replication import forward
from rmqha.broker.replication.forward import SendForwarder
from rmqha.broker.requests.request import UNWRITTEN, Channel
from rmqha.ha import static_replica
from rmqha.ha.action import Action
from rmqha.ha.static_replica import StaticReplica
from rmqha.ha.stream.legacy_client import LegacyHaClient
from rmqha.inspect import migration
from rmqha.model.code import ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.raft import reconfiguration
from rmqha.wire.command import Command

REAL_SETTLE = SendForwarder._settle


class _RefusedIsUnwritten:
    """A caller to whom every answer 14 says that nothing is written."""

    def __init__(self, caller: forward.Caller) -> None:
        self._caller = caller
        self.oneway = caller.oneway

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        reply = await self._caller.call(address, command, timeout_ms)
        if reply.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            reply.ext[UNWRITTEN] = "true"
        return reply


async def _settle_believing(self: SendForwarder, channel: Channel, command: Command, deadline_ms: int) -> None:
    if not isinstance(self._client, _RefusedIsUnwritten):
        self._client = _RefusedIsUnwritten(self._client)
    await REAL_SETTLE(self, channel, command, deadline_ms)


class _TellsItsEnd(LegacyHaClient):
    """Reports as under ASYNC_FLUSH, whatever the configuration says."""

    def report(self, now_ms: int) -> list[Action]:
        config, self._config = self._config, replace(self._config, flush_disk_type="ASYNC_FLUSH")
        try:
            return super().report(now_ms)
        finally:
            self._config = config


SHELL_MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "what has no answer is passed on again": lambda: patch.object(forward, "NotSentError", UnreachableError),
    "a refusal after the write is passed on again": lambda: patch.object(SendForwarder, "_settle", _settle_believing),
    "a removed leader leads on (Raft)": lambda: patch.object(
        reconfiguration, "leave", lambda core, role, now_ms: False
    ),
    "a SYNC_MASTER without a controller waits for nobody": lambda: patch.object(StaticReplica, "_needed_slaves", 0),
    "a static slave reports what is not synced": lambda: patch.object(static_replica, "LegacyHaClient", _TellsItsEnd),
    "a shorter log may be the first after a static time": lambda: patch.object(
        migration, "_elected_short", lambda member, reference: []
    ),
    "a store that was not stopped in order may be converted": lambda: patch.object(
        migration, "_standing", lambda member, reference: []
    ),
}
