"""Filter by quotas before a service: a request beyond its quota is answered SYSTEM_BUSY, and its connection is not read
for the throttle time. Shell around `rmqha.model.quota`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import host_of
from rmqha.model.principal import PEER_SERVER, Principal
from rmqha.model.quota import Quotas
from rmqha.port import Clock
from rmqha.wire.command import Command, payload_bytes

if TYPE_CHECKING:
    from rmqha.host.net.session import SendFastPath, Service, Session
    from rmqha.host.net.statistics import Statistics


OPERATOR_CODES = frozenset(
    {
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CONTROLLER_GET_CONFIG,
        RequestCode.CONTROLLER_UPDATE_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.RMQHA_GET_REPLICA_STATE,
        RequestCode.RMQHA_GET_CONTROLLER_STATE,
        RequestCode.RMQHA_GET_NAMESRV_STATE,
        RequestCode.RMQHA_GET_SECURITY_STATE,
        RequestCode.RMQHA_GET_QUORUM,
    }
)
"""Requests of `config set` and `health`: without accounts nothing else tells an operator from a client."""
CallIn = Callable[[int, Callable[[], None]], object]
"""Call a function once, in so many ms."""


def has_no_quota(principal: Principal) -> bool:
    """True of admins, and of servers of the cluster that have proved its secret."""
    return principal is PEER_SERVER or principal.is_admin


class _Throttle:
    """Pause (`rmqha.port.Pause`) for the throttle time of a connection."""

    size_bytes = 0

    def __init__(self, throttle_ms: int, call_in: CallIn) -> None:
        self._throttle_ms = throttle_ms
        self._call_in = call_in

    def when_over(self, resume: Callable[[], None]) -> None:
        self._call_in(self._throttle_ms, resume)


class QuotaFilter:
    """Filter behind the AuthFilter, which sets the principal of each request."""

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
        """Meter for sends that come from `host` now and may take the fast path; None: there are no quotas."""
        return QuotaMeter(self._quotas, host, self._clock.now_ms()) if self._quotas.is_set else None

    def _admitted(self, session: Session, commands: list[Command]) -> tuple[list[Command], int]:
        """Answer requests beyond their quotas; returns the others, and the throttle time (ms) of the connection."""
        now_ms, host, throttle_ms = self._clock.now_ms(), host_of(session.peer), 0
        admitted = []
        for command in commands:
            reason, size_bytes, key = "", 0, command.principal.access_key
            if not has_no_quota(command.principal):
                size_bytes = payload_bytes(command)
                reason = self._quotas.refusal(key, host, size_bytes, now_ms)
                if reason and not key and command.code in OPERATOR_CODES:
                    reason = "" if self._quotas.admits_operator(host, size_bytes, now_ms) else reason
            if not reason:
                admitted.append(command)
                continue
            self._statistics.quota_refused_count += 1
            throttle_ms = max(throttle_ms, self._quotas.throttle_ms(key, host, size_bytes, now_ms))
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.SYSTEM_BUSY, remark=reason))
        return admitted, throttle_ms


class QuotaMeter:
    """Quotas of the accounts that send from one address, at one moment. Pure."""

    def __init__(self, quotas: Quotas, host: str, now_ms: int) -> None:
        self._quotas = quotas
        self._host = host
        self._now_ms = now_ms

    def admits(self, access_key: str, size_bytes: int) -> bool:
        """Count a request of the account if it is within its quota; True if it is."""
        return not self._quotas.refusal(access_key, self._host, size_bytes, self._now_ms)

    def give_back(self, access_key: str, size_bytes: int) -> None:
        """Undo `admits`: the request is not served by the fast path after all."""
        self._quotas.give_back(access_key, self._host, size_bytes)


class UnmeteredFastPath:
    """Fast path of a server with quotas by address: while one is set, each request must be checked, so it answers
    none."""

    def __init__(self, fast_path: SendFastPath, quotas: Quotas) -> None:
        self._fast_path = fast_path
        self._quotas = quotas

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Answer as the fast path behind it does, if no quota is set."""
        return [(0, 0)] * len(reads) if self._quotas.is_set else self._fast_path.take(reads, max_count)
