"""Authentication at the HA port (haSecurity), before the first byte of RocketMQ's protocol. Shell.

    slave → master   [TLS handshake]
    slave → master   MAGIC, then request 52031: its identity, its random number
    master → slave   the answer: the master's random number
    slave → master   request 52031: the slave's proof (`rmqha.wire.auth.ha_proof`)
    master → slave   the answer: the master's proof, or the reason of a refusal
    …                the HA stream

The proven secret is that of haSecretFile, else the secret key of the account that the greeting names. `permissive`
masters accept greetings of version 1 too, which earlier releases send: one frame signed with an account, which proves
nothing about this connection. The first bytes differ: a TLS record begins with 0x16, an HA handshake with a small
number, a report of the legacy protocol (static groups) with the high half of an offset far below MAGIC.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import NamedTuple

import trio

from rmqha.host.access.security import NO_SECURITY, AnyStream, Security, accept, connect
from rmqha.host.access.tls_link import TlsStream
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.model.offset import BrokerId
from rmqha.wire.auth.acl import authenticate
from rmqha.wire.auth.acl_needs import needs
from rmqha.wire.auth.ha_proof import NONCE_BYTES, VERSION, Greeting, HaClaim
from rmqha.wire.auth.signature import ACCESS_KEY
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame

MAGIC = b"rqHA"
MAX_GREETING_BYTES = 16 * 1024
ANSWER_TIMEOUT_MS = 3_000


class AcceptedConnection(NamedTuple):
    """Result of the authentication. `first`: bytes of the HA stream that have been read. `refused`: reason to close the
    connection, else "". `claim`: the proven identity of the peer."""

    stream: AnyStream
    first: bytes = b""
    refused: str = ""
    claim: HaClaim | None = None


class HaAuthenticator:
    """Proof of identity on HA connections, both ways. `security`: of the process; `mode`: haSecurity; `own`: identity
    in this replica's greeting."""

    def __init__(
        self,
        mode: str,
        security: Security,
        own: Callable[[], HaClaim] = lambda: HaClaim(BrokerId(0), ""),
    ) -> None:
        is_open = mode in ("open", "disabled") or (mode == "auto" and security.secret is None)
        self._enforcing = mode == "enforcing" or (mode == "auto" and not is_open)
        self._only_tls = mode == "enforcing"
        self._takes_version_1 = mode == "permissive"
        self._security = NO_SECURITY if is_open else security
        self._secret = self._security.secret
        self._own = own

    # --- slave ------------------------------------------------------------------------------------------------------
    async def dial(self, stream: trio.SocketStream, address: str) -> AnyStream:
        """Slave's end, ready for the HA handshake. Raises UnreachableError, with the connection closed."""
        if not self._enforcing:
            return stream
        security = self._security
        has_tls = self._only_tls or security.server_tls is not None
        secured = await connect(stream, security.client_tls if has_tls else None, address)
        credentials = security.credentials
        if self._secret is not None:
            key, ext = self._secret.current, {}
        elif credentials is not None:
            key, ext = credentials.secret_key.encode(), {ACCESS_KEY: credentials.access_key}
        else:
            return secured
        reason = "no answer to the greeting; see its haSecurity and haSecretFile"
        try:
            with trio.move_on_after(ANSWER_TIMEOUT_MS / 1000):
                reason = await self._greet(secured, key, ext)
                if not reason:
                    return secured
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            reason = f"{reason} ({error})"
        await trio.aclose_forcefully(secured)
        raise UnreachableError(f"{address} takes no HA connection from here: {reason}")

    async def _greet(self, stream: AnyStream, key: bytes, ext: dict[str, str]) -> str:
        """Reason of a failure, "" if both have proved themselves. Raises trio.BrokenResourceError,
        RemoteProtocolError."""
        claim, nonce = self._own(), secrets.token_hex(NONCE_BYTES)
        hello = {**ext, **claim.to_ext(), "version": VERSION, "nonce": nonce}
        answer = await _asked(stream, hello, MAGIC)
        if answer.code != ResponseCode.SUCCESS:
            return answer.remark or f"it answered {answer.code}"
        if answer.ext.get("version") != VERSION:
            return "it knows greetings of version 1 only; upgrade it, with haSecurity=permissive everywhere meanwhile"
        greeting = Greeting(claim, nonce, answer.ext.get("nonce", ""), _binding(stream))
        answer = await _asked(stream, {"version": VERSION, "proof": greeting.proof("slave", key)})
        if answer.code != ResponseCode.SUCCESS:
            return answer.remark or f"it answered {answer.code}"
        if not greeting.is_proof(answer.ext.get("proof", ""), "master", key):
            return "it has not proved that it knows the secret: it is no replica of this group"
        return ""

    # --- master -----------------------------------------------------------------------------------------------------
    async def accept(self, stream: trio.SocketStream, host: str) -> AcceptedConnection:
        """Master's end. The caller bounds the time and closes `stream`. Raises trio.BrokenResourceError."""
        tls = self._security.server_tls
        if tls is not None:
            tls = dataclasses.replace(tls, only=self._only_tls)
        secured = await accept(stream, tls)
        if secured is None:
            return AcceptedConnection(stream, refused="no TLS, which haSecurity=enforcing asks for")
        if self._security.accounts is None and self._secret is None:
            return AcceptedConnection(secured)
        first = b""
        while len(first) < len(MAGIC) and MAGIC.startswith(first):
            more = await secured.receive_some(len(MAGIC) - len(first))
            if not more:
                return AcceptedConnection(secured, refused="nothing was said")
            first += more
        if first != MAGIC:
            refused = "no greeting, which its haSecurity asks for" if self._enforcing else ""
            return AcceptedConnection(secured, bytes(first), refused)
        try:
            greeting = await _command(secured, b"")
            if greeting is None or greeting.code != RequestCode.RMQHA_HA_GREETING:
                return AcceptedConnection(secured, refused="no greeting")
            if greeting.ext.get("version") == VERSION:
                return await self._verify(secured, greeting)
            return await self._old_greeting(secured, greeting, host)
        except RemoteProtocolError as error:
            return AcceptedConnection(secured, refused=str(error))

    async def _verify(self, stream: AnyStream, hello: Command) -> AcceptedConnection:
        key, refused = self._key_of(hello)
        if refused:
            return await _refuse(stream, hello, refused)
        claim, nonce = HaClaim.from_ext(hello.ext), secrets.token_hex(NONCE_BYTES)
        own = self._own()
        if (claim.cluster_name, claim.broker_name) != (own.cluster_name, own.broker_name):
            return await _refuse(stream, hello, f"this is a broker of the group {own.broker_name}")
        greeting = Greeting(claim, hello.ext.get("nonce", ""), nonce, _binding(stream))
        await stream.send_all(encode_frame(hello.reply(ext={"version": VERSION, "nonce": nonce})))
        second = await _command(stream, b"")
        if second is None or second.code != RequestCode.RMQHA_HA_GREETING:
            return AcceptedConnection(stream, refused="no proof followed its greeting")
        if not greeting.is_proof(second.ext.get("proof", ""), "slave", key):
            return await _refuse(
                stream, second, "it does not know the secret: compare its haSecretFile with this one's"
            )
        proof = greeting.proof("master", key)
        await stream.send_all(encode_frame(second.reply(ext={"version": VERSION, "proof": proof})))
        return AcceptedConnection(stream, claim=claim)

    def _key_of(self, hello: Command) -> tuple[bytes, str]:
        """Secret that the peer must prove, or the reason of a refusal."""
        if self._secret is not None:
            return self._secret.current, ""
        assert self._security.accounts is not None
        name = hello.ext.get(ACCESS_KEY, "")
        account = self._security.accounts.access.accounts.get(name)
        if account is None:
            return b"", f"there is no account {name!r}"
        return account.credentials.secret_key.encode(), account.refusal(needs(hello))

    async def _old_greeting(self, stream: AnyStream, greeting: Command, host: str) -> AcceptedConnection:
        if not self._takes_version_1 or self._security.accounts is None:
            return await _refuse(
                stream, greeting, "a greeting of an earlier release, which only haSecurity=permissive takes"
            )
        account, refused = authenticate(self._security.accounts.access, greeting, host)
        if account is not None and not refused:
            refused = account.refusal(needs(greeting))
        if refused:
            return await _refuse(stream, greeting, refused)
        await stream.send_all(encode_frame(greeting.reply(ext={"version": "1"})))
        return AcceptedConnection(stream)


async def _refuse(stream: AnyStream, asked: Command, reason: str) -> AcceptedConnection:
    await stream.send_all(encode_frame(asked.reply(ResponseCode.NO_PERMISSION, {"version": VERSION}, remark=reason)))
    return AcceptedConnection(stream, refused=reason)


async def _asked(stream: trio.abc.Stream, ext: dict[str, str], before: bytes = b"") -> Command:
    """Answer to request 52031. Raises RemoteProtocolError, trio.BrokenResourceError."""
    await stream.send_all(before + encode_frame(Command(RequestCode.RMQHA_HA_GREETING, ext)))
    answer = await _command(stream, b"")
    if answer is None:
        raise RemoteProtocolError("it closed the connection")
    return answer


def _binding(stream: AnyStream) -> bytes:
    return stream.link.binding if isinstance(stream, TlsStream) else b""


async def _command(stream: trio.abc.Stream, data: bytes) -> Command | None:
    """The next frame, after which the peer waits; None if it closes before. Raises RemoteProtocolError."""
    parser = FrameParser(MAX_GREETING_BYTES)
    while True:
        found = parser.feed(data)
        if found:
            if len(found) > 1 or parser.buffered_bytes:
                raise RemoteProtocolError("more than one greeting at once")
            return found[0]
        data = bytes(await stream.receive_some(MAX_GREETING_BYTES))
        if not data:
            return None
