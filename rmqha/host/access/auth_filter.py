"""Accounts before a service: what a session may not ask never reaches it, and what does says whom it comes from. Shell
around `rmqha.wire.auth.acl`."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from rmqha.host.access.urgent import hurry
from rmqha.model.access import address_matches
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import host_of
from rmqha.model.principal import Accounts, Principal
from rmqha.wire.auth.accesses import request_refusal
from rmqha.wire.auth.acl import authenticate
from rmqha.wire.auth.session_signature import NONCE_BYTES, VERSION, SessionSignatures
from rmqha.wire.auth.signature import ACCESS_KEY
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.access.audit import AuditLog
    from rmqha.host.net.session import Service, Session
    from rmqha.host.net.statistics import Statistics


class AuthFilter:
    """Before a service: requests that the accounts do not allow are answered NO_PERMISSION and go no further; the
    others carry the account as their `principal`."""

    def __init__(
        self,
        service: Service,
        accounts: Accounts,
        statistics: Statistics,
        audit: AuditLog | None = None,
        wanted: str = "any",
    ) -> None:
        """`wanted`: aclSignature."""
        self._service = service
        self._accounts = accounts
        self._statistics = statistics
        self._audit = audit
        self._principals: dict[Session, dict[str, Principal]] = {}
        """Principals of the accounts that have asked, by connection."""
        self._wanted = wanted
        self._own_forms: dict[Session, SessionSignatures] = {}
        """Signature state of connections that have asked for a random number."""

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._principals.pop(session, None)
        self._own_forms.pop(session, None)
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        host = host_of(session.peer)
        allowed = []
        for command in commands:
            if command.code == RequestCode.RMQHA_OPEN_SESSION:
                session.send(self._open(session, command))
                continue
            reason = self._admit(session, command, host)
            if not reason:
                if self._audit is not None:
                    self._audit.request(session.peer, command, "")
                allowed.append(command)
                continue
            self._denied(session.peer, command, reason)
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.NO_PERMISSION, remark=reason))
        if allowed:
            session.known()
            self._service.received(session, allowed)

    def _open(self, session: Session, command: Command) -> Command:
        """Always the same number for one connection: counting never begins again."""
        own_form = self._own_forms.get(session)
        if own_form is None:
            own_form = self._own_forms[session] = SessionSignatures(secrets.token_hex(NONCE_BYTES))
        return command.reply(ext={"version": VERSION, "nonce": own_form.nonce})

    def _denied(self, peer: str, command: Command, reason: str) -> None:
        """Here, or by whoever serves it."""
        self._statistics.denied_count += 1
        if self._audit is not None:
            self._audit.request(peer, command, reason)

    def is_plausible(self, peer: str, command: Command) -> bool:
        """True if a request of which only the header is here may turn out to be allowed."""
        access, host = self._accounts.access, host_of(peer)
        return (
            command.ext.get(ACCESS_KEY) in access.accounts
            or access.takes_unsigned(command.code)
            or any(address_matches(pattern, host) for pattern in access.white_addresses)
        )

    def _admit(self, session: Session, command: Command, host: str) -> str:
        """ "" if it may be served, and who asks is noted in it; else why not."""
        access = self._accounts.access
        account, reason = authenticate(access, command, host, self._own_forms.get(session), self._wanted)
        if reason and access.takes_unsigned(command.code):
            return ""
        if reason or account is None:
            return reason
        reason = request_refusal(account, command, host)
        if not reason:
            key = account.credentials.access_key
            known = self._principals.get(session)
            if known is None:
                known = self._principals[session] = {}
            principal = known.get(key)
            if principal is None:
                principal = known[key] = Principal(self._accounts, key, partial(self._denied, session.peer), host)
            command.principal = principal
            session.serves(key)
            if account.admin:
                hurry(session, command)
        return reason


class Audited:
    """Before the service of a server without accounts: requests are noted, by address."""

    def __init__(self, service: Service, audit: AuditLog) -> None:
        self._service = service
        self._audit = audit

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self._audit.request(session.peer, command, "")
        self._service.received(session, commands)
