"""Filter by accounts before a service: it gets only allowed requests, each with its account. Shell around
`rmqha.wire.auth.acl`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from rmqha.host.access.quota_filter import QuotaFilter, QuotaMeter, has_no_quota
from rmqha.host.access.urgent import prioritize
from rmqha.host.net.poller import SLICE_COUNT
from rmqha.model.access import AccessList, Account, address_matches
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Credentials, host_of
from rmqha.model.principal import Accounts, Principal
from rmqha.wire.auth.accesses import request_refusal
from rmqha.wire.auth.acl import authenticate, proven_account
from rmqha.wire.auth.session_signature import (
    FORM,
    NONCE_BYTES,
    PROOF,
    PROOF_VERSION,
    VERSION,
    SessionSignatures,
    is_session_proof,
    session_signature_of,
)
from rmqha.wire.auth.signature import ACCESS_KEY, signature_of
from rmqha.wire.command import Command

if TYPE_CHECKING:
    from rmqha.host.access.audit import AuditLog
    from rmqha.host.net.session import Service, Session
    from rmqha.host.net.statistics import Statistics
    from rmqha.kernel.batch_kernel import SignedSend

MAX_CACHE_COUNT = 1024
MAX_CACHED_NAME_CHARS = 256
K = TypeVar("K")
V = TypeVar("V")


class SignedSendFastPath(Protocol):
    """Port of a `SendFastPath` that also parses signed sends (`BatchKernel.signed`)."""

    @property
    def takes_any(self) -> bool:
        """False if `take` would answer nothing now: then signatures are not checked for it, but only once later."""
        ...

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]: ...

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]: ...


class _Allowed(NamedTuple):
    """The sends at the front of a read that may be served."""

    checked_count: int
    """Number of sends that were checked; the last of them may be one that is not allowed."""
    sends: list[SignedSend]
    metered: list[SignedSend]
    """Sends among them that were counted for quotas."""
    meter: QuotaMeter | None


class _Signer(NamedTuple):
    """An account that may connect from one address."""

    account: Account
    secret_key: str
    """"" if its requests from there need no signature."""
    is_unmetered: bool


class _SecretRecorder:
    """A signature scheme that accepts all signatures and notes the secret key that they would be checked by."""

    secret_key = ""

    def is_valid(self, command: Command, secret_key: str) -> bool:
        """Accept any signature; it is checked later."""
        self.secret_key = secret_key
        return True


class AuthFilter:
    """Filter before a service: requests that the accounts do not allow are answered NO_PERMISSION; the others carry the
    account as their `principal`."""

    def __init__(
        self,
        service: Service,
        accounts: Accounts,
        statistics: Statistics,
        audit: AuditLog | None = None,
        wanted: str = "any",
        fast_path: SignedSendFastPath | None = None,
        quotas: QuotaFilter | None = None,
    ) -> None:
        """`wanted`: aclSignature. `fast_path` gets the signed sends that the accounts and `quotas` allow."""
        self._service = service
        self._accounts = accounts
        self._statistics = statistics
        self._audit = audit
        self._principals: dict[Session, dict[str, Principal]] = {}
        """Principals of the accounts that have sent requests, by connection and access key."""
        self._acl_signature = wanted
        self._own_forms: dict[Session, SessionSignatures] = {}
        """Signature state of connections that use rmqha's own form, which begins with a nonce."""
        self._proven: dict[Session, Credentials] = {}
        """Credentials of connections that have proved them once, over TLS: their requests need no signature."""
        self._fast_path, self._quotas = fast_path, quotas
        self._check_counts: dict[Session, int] = {}
        """Most sends to check in one read of a connection; unlimited unless the fast path has left some of the last."""
        self._cached_for: AccessList | None = None
        """Accounts for which `_signers` and `_rights` are valid."""
        self._signers: dict[tuple[str, str, bool, bool], _Signer] = {}
        """Cache by access key, host, whether the request is in rmqha's own form, and whether the connection uses it."""
        self._rights: dict[tuple[str, str, int, str], bool] = {}
        """Cache of whether a send is allowed, by access key, host, code and topic."""

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._principals.pop(session, None)
        self._own_forms.pop(session, None)
        self._proven.pop(session, None)
        self._check_counts.pop(session, None)
        self._service.closed(session)

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Pass the allowed signed sends at the front of each read to the fast path. All other requests go to
        `received`, which refuses and audits them where needed."""
        found = [(0, 0)] * len(reads)
        fast_path, access = self._fast_path, self._accounts.access
        if fast_path is None or not fast_path.takes_any:
            return found
        if access is not self._cached_for:
            self._cached_for = access
            self._signers.clear()
            self._rights.clear()
        places: list[int] = []
        offered: list[tuple[Session, bytes]] = []
        all_allowed: list[_Allowed] = []
        for place, (session, data) in enumerate(reads):
            most = min(max_count, self._check_counts.get(session, max_count))
            allowed = self._check_sends(fast_path, access, session, data, most)
            all_allowed.append(allowed)
            if allowed.sends:
                places.append(place)
                offered.append((session, data[: allowed.sends[-1].end]))
        if offered:
            for place, one in zip(places, fast_path.take(offered, max_count), strict=True):
                found[place] = one
        for (session, _), allowed, (_, count) in zip(reads, all_allowed, found, strict=True):
            self._note_served(session, allowed, count)
        return found

    def _check_sends(
        self, fast_path: SignedSendFastPath, access: AccessList, session: Session, data: bytes, max_count: int
    ) -> _Allowed:
        """Check signatures, rights and quotas of the sends at the front, each as if those before it were served."""
        own_form, host = self._own_forms.get(session), host_of(session.peer)
        has_own, nonce, last = (False, "", 0) if own_form is None else (True, own_form.nonce, own_form.count)
        meter = None if self._quotas is None else self._quotas.meter(host)
        signers, rights = self._signers, self._rights
        proven = self._prover(access, session, host)
        sends = fast_path.signed(
            data, max_count, nonce, "" if proven is None else proven.account.credentials.access_key
        )
        metered: list[SignedSend] = []
        for place, send in enumerate(sends):
            _, code, topic, access_key, number, given, message, size_bytes = send
            key = access_key, host, number > 0, has_own
            signer = (signers.get(key) or self._signer_of(access, key)) if given else proven
            if signer is None:
                break
            if signer.secret_key:
                wanted = session_signature_of if number else signature_of
                if (number and number <= last) or not compare_digest(given, wanted(message, signer.secret_key)):
                    break
                last = number or last
            elif number:
                sends[place] = send._replace(number=0)  # as for any signature that is not checked
            right = access_key, host, code, topic
            if not (rights[right] if right in rights else self._check_right(signer.account, right)):
                break
            if meter is not None and not signer.is_unmetered:
                if not meter.admits(access_key, size_bytes):
                    break
                metered.append(send)
        else:
            return _Allowed(len(sends), sends, metered, meter)
        return _Allowed(len(sends), sends[:place], metered, meter)

    def _prover(self, access: AccessList, session: Session, host: str) -> _Signer | None:
        """Account that the connection has proved, if its credentials are still valid."""
        proven = self._proven.get(session)
        if proven is None:
            return None
        account, reason = proven_account(access, proven)
        if reason or account is None:
            return None
        is_unmetered = has_no_quota(Principal(self._accounts, proven.access_key, host=host))
        return _Signer(account, "", is_unmetered)

    def _signer_of(self, access: AccessList, key: tuple[str, str, bool, bool]) -> _Signer | None:
        """Account with the access key of `key`, if a valid signature lets it in; `authenticate` decides."""
        access_key, host, is_own, has_own = key
        command = Command(RequestCode.SEND_MESSAGE_V2, {ACCESS_KEY: access_key, **({FORM: VERSION} if is_own else {})})
        recorder = _SecretRecorder()
        account, reason = authenticate(
            access, command, host, recorder if has_own else None, self._acl_signature, recorder
        )
        if reason or account is None:
            return None
        is_unmetered = has_no_quota(Principal(self._accounts, access_key, host=host))
        signer = _Signer(account, recorder.secret_key, is_unmetered)
        _cache_put(self._signers, key, signer, access_key)
        return signer

    def _check_right(self, account: Account, right: tuple[str, str, int, str]) -> bool:
        """True if the account may send to the topic; `request_refusal` decides, which reads only code and topic."""
        _, host, code, topic = right
        found = not request_refusal(account, Command(code, {"b": topic}), host)
        _cache_put(self._rights, right, found, topic)
        return found

    def _note_served(self, session: Session, allowed: _Allowed, count: int) -> None:
        """Update counters, quotas and the owner: the fast path has served the first `count` of the allowed sends."""
        checked_count, sends, metered, meter = allowed
        if count < checked_count:
            # the sends left are checked again in `received`: check no more next time than were served now
            self._check_counts[session] = max(count, 1)
        elif count and (most := self._check_counts.pop(session, 0)) and 2 * most < SLICE_COUNT:
            self._check_counts[session] = 2 * most
        if meter is not None and count < len(sends):
            for send in metered:
                if send.end >= sends[count].end:
                    meter.give_back(send.access_key, send.size_bytes)
        if count:
            session.charge_to(sends[count - 1].access_key)
            own_form = self._own_forms.get(session)
            if own_form is not None:
                own_form.count = max(own_form.count, *(send.number for send in sends[:count]))

    def received(self, session: Session, commands: list[Command]) -> None:
        host = host_of(session.peer)
        allowed = []
        for command in commands:
            if command.code == RequestCode.RMQHA_OPEN_SESSION:
                session.send(self._open(session, command))
                continue
            reason = self._admit(session, command, host)
            if not reason:
                if self._audit is not None:
                    self._audit.request(session.peer, command, "")
                allowed.append(command)
                continue
            self._denied(session.peer, command, reason)
            if not command.is_oneway:
                session.send(command.reply(ResponseCode.NO_PERMISSION, remark=reason))
        if allowed:
            session.mark_verified()
            self._service.received(session, allowed)

    def _open(self, session: Session, command: Command) -> Command:
        """Answer a request for a nonce. A connection has one nonce, so its signatures are never counted from 0
        again."""
        own_form = self._own_forms.get(session)
        if own_form is None:
            own_form = self._own_forms[session] = SessionSignatures(secrets.token_hex(NONCE_BYTES))
        if PROOF in command.ext:
            return self._prove(session, command, own_form.nonce)
        takes_proof = {PROOF: PROOF_VERSION} if session.binding else {}
        return command.reply(ext={"version": VERSION, "nonce": own_form.nonce, **takes_proof})

    def _prove(self, session: Session, command: Command, nonce: str) -> Command:
        """Check the proof by which a connection over TLS shows once that it belongs to an account."""
        access, key = self._accounts.access, command.ext.get(ACCESS_KEY, "")
        account = access.accounts.get(key)
        if account is None:
            reason = access.unknown(key)
        elif not session.binding:
            reason = "only a connection with TLS is proved once; others sign each request"
        elif not is_session_proof(command.ext[PROOF], account.credentials, nonce, session.binding):
            reason = access.wrong_signature(key)
        else:
            self._proven[session] = account.credentials
            session.mark_verified()
            session.charge_to(key)
            return command.reply(ext={"version": VERSION})
        self._denied(session.peer, command, reason)
        return command.reply(ResponseCode.NO_PERMISSION, remark=reason)

    def _denied(self, peer: str, command: Command, reason: str) -> None:
        """Count and audit a denied request; the service calls it too, through the principal."""
        self._statistics.denied_count += 1
        if self._audit is not None:
            self._audit.request(peer, command, reason)

    def is_plausible(self, peer: str, command: Command) -> bool:
        """True if a request may be allowed, by its header alone."""
        access, host = self._accounts.access, host_of(peer)
        return (
            command.ext.get(ACCESS_KEY) in access.accounts
            or access.takes_unsigned(command.code)
            or any(address_matches(pattern, host) for pattern in access.white_addresses)
        )

    def _admit(self, session: Session, command: Command, host: str) -> str:
        """Authenticate a request and set its principal; returns the reason if it is denied, else ""."""
        access = self._accounts.access
        own_form, proven = self._own_forms.get(session), self._proven.get(session)
        account, reason = authenticate(access, command, host, own_form, self._acl_signature, proven=proven)
        if reason and access.takes_unsigned(command.code):
            return ""
        if reason or account is None:
            return reason
        key = account.credentials.access_key
        command.principal = self._principal(session, key, host)
        reason = request_refusal(account, command, host)
        if not reason:
            session.charge_to(key)
            if account.admin:
                prioritize(session, command)
        return reason

    def _principal(self, session: Session, key: str, host: str) -> Principal:
        known = self._principals.get(session)
        if known is None:
            known = self._principals[session] = {}
        principal = known.get(key)
        if principal is None:
            principal = known[key] = Principal(self._accounts, key, partial(self._denied, session.peer), host)
        return principal


def _cache_put(known: dict[K, V], key: K, value: V, name: str) -> None:
    """Cache a value, unless its name is so long that many of them would fill the memory."""
    if len(name) <= MAX_CACHED_NAME_CHARS:
        if len(known) >= MAX_CACHE_COUNT:
            known.clear()
        known[key] = value


class Audited:
    """Filter before the service of a server without accounts: requests are audited by address."""

    def __init__(self, service: Service, audit: AuditLog) -> None:
        self._service = service
        self._audit = audit

    def opened(self, session: Session) -> None:
        self._service.opened(session)

    def closed(self, session: Session) -> None:
        self._service.closed(session)

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self._audit.request(session.peer, command, "")
        self._service.received(session, commands)
