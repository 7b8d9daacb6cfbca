"""Signatures between our own clients and servers: one request, one connection, once. Pure.

A server gives each connection a random number when it is asked (request 52033); the client counts its requests. What is
signed, by HMAC-SHA256, is that number, the count, code, flag, version, language, remark, every field's name and value
and the body, each with its length. So nothing of a request can be changed or moved, and none counts twice, on this
connection or on another; no clock is needed. Apache's form (`rmqha.wire.auth.signature`) covers values and body only.
"""

from __future__ import annotations

import hmac
from base64 import b64encode

from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import ACCESS_KEY, SIGNATURE
from rmqha.wire.command import Command

VERSION = "2"
NONCE_BYTES = 32
MAX_COUNT_CHARS = 18
FORM = "SignatureForm"
"""The field that tells this form from Apache's."""
COUNT = "SignatureCount"
_LABEL = "rmqha signed request 2"


def session_signature(command: Command, nonce: str, secret_key: str) -> str:
    """Signature of a command whose other fields are set; the count is one of them."""
    ext, body, remark = command.ext, command.body, command.remark or ""
    names = sorted(ext)
    if SIGNATURE in ext:
        names.remove(SIGNATURE)
    # every text behind its length, all numbers in a fixed order: two commands never have the same head
    head = (
        f"{_LABEL},{nonce},{int(command.code)},{command.flag},{command.version},{int(command.language)},"
        f"{len(body)},{len(names)},{len(remark)}:{remark}"
    )
    parts = [f"{len(name)}:{name}{len(ext[name])}:{ext[name]}" for name in names]
    message = b"".join(((head + "".join(parts)).encode("utf-8", "surrogatepass"), body))
    return b64encode(hmac.digest(secret_key.encode(), message, "sha256")).decode()


class SessionSigner:
    """A client's end of one connection."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._count = 0

    def sign(self, command: Command, credentials: Credentials) -> None:
        """Sign a command in our own form, with the next count of this connection."""
        self._count += 1
        command.ext |= {ACCESS_KEY: credentials.access_key, FORM: VERSION, COUNT: str(self._count)}
        command.ext[SIGNATURE] = session_signature(command, self._nonce, credentials.secret_key)


class SessionSignatures:
    """A server's end of one connection."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self._count = 0

    def is_good(self, command: Command, secret_key: str) -> bool:
        """True if it is signed with this key and comes after all that were."""
        text = command.ext.get(COUNT, "")
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_COUNT_CHARS) or int(text) <= self._count:
            return False
        given = command.ext.get(SIGNATURE, "")
        wanted = session_signature(command, self.nonce, secret_key)
        if command.ext.get(FORM) != VERSION or not hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), wanted.encode()
        ):
            return False
        self._count = int(text)
        return True
