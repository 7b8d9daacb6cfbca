"""Certificates, accounts and all other protections of a cluster: files in a directory, and keys of its cluster file.

Accounts: `operator`, an admin, for servers and tools; `honest` for the honest clients; `guest`, the lowest, may use one
topic and one group of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trustme

from rmqha.host.access.security import Security, for_client

ACCOUNTS = {
    "operator": ("operator", "operator-secret"),
    "honest": ("honest", "honest-secret"),
    "guest": ("guest-account", "guest-secret"),
}
ACL = """\
accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
- accessKey: honest
  secretKey: honest-secret
  topicPerms:
  - honest=PUB|SUB
  groupPerms:
  - honest=PUB|SUB
- accessKey: guest-account
  secretKey: guest-secret
  topicPerms:
  - guest=PUB|SUB
  groupPerms:
  - guest=PUB|SUB
"""
QUOTAS: dict[str, str | int | bool] = {
    "quota.account.requestsPerSecond": 2000,
    "quota.account.bytesPerSecond": 50_000_000,
}
"""Far above what the honest clients ask for."""


class Keys:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        issuer = trustme.CA()
        server = issuer.issue_cert("127.0.0.1")
        self.ca = directory / "ca.pem"
        issuer.cert_pem.write_to_path(str(self.ca))
        self._secret("server.key", server.private_key_pem.bytes().decode())
        (directory / "server.pem").write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
        self._secret("acl.yml", ACL)
        key, secret = ACCOUNTS["operator"]
        self._secret("operator.yml", f"accessKey: {key}\nsecretKey: {secret}\n")
        self.accounts = ACCOUNTS

    def _secret(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def client(self, account: str) -> Path:
        """A file for `rmqha.host.access.security.for_client`."""
        key, secret = ACCOUNTS[account]
        return self._secret(
            f"{account}.properties",
            f"accessKey={key}\nsecretKey={secret}\ntls.enable=true\ntls.client.trustCertPath={self.ca}\n",
        )

    def servers(self) -> Security:
        """Of this process, when it asks servers as they ask each other."""
        return for_client(str(self.client("operator")))

    def protect(self, document: dict[str, Any]) -> None:
        """All protections into a cluster file."""
        here = self._directory
        document["broker"] |= {"haSecurity": "enforcing", **QUOTAS}
        document["security"] = {
            "aclEnable": True,
            "aclFile": str(here / "acl.yml"),
            "aclSignature": "admin",
            "credentialsFile": str(here / "operator.yml"),
            "tls": {
                "enable": True,
                "server": {
                    "certPath": str(here / "server.pem"),
                    "keyPath": str(here / "server.key"),
                    "mode": "enforcing",
                },
                "client.trustCertPath": str(self.ca),
            },
        }
