"""TLS over a socket whose bytes go through one's own hands: either end, in pieces, at its end, and broken."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing
import trustme

from rmqha.host.access.tls_link import DECRYPT_BYTES, ENCRYPT_BYTES, TlsLink, TlsOutput, TlsStream
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
                nursery.start_soon(links[0].do_handshake, near)
                nursery.start_soon(links[1].do_handshake, far)
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


async def test_all_that_has_come_is_read_whatever_it_is_cut_into() -> None:
    """Records small and large, cut anywhere."""
    draws = Random(1)
    async with pair() as (near, far):
        assert far.link.decrypt(b"") == b""
        for _ in range(100):
            clear = [draws.randbytes(draws.choice([1, 300, 1500, 20_000])) for _ in range(draws.randint(1, 6))]
            sealed = b"".join(map(near.link.encrypt, clear))
            cut = draws.randrange(len(sealed) + 1)
            first = far.link.decrypt(sealed[:cut])
            assert b"".join(clear).startswith(first)
            assert first + far.link.decrypt(sealed[cut:]) == b"".join(clear)
        sealed = near.link.encrypt(b"last") + near.link.close_notify()
        assert far.link.decrypt(sealed) == b"last" and far.link.is_over


class NotedMemory:
    """Memory of OpenSSL; notes how much is put into it at once."""

    def __init__(self, memory: ssl.MemoryBIO) -> None:
        self._memory = memory
        self.most_bytes = 0

    def write(self, data: bytes) -> int:
        self.most_bytes = max(self.most_bytes, len(data))
        return self._memory.write(data)

    @property
    def pending(self) -> int:
        return self._memory.pending


async def test_openssl_is_given_a_little_at_a_time() -> None:
    """It keeps for the life of a connection the memory that the most of it has taken: a hundred that had sent a large
    body each kept 30 MiB."""
    async with pair() as (near, far):
        noted = NotedMemory(far.link._incoming)
        far.link._incoming = noted  # type: ignore[assignment]
        sealed = b"".join(TlsOutput(near.link).pieces(BODY))
        assert far.link.decrypt(sealed) == BODY
        assert noted.most_bytes <= DECRYPT_BYTES


async def test_no_more_is_encrypted_than_the_socket_takes() -> None:
    """Of who does not read his answers a megabyte was kept encrypted, and another one by OpenSSL."""
    async with pair() as (near, far):
        output, data, got = TlsOutput(near.link), BODY * 16, b""
        handle = near.socket.fileno()
        begun_bytes = taken_bytes = 0
        while (more := output.write(handle, data[begun_bytes:])) != (0, 0):  # the system moves some on meanwhile
            begun_bytes, taken_bytes = begun_bytes + more[0], taken_bytes + more[1]
        assert begun_bytes < len(data) and 0 < len(output.sealed) < 2 * ENCRYPT_BYTES
        assert taken_bytes == begun_bytes - output.clear_bytes
        async with trio.open_nursery() as nursery:

            async def rest() -> None:
                for piece in output.pieces(data[begun_bytes:]):
                    await near.send_encrypted(piece)

            nursery.start_soon(rest)
            while len(got) < len(data):
                got += await far.receive_some()
        assert got == data and (output.sealed, output.clear_bytes) == (b"", 0)
        assert output.write(handle, b"last") == (4, 4)
        assert await far.receive_some() == b"last"


class Late(trio.abc.Instrument):
    """Sends `data` when the tasks of a turn of the loop have run, once it is asked to."""

    def __init__(self, sender: TlsStream, data: bytes) -> None:
        self._sender, self._data = sender, data
        self.is_due = False

    def before_io_wait(self, timeout: float) -> None:
        if self.is_due:
            self.is_due = False
            os.write(self._sender.socket.fileno(), self._sender.link.encrypt(self._data))


async def test_what_comes_until_the_reader_has_his_turn_is_read_in_it() -> None:
    """An acknowledgement waited for two turns of a busy loop: what had come before it was read in the first one and
    lay there until the second."""
    async with pair() as (near, far):
        late = Late(near, b", second")
        trio.lowlevel.add_instrument(late)
        await near.send_all(b"first")
        late.is_due = True
        assert await far.receive_into(memoryview(bytearray(4096))) == b"first, second"
        trio.lowlevel.remove_instrument(late)


async def test_the_end_is_said_and_heard() -> None:
    async with pair() as (near, far):
        await near.send_all(b"last")
        await near.aclose()
        assert await far.receive_some() == b"last"
        assert await far.receive_some() == b"" and far.link.is_over
        assert far.link.close_notify() and not far.link.close_notify()


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
