"""Quotas before a service: what a client asks beyond them is answered SYSTEM_BUSY and goes no further, and its
connection is not read for a while. Shell around `rmqha.model.quota`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqha.model.code import ResponseCode
from rmqha.model.identity import host_of
from rmqha.model.principal import PEER_SERVER, Principal
from rmqha.model.quota import Quotas
from rmqha.port import Clock
from rmqha.wire.command import Command, payload_bytes

if TYPE_CHECKING:
    from rmqha.host.net.session import FrameTaker, Service, Session
    from rmqha.host.net.statistics import Statistics


CallIn = Callable[[int, Callable[[], None]], object]
"""Call a function once, in so many ms."""


def has_no_quota(principal: Principal) -> bool:
    """True of admins, and of servers of the cluster that have proved its secret."""
    return principal is PEER_SERVER or principal.is_admin


class _Throttle:
    """The throttle time of a connection; `rmqha.port.Pause`."""

    size_bytes = 0

    def __init__(self, throttle_ms: int, call_in: CallIn) -> None:
        self._throttle_ms = throttle_ms
        self._call_in = call_in

    def when_over(self, resume: Callable[[], None]) -> None:
        self._call_in(self._throttle_ms, resume)


class QuotaFilter:
    """Stands behind the guard, which says whose a request is."""

    def __init__(self, service: Service, quotas: Quotas, clock: Clock, statistics: Statistics, call_in: CallIn) -> None:
        self._service = service
        self._quotas = quotas
        self._clock = clock
        self._statistics = statistics
        self._call_in = call_in

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        throttle_ms = 0
        if self._quotas.is_set:
            commands, throttle_ms = self._admitted(session, commands)
        if commands:
            self._service.received(session, commands)
        if throttle_ms:
            session.work(iter((_Throttle(throttle_ms, self._call_in),)))

    def meter(self, host: str) -> QuotaMeter | None:
        """For requests that come from `host` now and may be served before they are commands; None: nobody counts."""
        return QuotaMeter(self._quotas, host, self._clock.now_ms()) if self._quotas.is_set else None

    def _admitted(self, session: Session, commands: list[Command]) -> tuple[list[Command], int]:
        """Requests within their quotas, and the throttle time (ms) for the others, which are answered."""
        now_ms, host, throttle_ms = self._clock.now_ms(), host_of(session.peer), 0
        admitted = []
        for command in commands:
            reason, size_bytes, key = "", 0, command.principal.access_key
            if not has_no_quota(command.principal):
                size_bytes = payload_bytes(command)
                reason = self._quotas.refusal(key, host, size_bytes, now_ms)
            if not reason:
                admitted.append(command)
                continue
            self._statistics.quota_refused_count += 1
            throttle_ms = max(throttle_ms, self._quotas.throttle_ms(key, host, size_bytes, now_ms))
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.SYSTEM_BUSY, remark=reason))
        return admitted, throttle_ms


class QuotaMeter:
    """Quotas of those who ask from one address, at one moment. Pure."""

    def __init__(self, quotas: Quotas, host: str, now_ms: int) -> None:
        self._quotas = quotas
        self._host = host
        self._now_ms = now_ms

    def takes(self, access_key: str, size_bytes: int) -> bool:
        """True if a request of that account may be served, which counts."""
        return not self._quotas.refusal(access_key, self._host, size_bytes, self._now_ms)

    def give_back(self, access_key: str, size_bytes: int) -> None:
        """It is not served now after all."""
        self._quotas.give_back(access_key, self._host, size_bytes)


class UnmeteredTaker:
    """Before a `FrameTaker`: while there are quotas, each request is looked at, so it takes none."""

    def __init__(self, taker: FrameTaker, quotas: Quotas) -> None:
        self._taker = taker
        self._quotas = quotas

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Take as the other does, if there is no quota."""
        return [(0, 0)] * len(reads) if self._quotas.is_set else self._taker.take(reads, max_count)
