"""A process's part in TLS and signatures, as it counts for all that it serves and asks. Shell.

Loads neither ssl nor trio: who asks servers without TLS needs neither.
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
    context: ssl.SSLContext
    only: bool
    """Plain connections are closed."""
    certificate_digest: bytes = b""
    """SHA-256 of the certificate that clients are shown."""


class Security:
    """A process's part in TLS and signatures; the default is neither. What comes from `LiveFiles` is asked for
    anew at each connection and each request: files that change count from then on."""

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
        """The form of signatures that the accounts must use (aclSignature)."""
        self.own_form_only = own_form_only
        self.secret = secret
        """The secret that the servers of this cluster share (haSecretFile)."""
        self.audit: AuditLog | None = None
        """The log in which requests are noted; each process sets it once, before it serves."""
        given = (server_tls, client_tls, credentials, accounts, secret)
        self.files: list[LiveFiles[Any]] = [item for item in given if isinstance(item, LiveFiles)]
        """Files that somebody should look at now and then (`rmqha.host.access.security_watch`)."""

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
        """This security with the same TLS towards others, and the cluster's secret instead of an account; None: there
        is no secret, or accounts of a file are asked for here, and so by the others, or a file names this server's."""
        if self.secret is None or isinstance(self.accounts, LiveFiles):
            return None
        if self.accounts is not None and isinstance(self._credentials, LiveFiles):
            return None
        from rmqha.model.identity import Credentials

        credentials = Credentials(access_key=PEER, secret_key=self.secret.current.decode())
        return Security(client_tls=self._client_tls, credentials=credentials, own_form_only=True)

    def signing_by(self, credentials: LiveFiles[Credentials] | None) -> Security:
        """This security with the same TLS towards others, with an account of its own or none; its file is looked at
        with the others."""
        if credentials is not None:
            self.files.append(credentials)
        return Security(client_tls=self._client_tls, credentials=credentials)


def no_longer_own_form(address: str) -> str:
    """One sentence about a server that took rmqha's own signatures, and now would have weaker ones."""
    return (
        f"{address} no longer takes rmqha's own signatures, as it did before: it has no accounts now, is"
        " another program, or somebody stands between; restart this process if that is meant"
    )


def _now(given: T | LiveFiles[T] | None) -> T | None:
    return given.current if isinstance(given, LiveFiles) else given


NO_SECURITY = Security()
ambient: ContextVar[Security] = ContextVar("security", default=NO_SECURITY)
"""The security of servers and clients without a `security` of their own: each process sets it once, when it has read
its configuration."""
