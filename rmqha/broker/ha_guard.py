"""TLS and accounts of the HA port (haSecurity): over before the first byte of RocketMQ's protocol. Shell.

    slave → master   [TLS handshake, with tls.enable]
    slave → master   [MAGIC, then the frame of request 52031, signed, with credentialsFile]
    master → slave   [the frame of its answer]
    …                the HA stream as ever

The three are told apart by their first bytes: a TLS record begins with 0x16, an HA handshake with a small number, a
plain report (static groups) with the high half of an offset far below MAGIC.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import trio

from rmqha.host.security import Security, accept, connect
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.wire.acl import refusal, sign
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from rmqha.wire.ha_proof import HaClaim

MAGIC = b"rqHA"
MAX_GREETING_BYTES = 16 * 1024
ANSWER_TIMEOUT_MS = 3_000
VERSION = "1"


class Welcome(NamedTuple):
    """`first`: bytes of the HA stream that have been read. `refused`: why the connection must go, "" if it may stay.
    `claim`: what the peer has proved of itself."""

    stream: trio.abc.Stream
    first: bytes = b""
    refused: str = ""
    claim: HaClaim | None = None


class HaGuard:
    """`security` is what the process has; `mode` is haSecurity."""

    def __init__(self, mode: str, security: Security) -> None:
        self._enforcing = mode == "enforcing"
        self._security = security if mode != "disabled" else Security()

    async def dial(self, stream: trio.SocketStream, address: str) -> trio.abc.Stream:
        """A slave's end, ready for the HA handshake. Raises UnreachableError; the connection is closed then."""
        if not self._enforcing:
            return stream
        secured = await connect(stream, self._security.client_tls, address)
        if self._security.credentials is None:
            return secured
        greeting = Command(RequestCode.RMQHA_HA_GREETING, {"version": VERSION})
        sign(greeting, self._security.credentials)
        reason = "no answer to the signed greeting; see its haSecurity"
        try:
            with trio.move_on_after(ANSWER_TIMEOUT_MS / 1000):
                await secured.send_all(MAGIC + encode_frame(greeting))
                answer = await _command(secured, b"")
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    return secured
                if answer is not None:
                    reason = answer.remark or f"it answered {answer.code}"
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            reason = f"{reason} ({error})"
        await trio.aclose_forcefully(secured)
        raise UnreachableError(f"{address} takes no HA connection from here: {reason}")

    async def welcome(self, stream: trio.SocketStream, host: str) -> Welcome:
        """A master's end. The caller bounds the time and closes `stream`. Raises trio.BrokenResourceError."""
        tls = self._security.server_tls
        secured = await accept(stream, None if tls is None else dataclasses.replace(tls, only=self._enforcing))
        if secured is None:
            return Welcome(stream, refused="no TLS, which haSecurity=enforcing asks for")
        if self._security.accounts is None:
            return Welcome(secured)
        first = b""
        while len(first) < len(MAGIC) and MAGIC.startswith(first):
            more = await secured.receive_some(len(MAGIC) - len(first))
            if not more:
                return Welcome(secured, refused="nothing was said")
            first += more
        if first != MAGIC:
            return Welcome(secured, bytes(first), "no signed greeting" if self._enforcing else "")
        try:
            greeting = await _command(secured, b"")
        except RemoteProtocolError as error:
            return Welcome(secured, refused=str(error))
        if greeting is None or greeting.code != RequestCode.RMQHA_HA_GREETING:
            return Welcome(secured, refused="no signed greeting")
        self._security.accounts.refresh()
        refused = refusal(self._security.accounts.access, greeting, host)
        code = ResponseCode.NO_PERMISSION if refused else ResponseCode.SUCCESS
        await secured.send_all(encode_frame(greeting.reply(code, {"version": VERSION}, remark=refused or None)))
        return Welcome(secured, refused=refused)


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
