"""Signatures between our own clients and servers, each valid for one request on one connection, once. Pure.

A server gives each connection a random number (request 52033), and the client counts its requests. The HMAC-SHA256
covers that number, the count, code, flag, version, language, remark, every field's name and value and the body, each
with its length. So no part of a request can be changed or moved, and no request can be repeated, on this connection or
on another; no clock is needed. Apache's form (`rmqha.wire.auth.signature`) covers only the values and the body.

Over TLS a client may instead prove once that it knows the key, by an HMAC of that number and of the server's
certificate. TLS then protects the requests. A man in the middle of two TLS connections has another certificate: the
server refuses such a proof, and the client signs each request.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from operator import itemgetter

from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import ACCESS_KEY, SIGNATURE
from rmqha.wire.command import Command

VERSION = "2"
NONCE_BYTES = 32
MAX_COUNT_CHARS = 18
FORM = "SignatureForm"
"""The field that tells this form from Apache's."""
COUNT = "SignatureCount"
PROOF = "proof"
"""Field of request 52033 with the proof; in the answer to the first one, the version of proofs that the server
accepts."""
PROOF_VERSION = "1"
MAX_FORM_COUNT = 64
_LABEL = "rmqha signed request 2"
_PROOF_LABEL = "rmqha session proof 1"


def session_front(nonce: str) -> str:
    """Beginning of each message on the connection with this random number."""
    return f"{_LABEL},{nonce},"


def _head(command: Command, field_count: int) -> str:
    """Numbers in a fixed order, and texts behind their lengths: two commands never have the same head."""
    remark = command.remark or ""
    return (
        f"{int(command.code)},{command.flag},{command.version},{int(command.language)},"
        f"{len(command.body)},{field_count},{len(remark)}:{remark}"
    )


def session_message(command: Command, nonce: str) -> bytes:
    """Bytes of a command that its signature covers; all other fields, also the count, are set before."""
    ext = command.ext
    names = sorted(ext)
    if SIGNATURE in ext:
        names.remove(SIGNATURE)
    head = f"{session_front(nonce)}{_head(command, len(names))}"
    parts = [f"{len(name)}:{name}{len(ext[name])}:{ext[name]}" for name in names]
    return b"".join(((head + "".join(parts)).encode("utf-8", "surrogatepass"), command.body))


def session_signature_of(message: bytes, secret_key: str) -> bytes:
    """Signature of a message, as text."""
    return b2a_base64(hmac.digest(secret_key.encode(), message, "sha256"), newline=False)


def session_signature(command: Command, nonce: str, secret_key: str) -> str:
    """Signature of a command whose other fields are set."""
    return session_signature_of(session_message(command, nonce), secret_key).decode()


def session_proof(credentials: Credentials, nonce: str, binding: bytes) -> str:
    """Proof, in hex, that the client of a connection knows the key of an account. `binding`: SHA-256 of the certificate
    that the server has shown."""
    mac = hmac.new(credentials.secret_key.encode(), digestmod="sha256")
    for item in (_PROOF_LABEL.encode(), credentials.access_key.encode(), nonce.encode(), binding):
        mac.update(len(item).to_bytes(4, "big"))
        mac.update(item)
    return mac.hexdigest()


def is_session_proof(given: str, credentials: Credentials, nonce: str, binding: bytes) -> bool:
    """True if `given` is that proof; compared in constant time."""
    wanted = session_proof(credentials, nonce, binding)
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


class _Form:
    """Encoder of the fields of one kind of request in a message. A client sends few kinds, so the parts that depend
    only on the field names are made once."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """`names`: two or more."""
        ordered = sorted(name for name in names if name != SIGNATURE)
        self._values = itemgetter(*ordered)
        fronts = (f"{len(name)}:{name}".replace("%", "%%") for name in ordered)
        self._text = "".join(f"{front}%d:%s" for front in fronts)
        self.count = len(ordered)

    def text(self, ext: Mapping[str, str]) -> str:
        values = self._values(ext)
        parts: list[int | str] = [""] * (2 * self.count)
        parts[::2], parts[1::2] = map(len, values), values
        return self._text % tuple(parts)


class SessionSigner:
    """Signer of one connection, for its client. It computes `session_signature` faster: signing is a tenth of a
    client's cost of a send."""

    def __init__(self, nonce: str) -> None:
        self._front = session_front(nonce)
        self._count = 0
        self._forms: dict[tuple[str, ...], _Form] = {}
        self.proven: Credentials | None = None
        """Credentials that this connection has proved: requests of this account need no signature."""
        self._secret_key = ""
        self._mac = hmac.new(b"", digestmod="sha256")

    def sign(self, command: Command, credentials: Credentials) -> None:
        """Sign a command in rmqha's own form, with the next count, unless the connection has proved its account."""
        ext, proven = command.ext, self.proven
        if proven is not None and (proven is credentials or proven == credentials):
            if ACCESS_KEY in ext:
                for name in (ACCESS_KEY, FORM, COUNT, SIGNATURE):
                    ext.pop(name, None)
            return
        self._count += 1
        ext[ACCESS_KEY], ext[FORM], ext[COUNT] = credentials.access_key, VERSION, str(self._count)
        ext[SIGNATURE] = self._signature(command, credentials.secret_key)

    def _signature(self, command: Command, secret_key: str) -> str:
        if secret_key != self._secret_key:
            self._secret_key, self._mac = secret_key, hmac.new(secret_key.encode(), digestmod="sha256")
        ext, body, names = command.ext, command.body, tuple(command.ext)
        form = self._forms.get(names)
        if form is None:
            if len(self._forms) >= MAX_FORM_COUNT:
                self._forms.clear()
            form = self._forms[names] = _Form(names)
        mac = self._mac.copy()
        mac.update(f"{self._front}{_head(command, form.count)}{form.text(ext)}".encode("utf-8", "surrogatepass"))
        mac.update(body)
        return b2a_base64(mac.digest(), newline=False).decode()


class SessionSignatures:
    """Signatures of one connection, for its server. Implements `rmqha.wire.auth.acl.Form`."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.count = 0
        """Count of the last valid request."""

    def is_valid(self, command: Command, secret_key: str) -> bool:
        """True if the command is signed with this key, and its count is above that of the last valid one."""
        text = command.ext.get(COUNT, "")
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_COUNT_CHARS) or int(text) <= self.count:
            return False
        given = command.ext.get(SIGNATURE, "")
        wanted = session_signature(command, self.nonce, secret_key)
        if command.ext.get(FORM) != VERSION or not hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), wanted.encode()
        ):
            return False
        self.count = int(text)
        return True
