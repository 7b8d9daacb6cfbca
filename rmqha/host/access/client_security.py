"""TLS and signatures of a client, from files. Shell.

This module does not import trio: an operator's command uses blocking sockets.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from rmqha.host.access.live_files import refuse_if_open_to_others
from rmqha.host.access.process_security import Security
from rmqha.model.error import UsageError

if TYPE_CHECKING:
    from rmqha.model.config.client import ClientTlsKeys

TLS_HANDSHAKE_TIMEOUT_MS = 5_000


def for_client(path: str) -> Security:
    """Security by a properties file with tls.enable, the tls.client.* keys, accessKey and secretKey. Raises
    UsageError."""
    from rmqha.host.access import accounts
    from rmqha.model.config.base import parse_properties
    from rmqha.model.config.client import ClientConfig

    properties = parse_properties(accounts.read_secret_text(path), path)
    keys = {str(name): properties.pop(name) for name in ("accessKey", "secretKey") if name in properties}
    known = ClientConfig.keys()
    for key in properties:
        if key not in known:
            raise UsageError(f"{path}: unknown key {key}; known are accessKey, secretKey, {', '.join(known)}")
    if not keys and "tls.enable" not in properties:
        raise UsageError(f"{path} secures nothing: it has neither tls.enable=true nor accessKey and secretKey")
    config = ClientConfig.from_properties(properties, path)
    return Security(
        client_tls=client_tls(config) if config.tls_enable else None,
        credentials=accounts.credentials(keys, path) if keys else None,
    )


def client_tls(config: ClientTlsKeys) -> ssl.SSLContext:
    """TLS context of a client. Raises UsageError with one sentence that names the key if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The addresses of brokers come from name servers, so the name in a certificate proves nothing; as in RocketMQ.
    context.check_hostname = False
    if not config.tls_client_auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path:
        load_trust(context, "tls.client.trustCertPath", config.tls_client_trust_cert_path)
    else:
        context.load_default_certs()
    if config.tls_client_cert_path:
        load_chain(context, "tls.client", config.tls_client_cert_path, config.tls_client_key_path)
    return context


def load_chain(context: ssl.SSLContext, prefix: str, cert_path: str, key_path: str) -> None:
    """Load a certificate and its key. Raises UsageError."""
    for key, path in ((f"{prefix}.certPath", cert_path), (f"{prefix}.keyPath", key_path or cert_path)):
        if not Path(path).is_file():
            raise UsageError(f"{key}: there is no file {path}")
    try:
        context.load_cert_chain(cert_path, key_path or None, lambda: "")
        refuse_if_open_to_others(key_path or cert_path, f"the private key of {prefix}.certPath")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{prefix}.certPath, {prefix}.keyPath: no usable certificate and unencrypted key in PEM: {error}"
        ) from None


def load_trust(context: ssl.SSLContext, key: str, path: str) -> None:
    """Load the certificates of issuers. Raises UsageError."""
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise UsageError(f"{key}: no certificates in {path}: {error.strerror or error}") from None


def tls_error_sentence(address: str, cause: BaseException | None) -> str:
    """One sentence about a handshake that failed. `cause`: a TimeoutError, the error of the socket or of ssl, or None
    for a peer that does not speak TLS."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted ({cause.verify_message}); see tls.client.trustCertPath"
    elif isinstance(cause, TimeoutError):
        reason = "no answer"
    else:
        reason = "it does not speak TLS" if cause is None else str(getattr(cause, "reason", cause))
    return f"no TLS connection to {address}: {reason}"
