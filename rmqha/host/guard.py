"""Accounts before a service: what a session may not ask never reaches it. Shell around `rmqha.wire.acl`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqha.model.code import ResponseCode
from rmqha.wire.acl import refusal
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.accounts import AccessFile
    from rmqha.host.remoting import Service
    from rmqha.host.session import Session, Statistics


class Guard:
    """Before a service: requests that the accounts do not allow are answered NO_PERMISSION and go no further."""

    def __init__(self, service: Service, accounts: AccessFile, statistics: Statistics) -> None:
        self._service = service
        self._accounts = accounts
        self._statistics = statistics

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        host = session.peer.rpartition(":")[0].strip("[]")
        allowed = []
        for command in commands:
            reason = refusal(self._accounts.access, command, host)
            if not reason:
                allowed.append(command)
                continue
            self._statistics.denied_count += 1
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.NO_PERMISSION, remark=reason))
        if allowed:
            self._service.received(session, allowed)
