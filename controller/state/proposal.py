"""Waiting requests, and proposed changes of a group that answer them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.state.action import Token
from controller.state.event import Event
from rmqha.wire.command import Command


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request and the address of its answer."""

    session_id: int
    token: Token
    command: Command


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed events of one group, and the requests to answer when they have been applied."""

    broker_name: str
    events: tuple[Event, ...]
    pending: tuple[PendingRequest, ...] = ()
    answer: Callable[[Command], Command] = Command.reply
