"""Whose Raft messages a controller takes. Shell: it looks at sessions.

With haSecretFile only of controllers that sign with that secret, as `rmqha.wire.auth.session_signature` does; with
accounts
the guard before the server has checked them. With neither a message must come from a host of a controller that the
configuration or the group's own record names; hosts given by name say nothing and are not compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from rmqha.ha.stream.registered import host_of
from rmqha.host.access.live_files import LiveFiles
from rmqha.host.access.security import Security
from rmqha.host.net.session import Session
from rmqha.model.access import Credentials
from rmqha.wire.auth.session_signature import NONCE_BYTES, VERSION, SessionSignatures
from rmqha.wire.command import Command

ACCOUNT = "controllers"
"""The name under which they sign with the secret; no account of any file."""


def raft_security(security: Security) -> Security | None:
    """How a controller asks its peers; None: as it asks everybody."""
    if security.secret is None or security.accounts is not None:
        return None
    credentials = Credentials(access_key=ACCOUNT, secret_key=security.secret.current.decode())
    return security.signing_as(credentials)


class RaftGuard:
    def __init__(self, security: Security) -> None:
        self._accounts = security.accounts is not None
        self._secret: LiveFiles[bytes] | None = security.secret
        self._own_forms: dict[Session, SessionSignatures] = {}
        self._near: set[Session] = set()
        """Connections from the hosts of controllers."""

    @property
    def opens_sessions(self) -> bool:
        """Whether request 52033 is answered here: with accounts the guard before the server does."""
        return self._secret is not None and not self._accounts

    def open(self, session: Session, command: Command) -> Command:
        own_form = self._own_forms.get(session)
        if own_form is None:
            own_form = self._own_forms[session] = SessionSignatures(secrets.token_hex(NONCE_BYTES))
        return command.reply(ext={"version": VERSION, "nonce": own_form.nonce})

    def closed(self, session: Session) -> None:
        self._own_forms.pop(session, None)
        self._near.discard(session)

    def refusal(self, session: Session, command: Command, is_peer: Callable[[str], bool]) -> str:
        """ "" if this Raft message counts, else why not. `is_peer` tells whether a controller may come from a host."""
        if self._accounts or session in self._near:
            return ""
        if self._secret is not None:
            own_form = self._own_forms.get(session)
            if own_form is not None and own_form.is_good(command, self._secret.current.decode()):
                return ""
            return "it is not signed with the secret of haSecretFile, which all controllers need"
        host = host_of(session.peer)
        if is_peer(host):
            self._near.add(session)
            return ""
        return f"no controller is known at {host}: name it in controllerDLegerPeers, or set haSecretFile on all of them"
