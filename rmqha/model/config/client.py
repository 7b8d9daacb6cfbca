"""Configuration of a client of secured servers (`rmqha --security FILE`). Pure.

Separate from `servers`, so that a client's command does not import the classes of all servers' keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rmqha.model.config.base import Config, key_field


class ClientTlsKeys(Protocol):
    """Keys of TLS as a client; servers have them too."""

    @property
    def tls_client_auth_server(self) -> bool: ...
    @property
    def tls_client_trust_cert_path(self) -> str: ...
    @property
    def tls_client_cert_path(self) -> str: ...
    @property
    def tls_client_key_path(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ClientConfig(Config):
    """Keys of such a file beside accessKey and secretKey, as in `ServerConfig`."""

    tls_enable: bool = key_field("tls.enable", False)
    tls_client_auth_server: bool = key_field("tls.client.authServer", True)
    tls_client_trust_cert_path: str = key_field("tls.client.trustCertPath", "")
    tls_client_cert_path: str = key_field("tls.client.certPath", "")
    tls_client_key_path: str = key_field("tls.client.keyPath", "")
