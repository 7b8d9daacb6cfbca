"""A request that waits, and the change of a group that answers it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.state.action import Token
from controller.state.event import Event
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request and where its answer goes."""

    session_id: int
    token: Token
    command: Command


@dataclass(frozen=True, slots=True)
class Proposal:
    """Events of one group on their way, and who is answered once they are applied."""

    broker_name: str
    events: tuple[Event, ...]
    asked: tuple[PendingRequest, ...] = ()
    answer: Callable[[Command], Command] = Command.reply
