"""Filter that lets only servers of this cluster send certain requests, by the cluster's secret, where there are no
accounts. Shell around `rmqha.wire.auth.session_signature`.

Servers that have haSecretFile sign their requests to each other (`Security.signing_with_secret`). A request signed so
carries PEER_SERVER as its principal. With accounts this filter is not needed: such requests need an admin account.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqha.host.access.security import PEER
from rmqha.host.access.urgent import prioritize
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.principal import PEER_SERVER, UNPROVEN
from rmqha.wire.auth.session_signature import NONCE_BYTES, VERSION, SessionSignatures
from rmqha.wire.auth.signature import ACCESS_KEY
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.access.audit import AuditLog
    from rmqha.host.access.live_files import LiveFiles
    from rmqha.host.net.session import SendFastPath, Service, Session
    from rmqha.host.net.statistics import Statistics

_NO_PROOF = "it is not signed with the secret of haSecretFile, which all servers of this cluster need"


def _ignore_refusal(peer: str, command: Command, reason: str) -> None:
    """Ignore a refusal: the counter and the audit log are enough."""


@dataclass(frozen=True)
class PeerRules:
    """Rules for requests that a server accepts only from other servers of its cluster. Pure."""

    refuses: Callable[[Command], bool] = lambda command: False
    """True of requests that are refused if they are not signed with the secret."""
    marks_unproven: Callable[[Command], bool] = lambda command: False
    """True of requests that reach the service unsigned all the same, with UNPROVEN as their principal."""
    refused: Callable[[str, Command, str], None] = _ignore_refusal
    """Called with the peer's address, the request and the reason of each refusal."""


class PeerFilter:
    """Filter before a service, by the cluster's secret."""

    def __init__(
        self,
        service: Service,
        secret: LiveFiles[bytes],
        rules: PeerRules,
        statistics: Statistics,
        audit: AuditLog | None = None,
        fast_path: SendFastPath | None = None,
    ) -> None:
        """`fast_path` gets the sends of clients, which no rule refuses."""
        plain_send = Command(RequestCode.SEND_MESSAGE_V2)
        assert not rules.refuses(plain_send) and not rules.marks_unproven(plain_send)
        self._fast_path = fast_path
        self._service = service
        self._secret = secret
        self._rules = rules
        self._statistics = statistics
        self._audit = audit
        self._own_forms: dict[Session, SessionSignatures] = {}
        """Signature state of connections that have asked for a random number."""

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._own_forms.pop(session, None)
        self._service.closed(session)

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Pass reads of clients to the fast path; those of servers, whose requests may be signed, go to `received`."""
        found = [(0, 0)] * len(reads)
        places = [place for place, (session, _) in enumerate(reads) if session not in self._own_forms]
        if self._fast_path is not None and places:
            taken = self._fast_path.take([reads[place] for place in places], max_count)
            for place, one in zip(places, taken, strict=True):
                found[place] = one
        return found

    def received(self, session: Session, commands: list[Command]) -> None:
        own_form = self._own_forms.get(session)
        allowed = []
        for command in commands:
            if command.code == RequestCode.RMQHA_OPEN_SESSION:
                if own_form is None:
                    # one random number per connection, so that the count of its signatures never begins again
                    own_form = self._own_forms[session] = SessionSignatures(secrets.token_hex(NONCE_BYTES))
                session.send(command.reply(ext={"version": VERSION, "nonce": own_form.nonce}))
            elif own_form is not None and self._proves(own_form, command):
                command.principal = PEER_SERVER
                prioritize(session, command)
                allowed.append(command)
            elif self._rules.refuses(command):
                self._refuse(session, command)
            else:
                if self._rules.marks_unproven(command):
                    command.principal = UNPROVEN
                allowed.append(command)
        if allowed:
            self._service.received(session, allowed)

    def _proves(self, own_form: SessionSignatures, command: Command) -> bool:
        return command.ext.get(ACCESS_KEY) == PEER and own_form.is_valid(command, self._secret.current.decode())

    def _refuse(self, session: Session, command: Command) -> None:
        self._statistics.denied_count += 1
        if self._audit is not None:
            self._audit.request(session.peer, command, _NO_PROOF)
        self._rules.refused(session.peer, command, _NO_PROOF)
        if not command.is_oneway:
            session.send(command.reply(ResponseCode.NO_PERMISSION, remark=_NO_PROOF))
