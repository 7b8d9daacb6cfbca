"""Quotas before a service: what a client asks beyond them is answered SYSTEM_BUSY and goes no further. Shell around
`rmqha.model.quota`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqha.model.code import ResponseCode
from rmqha.model.identity import host_of
from rmqha.model.principal import PEER_SERVER
from rmqha.model.quota import Quotas
from rmqha.port import Clock
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.net.session import FrameTaker, Service, Session
    from rmqha.host.net.statistics import Statistics


class QuotaFilter:
    """Stands behind the guard, which says whose a request is. Admins, and servers of the cluster that have proved its
    secret, have no quota."""

    def __init__(self, service: Service, quotas: Quotas, clock: Clock, statistics: Statistics) -> None:
        self._service = service
        self._quotas = quotas
        self._clock = clock
        self._statistics = statistics

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        if self._quotas.is_set:
            commands = self._admitted(session, commands)
        if commands:
            self._service.received(session, commands)

    def _admitted(self, session: Session, commands: list[Command]) -> list[Command]:
        now_ms, host = self._clock.now_ms(), host_of(session.peer)
        admitted = []
        for command in commands:
            principal = command.principal
            reason = ""
            if principal is not PEER_SERVER and not principal.is_admin:
                size_bytes = len(command.body) + sum(map(len, command.ext.values()))
                reason = self._quotas.refusal(principal.access_key, host, size_bytes, now_ms)
            if not reason:
                admitted.append(command)
                continue
            self._statistics.quota_refused_count += 1
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.SYSTEM_BUSY, remark=reason))
        return admitted


class UnmeteredTaker:
    """Before a `FrameTaker`: while there are quotas, each request is looked at, so it takes none."""

    def __init__(self, taker: FrameTaker, quotas: Quotas) -> None:
        self._taker = taker
        self._quotas = quotas

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Take as the other does, if there is no quota."""
        return [(0, 0)] * len(reads) if self._quotas.is_set else self._taker.take(reads, max_count)
