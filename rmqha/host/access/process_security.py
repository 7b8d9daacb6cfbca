"""TLS and signatures of a process, for all its servers and clients. Shell.

This module imports neither ssl nor trio: a client without TLS needs neither.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rmqha.host.access.live_files import LiveFiles
from rmqha.model.identity import PEER as PEER

if TYPE_CHECKING:
    import ssl

    from rmqha.host.access.audit import AuditLog
    from rmqha.model.identity import Credentials
    from rmqha.model.principal import Accounts

T = TypeVar("T")


@dataclass(frozen=True)
class ServerTls:
    """TLS of a server."""

    context: ssl.SSLContext
    only: bool
    """True if connections without TLS are closed."""
    certificate_digest: bytes = b""
    """SHA-256 of the certificate that the server sends to clients."""


class Security:
    """TLS, accounts and credentials of a process; by default none. Values from `LiveFiles` are read for each connection
    and each request, so a changed file takes effect at once."""

    def __init__(
        self,
        server_tls: ServerTls | LiveFiles[ServerTls] | None = None,
        client_tls: ssl.SSLContext | LiveFiles[ssl.SSLContext] | None = None,
        credentials: Credentials | LiveFiles[Credentials] | None = None,
        accounts: Accounts | None = None,
        secret: LiveFiles[bytes] | None = None,
        acl_signature: str = "any",
        *,
        own_form_only: bool = False,
    ) -> None:
        """`own_form_only`: a server that does not take rmqha's own signatures is asked unsigned."""
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._credentials = credentials
        self.accounts = accounts
        self.acl_signature = acl_signature
        """Form of signatures that the accounts must use (aclSignature)."""
        self.own_form_only = own_form_only
        self.secret = secret
        """The secret that the servers of this cluster share (haSecretFile)."""
        self.audit: AuditLog | None = None
        """The log in which requests are noted; each process sets it once, before it serves."""
        given = (server_tls, client_tls, credentials, accounts, secret)
        self.files: list[LiveFiles[Any]] = [item for item in given if isinstance(item, LiveFiles)]
        """Files to check for changes at intervals (`rmqha.host.access.security_watch`)."""

    @property
    def server_tls(self) -> ServerTls | None:
        return _now(self._server_tls)

    @property
    def client_tls(self) -> ssl.SSLContext | None:
        return _now(self._client_tls)

    @property
    def credentials(self) -> Credentials | None:
        return _now(self._credentials)

    def signing_with_secret(self) -> Security | None:
        """Security with the same TLS as a client, that signs with the cluster's secret instead of an account. None if
        there is no secret; if this server, and so the others, check accounts of a file; or if a file has this server's
        credentials."""
        if self.secret is None or isinstance(self.accounts, LiveFiles):
            return None
        if self.accounts is not None and isinstance(self._credentials, LiveFiles):
            return None
        from rmqha.model.identity import Credentials

        credentials = Credentials(access_key=PEER, secret_key=self.secret.current.decode())
        return Security(client_tls=self._client_tls, credentials=credentials, own_form_only=True)

    def signing_by(self, credentials: LiveFiles[Credentials] | None) -> Security:
        """Security with the same TLS as a client and with these credentials, or none; their file is checked for changes
        too."""
        if credentials is not None:
            self.files.append(credentials)
        return Security(client_tls=self._client_tls, credentials=credentials)


def no_longer_own_form(address: str) -> str:
    """One sentence about a server that accepted rmqha's own signatures, and now would accept only weaker ones."""
    return (
        f"{address} no longer takes rmqha's own signatures, as it did before: it has no accounts now, is"
        " another program, or somebody stands between; restart this process if that is meant"
    )


def _now(given: T | LiveFiles[T] | None) -> T | None:
    return given.current if isinstance(given, LiveFiles) else given


NO_SECURITY = Security()
ambient: ContextVar[Security] = ContextVar("security", default=NO_SECURITY)
"""Security of servers and clients that are given none: each process sets it once, after it has read its
configuration."""
