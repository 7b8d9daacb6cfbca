"""TLS and signed requests for servers and clients: contexts from files, and the guard before a server's service. Shell.

A server takes both plain and TLS connections on one port, told apart by their first byte, unless tls.server.mode says
otherwise: that is how RocketMQ does it, so that clients can be moved one by one.
"""

from __future__ import annotations

import ssl
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from rmqha.host.access.client_security import (
    TLS_HANDSHAKE_TIMEOUT_MS,
    client_tls,
    load_chain,
    load_trust,
    tls_error_sentence,
)
from rmqha.host.access.client_security import for_client as for_client
from rmqha.host.access.live_files import LiveFiles
from rmqha.host.access.process_security import NO_SECURITY as NO_SECURITY
from rmqha.host.access.process_security import Security as Security
from rmqha.host.access.process_security import ServerTls as ServerTls
from rmqha.host.access.process_security import ambient as ambient
from rmqha.host.access.shared_secret import secret_file
from rmqha.host.access.tls_link import TlsLink, TlsStream
from rmqha.model.error import UnreachableError, UsageError
from rmqha.model.identity import PEER as PEER

if TYPE_CHECKING:
    from rmqha.model.config.servers import ServerConfig
    from rmqha.model.identity import Credentials
    from rmqha.model.principal import Accounts

T = TypeVar("T")
AnyStream = trio.SocketStream | TlsStream

_TLS_RECORD = b"\x16"
"""First byte of a client's hello; a remoting frame begins with the high byte of a length far below that."""
_CERTIFICATE_BEGIN, _CERTIFICATE_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}


def use(config: ServerConfig) -> None:
    """Use the security of this configuration for all servers and clients of the process. Raises UsageError as
    `from_config`."""
    ambient.set(from_config(config))


def from_config(config: ServerConfig) -> Security:
    """Security by a server's configuration. Raises UsageError with one sentence that names the key if a file cannot be
    used."""
    from rmqha.model.config.servers import BrokerConfig
    from rmqha.model.identity import Credentials

    credentials: Credentials | LiveFiles[Credentials] | None = None
    accounts: Accounts | None = None
    if config.credentials_file or config.acl_enable:
        from rmqha.host.access.accounts import AccessFile, credentials_file

        if config.credentials_file:
            credentials = credentials_file("credentialsFile", config.credentials_file)
        accounts = AccessFile(Path(config.acl_file)) if config.acl_enable else None
    secret = secret_file(config.ha_secret_file) if config.ha_secret_file else None
    if isinstance(config, BrokerConfig) and config.authentication_enabled:
        from rmqha.host.access.user_accounts import UserAccounts

        accounts, user = UserAccounts(secret), config.inner_user or config.initial_user
        if credentials is None and user is not None:
            credentials = Credentials(access_key=user.username, secret_key=user.password)
    return Security(_server_files(config), _client_files(config), credentials, accounts, secret, config.acl_signature)


# --- contexts -----------------------------------------------------------------------------------------------------
def _server_files(config: ServerConfig) -> LiveFiles[ServerTls] | None:
    mode = config.tls_server_mode
    if mode == "disabled" or (mode == "permissive" and not config.tls_server_cert_path):
        return None
    paths = [config.tls_server_cert_path, config.tls_server_key_path]
    if config.tls_server_need_client_auth != "none":
        paths.append(config.tls_server_trust_cert_path)
    make = partial(_server_tls, config)
    return LiveFiles("tls.server.certPath", tuple(filter(None, paths)), make, certificates=config.tls_server_cert_path)


def _client_files(config: ServerConfig) -> LiveFiles[ssl.SSLContext] | None:
    if not config.tls_enable:
        return None
    own = [config.tls_client_cert_path, config.tls_client_key_path]
    trust = config.tls_client_trust_cert_path if config.tls_client_auth_server else ""
    paths = tuple(filter(None, (*own, trust)))
    key = "tls.client.certPath" if config.tls_client_cert_path else "tls.client.trustCertPath"
    return LiveFiles(key, paths or ("",), partial(client_tls, config), certificates=config.tls_client_cert_path)


def _server_tls(config: ServerConfig) -> ServerTls:
    if not config.tls_server_cert_path or not config.tls_server_key_path:
        raise UsageError("tls.server.certPath and tls.server.keyPath must both name a PEM file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_chain(context, "tls.server", config.tls_server_cert_path, config.tls_server_key_path)
    context.options |= ssl.OP_NO_RENEGOTIATION  # it would cost the server a signature whenever a client wants
    context.verify_mode = _CLIENT_AUTH[config.tls_server_need_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        if not config.tls_server_trust_cert_path:
            raise UsageError("tls.server.need.client.auth needs tls.server.trustCertPath, the PEM file of the issuers")
        load_trust(context, "tls.server.trustCertPath", config.tls_server_trust_cert_path)
    first = _first_certificate(Path(config.tls_server_cert_path).read_text("latin-1"))
    return ServerTls(context, config.tls_server_mode == "enforcing", sha256(first).digest())


def _first_certificate(text: str) -> bytes:
    """DER of the first certificate in a PEM text, which is the server's own; the context has checked it."""
    begin = text.index(_CERTIFICATE_BEGIN)
    end = text.index(_CERTIFICATE_END, begin) + len(_CERTIFICATE_END)
    return ssl.PEM_cert_to_DER_cert(text[begin:end])


# --- connections --------------------------------------------------------------------------------------------------
async def accept(stream: trio.SocketStream, tls: ServerTls | None) -> AnyStream | None:
    """Stream to serve, after a handshake if the peer begins one; None if the connection must be closed."""
    is_served, link = await accept_link(stream, tls, TLS_HANDSHAKE_TIMEOUT_MS)
    if not is_served:
        return None
    return stream if link is None else TlsStream(stream, link)


async def accept_link(stream: trio.SocketStream, tls: ServerTls | None, timeout_ms: int) -> tuple[bool, TlsLink | None]:
    """(True if the connection is served, its TLS if the peer began a handshake); decided as in `accept`."""
    if tls is None:
        return True, None
    with trio.move_on_after(timeout_ms / 1000):
        try:
            if not await _begins_tls(stream):
                return not tls.only, None
            link = TlsLink(tls.context, server_side=True, certificate_digest=tls.certificate_digest)
            await link.do_handshake(stream)
            return True, link
        except (OSError, trio.BrokenResourceError):
            return False, None
    return False, None


async def _begins_tls(stream: trio.SocketStream) -> bool:
    """True if the peer's first byte begins a TLS handshake. Raises OSError."""
    return await stream.socket.recv(1, trio.socket.MSG_PEEK) == _TLS_RECORD


async def connect(stream: trio.SocketStream, context: ssl.SSLContext | None, address: str) -> AnyStream:
    """Stream of a client to `address`, after a handshake if there is a `context`. Raises UnreachableError; the
    connection is then closed."""
    if context is None:
        return stream
    link = TlsLink(context, server_side=False)
    try:
        with trio.fail_after(TLS_HANDSHAKE_TIMEOUT_MS / 1000):
            await link.do_handshake(stream)
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        await trio.aclose_forcefully(stream)
        cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else error
        raise UnreachableError(tls_error_sentence(address, cause)) from None
    return TlsStream(stream, link)
