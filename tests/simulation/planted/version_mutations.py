"""Planted bugs of what is said between releases: today's processes fail those that say less."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from controller.elections import election
from controller.requests import Requests
from controller.state.answers import InvalidRequestError
from controller.state.proposal import PendingRequest
from rmqha.broker.tables.metadata_follower import AsyncPort, FollowedMaster
from rmqha.broker.tables.queue_max_offsets import QueueMaxOffsets
from rmqha.ha.stream import admission
from rmqha.ha.stream.admission import HaAdmission
from rmqha.model.code import ResponseCode
from rmqha.model.offset import BrokerId
from rmqha.wire.command import Command

REAL_LOG_END = election.log_end
REAL_REGISTER = Requests._register_broker
REAL_ASK = QueueMaxOffsets._ask


def _end_of_who_says_its_id(reply: Command | None, broker_name: str, broker_id: BrokerId) -> Any:
    return None if reply is None or "replicaId" not in reply.ext else REAL_LOG_END(reply, broker_name, broker_id)


def _registered_with_an_epoch(self: Requests, now_ms: int, asked: PendingRequest) -> None:
    if "acceptedEpoch" not in asked.command.ext:
        raise InvalidRequestError("acceptedEpoch is missing")
    REAL_REGISTER(self, now_ms, asked)


def _asks_nobody(self: HaAdmission, now_ms: int) -> None:
    self._newest_query += 1
    self._ask_at_ms = now_ms + admission.ASK_INTERVAL_MS
    self._is_asking = True


class _NothingIsUnknown:
    """AsyncPort to which a request that a peer does not know has just failed."""

    def __init__(self, port: AsyncPort) -> None:
        self._port = port
        self.sleep, self.write = port.sleep, port.write

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        reply = await self._port.call(address, command, timeout_ms)
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            reply.code = ResponseCode.SYSTEM_ERROR
        return reply


async def _answer_needed(self: QueueMaxOffsets, port: AsyncPort, master: FollowedMaster) -> None:
    await REAL_ASK(self, _NothingIsUnknown(port), master)


VERSION_MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "an answer without a replica's id counts for nobody": lambda: patch.object(
        election, "log_end", _end_of_who_says_its_id
    ),
    "nobody is asked who may come in": lambda: patch.object(HaAdmission, "_ask", _asks_nobody),
    "a registration without an accepted epoch is refused": lambda: patch.object(
        Requests, "_register_broker", _registered_with_an_epoch
    ),
    "whose master tells no ends of queues waits for them": lambda: patch.object(
        QueueMaxOffsets, "_ask", _answer_needed
    ),
}
