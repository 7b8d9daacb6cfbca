"""TLS of one connection as a codec between a socket's bytes and clear ones, so that its reading and writing have their
place in the turns of `rmqha.host.net.poller` as those of a plain socket, and as a stream for who reads in a task of its
own. (trio's SSLStream reads one TLS record for each call, and takes several turns of the loop for it: of a client that
writes each request by itself a busy server got one request into some turns, and a busy slave one message.)
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
"""Given to OpenSSL at a time: what it has once needed memory for it keeps as long as the connection lasts."""


class TlsLink:
    """Either end of a TLS connection. Errors of the other one's TLS are ssl.SSLError, an OSError."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, certificate_digest: bytes = b"") -> None:
        """`certificate_digest`: SHA-256 of the certificate that a server shows."""
        self._certificate_digest = certificate_digest
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.is_over = False
        """The peer has said that it will send nothing more."""

    async def do_handshake(self, stream: trio.SocketStream) -> None:
        """Raises OSError and trio.BrokenResourceError."""
        while True:
            try:
                self._object.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                is_done = False
            finally:
                told = self._outgoing.read()  # its alert too, where it fails
                if told:
                    await stream.send_all(told)
            if is_done:
                return
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise trio.BrokenResourceError("the handshake was not finished")
            self._incoming.write(data)

    def peer_certificate(self) -> bytes | None:
        """DER of the certificate that the other end has shown."""
        return self._object.getpeercert(binary_form=True)

    @property
    def binding(self) -> bytes:
        """SHA-256 of the certificate that the server has shown, by which both ends know this connection: whoever stands
        between two of them shows another one."""
        if not self._certificate_digest and (shown := self.peer_certificate()):
            self._certificate_digest = sha256(shown).digest()
        return self._certificate_digest

    def decrypt(self, data: bytes | memoryview) -> bytes:
        """All clear bytes that there are now; with the handshake's end some may have come before `data`."""
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
                    return  # to be told so by an exception takes as long as a small record
        except ssl.SSLWantReadError:
            return
        self.is_over = True

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Encrypt at most ENCRYPT_BYTES for the socket, in this order: the peer takes no later piece before an earlier
        one."""
        if data:
            self._object.write(data)
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Last bytes for the socket: nothing more will be sent. b"" if the connection cannot say so any more."""
        with contextlib.suppress(OSError):
            self._object.unwrap()
        return self._outgoing.read()


class TlsOutput:
    """Clear bytes on their way to a socket, encrypted only as far as it takes them: nobody works for who does not
    read, nor keeps anything twice for him."""

    def __init__(self, link: TlsLink) -> None:
        self._link = link
        self.sealed = b""
        """Encrypted, and not taken by the socket."""
        self.clear_bytes = 0
        """Clear bytes that `sealed` counts as."""

    def write(self, handle: int, data: bytes) -> tuple[int, int]:
        """Write what the socket takes now: how many bytes of `data` have been encrypted, and how many clear bytes have
        been taken. Raises OSError."""
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
        """Encrypted pieces to write in this order: what is left, then those of `data`, each when it is asked for."""
        if sealed := self.sealed:
            self.sealed, self.clear_bytes = b"", 0
            yield sealed
        for begin in range(0, len(data), ENCRYPT_BYTES):
            yield self._link.encrypt(memoryview(data)[begin : begin + ENCRYPT_BYTES])


class TlsStream(trio.abc.Stream):
    """A connection after its handshake, for one task that reads and one that writes. `socket` and `link` are for who
    writes by itself."""

    def __init__(self, plain: trio.SocketStream, link: TlsLink) -> None:
        self.socket, self.link = plain.socket, link
        self._plain = plain
        self._clear = b""
        self._is_begun = False
        """The clear bytes that came with the handshake's end have been read."""
        self._encrypted: memoryview | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        await self.send_soon(data)

    async def send_soon(self, data: bytes | bytearray | memoryview) -> None:
        """Send as `send_all` does, without giving others a turn as long as the socket takes it."""
        with memoryview(data) as view:
            for begin in range(0, len(view), ENCRYPT_BYTES):
                if rest := self.write_now(view[begin : begin + ENCRYPT_BYTES]):
                    await self.send_encrypted(rest)

    def write_now(self, data: bytes | memoryview) -> bytes:
        """Encrypt `data` and write what the socket takes without waiting; the rest, encrypted, is to follow by
        `send_encrypted`. Raises trio.BrokenResourceError."""
        sealed = self.link.encrypt(data)
        try:
            return sealed[os.write(self.socket.fileno(), sealed) :]
        except BlockingIOError:
            return sealed
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_encrypted(self, data: bytes) -> None:
        """Send what `link` has encrypted."""
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
        """All that has come, b"" at the end; what the socket has goes through this buffer.

        It waits first and reads then: trio's `recv` reads first and then lets everybody else have a turn, while what it
        has read gets old, and what came meanwhile has to wait for the next one."""
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
