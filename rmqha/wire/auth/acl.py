"""Signed requests, as RocketMQ's AclClientRPCHook makes them. `acl_needs` says what each request needs.

A signature is the HMAC-SHA1, in Base64, of the values of all header fields but the signature itself, in the order of
their names, and of the body. It proves who asks; it does not hide anything and does not keep a request from being
repeated by somebody who saw it: that takes TLS.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import Protocol

from rmqha.model.access import AccessList, Account, Credentials, address_matches
from rmqha.wire.auth.acl_needs import needs
from rmqha.wire.command import Command

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
ON_BEHALF_OF = "onBehalfOf"
"""The account whose request one of our brokers passes on: the request may no more than that account. Whoever may
everything may say it."""
_UNIQUE_QUERY_FLAG = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_THAT_FLAGS_LATER = 399
"""MQVersion ordinal of 4.9.3: up to it clients added the flag of a query after they had signed it."""


def signature(command: Command, secret_key: str) -> str:
    """Signature of a command whose AccessKey field is set."""
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
    mac = hmac.new(secret_key.encode(), "".join([fields[name] for name in names]).encode(), "sha1")
    mac.update(command.body)
    return b64encode(mac.digest()).decode()


def _java_order(name: str) -> bytes:
    """Java sorts by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


class OwnForm(Protocol):
    """Signatures of our own form on one connection (`rmqha.wire.auth.session_signature`)."""

    def is_good(self, command: Command, secret_key: str) -> bool:
        """True if the command is signed with this key."""


OWN_FORM_FIELDS = ("SignatureForm", "SignatureCount")


def sign(command: Command, credentials: Credentials) -> None:
    """Sign a command in Apache's form, in place of what it was signed with."""
    for name in OWN_FORM_FIELDS:
        command.ext.pop(name, None)
    command.ext[ACCESS_KEY] = credentials.access_key
    command.ext.pop(SIGNATURE, None)
    command.ext[SIGNATURE] = signature(command, credentials.secret_key)


def authenticate(
    access: AccessList, command: Command, host: str, own_form: OwnForm | None = None, wanted: str = "any"
) -> tuple[Account | None, str]:
    """The account that a request from `host` is signed with, None for an address that needs none; and "" or why it is
    not let in, in one sentence that names no secret. `own_form`: of a connection that has asked for it; `wanted`:
    aclSignature."""
    if any(address_matches(pattern, host) for pattern in access.white_addresses):
        return _on_behalf_of(access, command, None)
    key = command.ext.get(ACCESS_KEY)
    if not key:
        return None, access.unsigned(command.code)
    account = access.accounts.get(key)
    if account is None:
        return None, access.unknown(key)
    if not any(address_matches(pattern, host) for pattern in account.white_addresses):
        reason = _signature_refusal(access, account, command, own_form, wanted)
        if reason:
            return account, reason
    return _on_behalf_of(access, command, account)


def _signature_refusal(
    access: AccessList, account: Account, command: Command, own_form: OwnForm | None, wanted: str
) -> str:
    key, secret_key = account.credentials.access_key, account.credentials.secret_key
    if OWN_FORM_FIELDS[0] in command.ext:
        if own_form is None:
            return f"account {key} signs as for another connection: this one has not asked for it (request 52033)"
        good = own_form.is_good(command, secret_key)
    elif wanted == "own" or (wanted == "admin" and account.admin):
        return f"aclSignature={wanted}: account {key} must sign in rmqha's own form, not Apache's"
    else:
        given = command.ext.get(SIGNATURE, "")
        good = hmac.compare_digest(given.encode(), signature(command, secret_key).encode())
    return "" if good else access.wrong_signature(key)


def _on_behalf_of(access: AccessList, command: Command, account: Account | None) -> tuple[Account | None, str]:
    key = command.ext.get(ON_BEHALF_OF)
    if key is None or (account is not None and not account.admin):
        return account, ""
    found = access.accounts.get(key)
    return found, "" if found is not None else access.unknown(key)


def refusal(access: AccessList, command: Command, host: str) -> str:
    """ "" if a request from `host` may be served, else why not."""
    account, reason = authenticate(access, command, host)
    return reason or ("" if account is None else account.refusal(needs(command)))
