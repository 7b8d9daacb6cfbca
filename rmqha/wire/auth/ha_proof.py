"""The proof by which a peer of the HA port shows its identity (haSecurity; greeting version 2). Pure.

Both ends prove that they know the secret by an HMAC over the whole greeting: a random number of each end, the slave's
identity, and the certificate of the TLS connection. So a recorded greeting is useless on another connection, in another
group or for another replica, and a man in the middle of two TLS connections is detected.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Literal, NamedTuple

from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId

VERSION = "2"
NONCE_BYTES = 32
MAX_FIELD_CHARS = 512
_LABEL = "rmqha HA greeting 2"

Prover = Literal["slave", "master"]


class HaClaim(NamedTuple):
    """Identity of a slave in its greeting. `address`: broker address, as registered with the controllers; `epoch`: the
    newest that the slave has accepted."""

    broker_id: BrokerId
    address: str
    cluster_name: str = ""
    broker_name: str = ""
    epoch: int = 0

    def to_ext(self) -> dict[str, str]:
        """The claim as fields of the greeting."""
        return {
            "brokerId": str(self.broker_id),
            "address": self.address,
            "clusterName": self.cluster_name,
            "brokerName": self.broker_name,
            "epoch": str(self.epoch),
        }

    @classmethod
    def from_ext(cls, ext: dict[str, str]) -> HaClaim:
        """Parse the fields of a greeting. Raises RemoteProtocolError."""
        try:
            claim = cls(
                BrokerId(int(ext["brokerId"])), ext["address"], ext["clusterName"], ext["brokerName"], int(ext["epoch"])
            )
        except (KeyError, ValueError):
            raise RemoteProtocolError("the greeting does not say which replica it comes from") from None
        if any(len(text) > MAX_FIELD_CHARS for text in ext.values()):
            raise RemoteProtocolError("a field of the greeting is too long")
        return claim


class Greeting(NamedTuple):
    """Values of one greeting that both ends know. `binding`: digest of the master's certificate, b"" without TLS."""

    claim: HaClaim
    slave_nonce: str
    master_nonce: str
    binding: bytes

    def proof(self, prover: Prover, secret: bytes) -> str:
        """HMAC-SHA256 over the greeting, in hex, by which `prover` shows that it knows `secret`."""
        mac = hmac.new(secret, digestmod=sha256)
        items = (_LABEL, prover, *self.claim.to_ext().values(), self.slave_nonce, self.master_nonce)
        for item in (*(text.encode() for text in items), self.binding):
            mac.update(len(item).to_bytes(4, "big"))
            mac.update(item)
        return mac.hexdigest()

    def is_proof(self, given: str, prover: Prover, secret: bytes) -> bool:
        """True if `given` is the proof of `prover`; compared in constant time."""
        return hmac.compare_digest(given.encode(), self.proof(prover, secret).encode())
