"""TLS over a socket whose bytes go through one's own hands: either end, in pieces, at its end, and broken."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
import trustme

from rmqha.host.access.tls_link import TlsLink, TlsStream
from tests.support.patience import HANG_S

BODY = bytes(range(256)) * 4096
"""More than a TLS record, and than is encrypted at a time."""


@asynccontextmanager
async def pair(certificate: str = "127.0.0.1") -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert(certificate).configure_cert(server)
    authority.configure_trust(client)
    client.check_hostname = False
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    far = await listener.accept()
    links = TlsLink(client, server_side=False), TlsLink(server, server_side=True)
    async with listener, near, far:
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(links[0].shake_hands, near)
                nursery.start_soon(links[1].shake_hands, far)
            yield TlsStream(near, links[0]), TlsStream(far, links[1])


async def test_what_one_end_sends_the_other_gets_both_ways() -> None:
    async with pair() as ends:
        for sender, receiver in (ends, ends[::-1]):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sender.send_all, BODY)
                got = b""
                while len(got) < len(BODY):
                    got += await receiver.receive_some(10_000)
            assert got == BODY


async def test_a_read_of_some_bytes_leaves_the_others() -> None:
    async with pair() as (near, far):
        await near.send_all(b"first, second")
        assert await far.receive_some(5) == b"first"
        assert await far.receive_into(memoryview(bytearray(16))) == b", second"


async def test_the_end_is_said_and_heard() -> None:
    async with pair() as (near, far):
        await near.send_all(b"last")
        await near.aclose()
        assert await far.receive_some() == b"last"
        assert await far.receive_some() == b"" and far.link.is_over
        assert far.link.farewell() and not far.link.farewell()


async def test_a_socket_that_just_ends_is_an_end_too() -> None:
    async with pair() as (near, far):
        near.socket.shutdown(trio.socket.SHUT_WR)
        assert await far.receive_some() == b"" and not far.link.is_over


async def test_bytes_that_are_no_tls_are_a_broken_stream() -> None:
    async with pair() as (near, far):
        os.write(near.socket.fileno(), b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await far.receive_some()


async def test_the_certificate_of_the_other_end_is_known() -> None:
    async with pair() as (near, far):
        shown = near.link.peer_certificate()
        assert shown is not None and ssl.DER_cert_to_PEM_cert(shown).startswith("-----BEGIN CERTIFICATE")
        assert far.link.peer_certificate() is None
