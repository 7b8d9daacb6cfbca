"""Signatures in Apache's form, as RocketMQ's AclClientRPCHook makes them.

A signature is the HMAC-SHA1, in Base64, of the values of all header fields but the signature itself, in the order of
their names, and of the body. It proves who asks; it does not hide anything and does not keep a request from being
repeated by somebody who saw it: that takes TLS.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping

from rmqha.model.identity import Credentials
from rmqha.wire.command import Command

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
OWN_FORM_FIELDS = ("SignatureForm", "SignatureCount")
_SIGNED_BY = frozenset((ACCESS_KEY, SIGNATURE, "SecurityToken", *OWN_FORM_FIELDS))
"""Fields by which a request says who asks."""
_UNIQUE_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_THAT_FLAGS_LATER = 399
"""MQVersion ordinal of 4.9.3: up to it clients added the flag of a query after they had signed it."""


def signed_message(command: Command) -> bytes:
    """Bytes that the signature of a command is of; its AccessKey field is set."""
    fields = command.ext
    names = sorted(
        (
            name
            for name in fields
            if name != SIGNATURE
            and not (name == _UNIQUE_QUERY_FLAG and command.version <= _LAST_VERSION_THAT_FLAGS_LATER)
        ),
        key=_java_order,
    )
    return b"".join(("".join([fields[name] for name in names]).encode(), command.body))


def signature_of(message: bytes, secret_key: str) -> bytes:
    """Signature of a message, as text."""
    return b2a_base64(hmac.digest(secret_key.encode(), message, "sha1"), newline=False)


def signature(command: Command, secret_key: str) -> str:
    """Signature of a command whose AccessKey field is set."""
    return signature_of(signed_message(command), secret_key).decode()


def _java_order(name: str) -> bytes:
    """Java sorts by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def sign(command: Command, credentials: Credentials) -> None:
    """Sign a command in Apache's form, in place of what it was signed with."""
    for name in OWN_FORM_FIELDS:
        command.ext.pop(name, None)
    command.ext[ACCESS_KEY] = credentials.access_key
    command.ext.pop(SIGNATURE, None)
    command.ext[SIGNATURE] = signature(command, credentials.secret_key)


def unsigned(fields: Mapping[str, str]) -> dict[str, str]:
    """Fields of a request for somebody else than who checks it: a signature of this form is good for other requests
    with the same values, too."""
    return {name: value for name, value in fields.items() if name not in _SIGNED_BY}
