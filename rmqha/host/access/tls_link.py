"""TLS of one connection: a codec between encrypted and clear bytes, and a trio stream over it.

With the codec, `rmqha.host.net.poller` reads and writes TLS connections in its turns, as plain sockets. (trio's
SSLStream reads one TLS record per call, and each call takes several turns of the event loop: a busy server handled one
request in some turns, and a busy slave one message.)
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from hashlib import sha256

import trio

from rmqha.host.net import network

_READ_BYTES = 64 * 1024
_RECORD_BYTES = 16 * 1024
DECRYPT_BYTES = 32 * 1024
ENCRYPT_BYTES = 128 * 1024
"""Most bytes that OpenSSL gets at a time: it never frees a connection's buffers before the end."""


class TlsLink:
    """Codec of either end of a connection. Errors in the peer's TLS are ssl.SSLError, an OSError."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, certificate_digest: bytes = b"") -> None:
        """`certificate_digest`: SHA-256 of the certificate of this end, if it is the server."""
        self._certificate_digest = certificate_digest
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.is_over = False
        """True if the peer has sent close_notify: it will send nothing more."""

    async def do_handshake(self, stream: trio.SocketStream) -> None:
        """Perform the handshake. Raises OSError and trio.BrokenResourceError."""
        while True:
            try:
                self._object.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            finally:
                data_out = self._outgoing.read()  # the alert too if the handshake fails
                if data_out:
                    await stream.send_all(data_out)
            if is_done:
                return
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("the handshake was not finished")
            self._incoming.write(data)

    def peer_certificate(self) -> bytes | None:
        """DER of the peer's certificate; None if it sent none."""
        return self._object.getpeercert(binary_form=True)

    @property
    def binding(self) -> bytes:
        """Channel binding: SHA-256 of the server's certificate, which both ends know. A man in the middle of two
        connections sends another certificate."""
        if not self._certificate_digest and (shown := self.peer_certificate()):
            self._certificate_digest = sha256(shown).digest()
        return self._certificate_digest

    def decrypt(self, data: bytes | memoryview) -> bytes:
        """Decrypt bytes of the socket; returns all clear bytes, also those that came before `data`, with the end of the
        handshake."""
        clear = list[bytes]()
        if len(data) <= DECRYPT_BYTES:
            self._decrypt(data, clear)
        else:
            with memoryview(data) as view:
                for begin in range(0, len(view), DECRYPT_BYTES):
                    if not self.is_over:
                        self._decrypt(view[begin : begin + DECRYPT_BYTES], clear)
        return b"".join(clear)

    def _decrypt(self, data: bytes | memoryview, clear: list[bytes]) -> None:
        incoming, reader = self._incoming, self._object
        incoming.write(data)
        try:
            while piece := reader.read(_RECORD_BYTES):
                clear.append(piece)
                if not incoming.pending and not reader.pending():
                    return  # SSLWantReadError would cost as much as a small record
        except ssl.SSLWantReadError:
            return
        self.is_over = True

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Encrypt ENCRYPT_BYTES at most. The results must be written to the socket in the order of the calls."""
        if data:
            self._object.write(data)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Encrypted close_notify, the last bytes for the socket; b"" if the connection is broken."""
        with contextlib.suppress(OSError):
            self._object.unwrap()
        return self._outgoing.read()


class TlsOutput:
    """Output of a connection: clear bytes are encrypted only as fast as the socket takes them. So a peer that does not
    read costs no encryption, and its bytes are not in memory twice."""

    def __init__(self, link: TlsLink) -> None:
        self._link = link
        self.sealed = b""
        """Encrypted bytes that the socket has not taken yet."""
        self.clear_bytes = 0
        """Number of clear bytes for which `sealed` counts."""

    def write(self, handle: int, data: bytes) -> tuple[int, int]:
        """Write what the socket takes now; returns the number of bytes of `data` that were encrypted, and the number of
        clear bytes that the socket has taken. Raises OSError."""
        begun_bytes = taken_bytes = 0
        with memoryview(data) as view:
            while self.sealed or begun_bytes < len(view):
                if not self.sealed:
                    piece = view[begun_bytes : begun_bytes + ENCRYPT_BYTES]
                    self.sealed, self.clear_bytes = self._link.encrypt(piece), len(piece)
                    begun_bytes += len(piece)
                self.sealed = self.sealed[network.write_now(handle, self.sealed) :]
                left_bytes = min(len(self.sealed), self.clear_bytes)
                taken_bytes, self.clear_bytes = taken_bytes + self.clear_bytes - left_bytes, left_bytes
                if self.sealed:
                    break
        return begun_bytes, taken_bytes

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Encrypted pieces in the order in which they must be written: first `sealed`, then `data`, encrypted one by
        one."""
        if sealed := self.sealed:
            self.sealed, self.clear_bytes = b"", 0
            yield sealed
        for begin in range(0, len(data), ENCRYPT_BYTES):
            yield self._link.encrypt(memoryview(data)[begin : begin + ENCRYPT_BYTES])


class TlsStream(trio.abc.Stream):
    """Stream of a connection after its handshake, for one task that reads and one that writes. `socket` and `link` are
    for callers that write directly."""

    def __init__(self, plain: trio.SocketStream, link: TlsLink) -> None:
        self.socket, self.link = plain.socket, link
        self._plain = plain
        self._clear = b""
        self._is_begun = False
        """True once the clear bytes that came with the end of the handshake were read."""
        self._encrypted: memoryview | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        await self.send_soon(data)

    async def send_soon(self, data: bytes | bytearray | memoryview) -> None:
        """Send as `send_all` does, but let other tasks run only when the socket takes no more."""
        with memoryview(data) as view:
            for begin in range(0, len(view), ENCRYPT_BYTES):
                if rest := self.write_now(view[begin : begin + ENCRYPT_BYTES]):
                    await self.send_encrypted(rest)

    def write_now(self, data: bytes | memoryview) -> bytes:
        """Encrypt `data` and write what the socket takes without waiting; returns the encrypted rest, which the caller
        must send by `send_encrypted`. Raises trio.BrokenResourceError."""
        sealed = self.link.encrypt(data)
        try:
            return sealed[os.write(self.socket.fileno(), sealed) :]
        except BlockingIOError:
            return sealed
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_encrypted(self, data: bytes) -> None:
        """Send bytes that `link` has encrypted."""
        await self._plain.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._clear:
            if self._encrypted is None:
                self._encrypted = memoryview(bytearray(_READ_BYTES))
            self._clear = await self.receive_into(self._encrypted)
        size_bytes = len(self._clear) if max_bytes is None else max_bytes
        clear, self._clear = self._clear[:size_bytes], self._clear[size_bytes:]
        return clear

    async def receive_into(self, encrypted: memoryview) -> bytes:
        """All clear bytes that have come, b"" at the end. `encrypted`: buffer for the socket's bytes.

        It waits first and then reads. trio's `recv` reads first and then lets all other tasks run: meanwhile the bytes
        that it has read are delayed, and later ones wait for the next call."""
        clear, self._clear = self._clear, b""
        try:
            if not self._is_begun and not clear:
                self._is_begun, clear = True, self.link.decrypt(b"")
            while not clear and not self.link.is_over:
                await trio.lowlevel.wait_readable(self.socket)
                try:
                    size_bytes = os.readv(self.socket.fileno(), [encrypted])
                except BlockingIOError:
                    continue
                if not size_bytes:
                    break
                clear = self.link.decrypt(encrypted[:size_bytes])
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        return clear

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0 and (last := self.link.close_notify()):
            with contextlib.suppress(OSError):
                os.write(self.socket.fileno(), last)
        await self._plain.aclose()
