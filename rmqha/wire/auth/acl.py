"""Authentication of a request by its signature, and the check of its rights. `acl_needs` has the rights that each
request needs, `signature` the form of signatures.
"""

from __future__ import annotations

import hmac
from typing import Protocol

from rmqha.model.access import AccessList, Account, address_matches
from rmqha.model.identity import Credentials
from rmqha.wire.auth.acl_needs import needs
from rmqha.wire.auth.signature import ACCESS_KEY, OWN_FORM_FIELDS, SIGNATURE, signature
from rmqha.wire.command import Command

ON_BEHALF_OF = "onBehalfOf"
"""Field with the account whose request one of our brokers forwards: the request has only the rights of that account.
Only an admin's request may have the field."""


class Form(Protocol):
    """Signatures of one form."""

    def is_valid(self, command: Command, secret_key: str) -> bool:
        """True if the command is signed with this key."""


class ApacheForm:
    """Signatures in Apache's form. Implements Form."""

    def is_valid(self, command: Command, secret_key: str) -> bool:
        """True if the command is signed with this key; a repeated command is valid too."""
        given = command.ext.get(SIGNATURE, "")
        return hmac.compare_digest(given.encode(), signature(command, secret_key).encode())


APACHE_FORM = ApacheForm()


def authenticate(
    access: AccessList,
    command: Command,
    host: str,
    own_form: Form | None = None,
    wanted: str = "any",
    apache_form: Form = APACHE_FORM,
    proven: Credentials | None = None,
) -> tuple[Account | None, str]:
    """(account, reason) of a request from `host`. `account`: the one that signed it, None for an address that needs
    none. `reason`: one sentence why the request is refused, which contains no secret; "" if it is not. `own_form`:
    signatures of a connection that has asked for rmqha's form (`rmqha.wire.auth.session_signature`); `wanted`:
    aclSignature; `proven`: credentials that the connection has proved, for requests without a signature."""
    if any(address_matches(pattern, host) for pattern in access.white_addresses):
        return _on_behalf_of(access, command, None)
    key = command.ext.get(ACCESS_KEY)
    if not key:
        if proven is None:
            return None, access.unsigned(command.code)
        account, reason = proven_account(access, proven)
        return (account, reason) if reason else _on_behalf_of(access, command, account)
    account = access.accounts.get(key)
    if account is None:
        return None, access.unknown(key)
    if not any(address_matches(pattern, host) for pattern in account.white_addresses):
        reason = _signature_refusal(access, account, command, own_form, wanted, apache_form)
        if reason:
            return account, reason
    return _on_behalf_of(access, command, account)


def proven_account(access: AccessList, proven: Credentials) -> tuple[Account | None, str]:
    """(account, reason) of a connection that has proved these credentials; `reason`: why they are no longer valid, ""
    if they are."""
    account = access.accounts.get(proven.access_key)
    if account is None:
        return None, access.unknown(proven.access_key)
    return account, "" if account.credentials == proven else access.wrong_signature(proven.access_key)


def _signature_refusal(
    access: AccessList, account: Account, command: Command, own_form: Form | None, wanted: str, apache_form: Form
) -> str:
    key, form = account.credentials.access_key, apache_form
    if OWN_FORM_FIELDS[0] in command.ext:
        if own_form is None:
            return f"account {key} signs as for another connection: this one has not asked for it (request 52033)"
        form = own_form
    elif wanted == "own" or (wanted == "admin" and account.admin):
        return f"aclSignature={wanted}: account {key} must sign in rmqha's own form, not Apache's"
    return "" if form.is_valid(command, account.credentials.secret_key) else access.wrong_signature(key)


def _on_behalf_of(access: AccessList, command: Command, account: Account | None) -> tuple[Account | None, str]:
    key = command.ext.get(ON_BEHALF_OF)
    if key is None or (account is not None and not account.admin):
        return account, ""
    found = access.accounts.get(key)
    return found, "" if found is not None else access.unknown(key)


def refusal(access: AccessList, command: Command, host: str) -> str:
    """Reason why a request from `host` must be refused; "" if it is allowed."""
    account, reason = authenticate(access, command, host)
    return reason or ("" if account is None else account.refusal(needs(command)))
