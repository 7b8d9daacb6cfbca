"""TLS of one connection as a codec between a socket's bytes and clear ones, so that its reading and writing have their
place in the turns of `rmqha.host.net.poller` as those of a plain socket, and as a stream for who reads in a task of its
own. (trio's SSLStream reads one TLS record for each call, and takes several turns of the loop for it: of a client that
writes each request by itself a busy server got one request into some turns, and a busy slave one message.)
"""

from __future__ import annotations

import contextlib
import os
import ssl

import trio

_READ_BYTES = 64 * 1024
_ENCRYPT_BYTES = 128 * 1024
"""Encrypted at a time where somebody waits for the socket anyway."""


class TlsLink:
    """Either end. Errors of the other one's TLS are ssl.SSLError, an OSError."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self.is_over = False
        """The peer has said that it will send nothing more."""

    async def shake_hands(self, stream: trio.SocketStream) -> None:
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

    def decrypt(self, data: bytes | memoryview) -> bytes:
        """All clear bytes that there are now; with the handshake's end some may have come before `data`."""
        self._incoming.write(data)
        clear = []
        try:
            while piece := self._object.read(_READ_BYTES):
                clear.append(piece)
        except ssl.SSLWantReadError:
            return b"".join(clear)
        self.is_over = True
        return b"".join(clear)

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """For the socket, in this order: the peer takes no later piece before an earlier one."""
        if data:
            self._object.write(data)
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """For the socket, last: nothing more will be sent. b"" if the connection cannot say so any more."""
        with contextlib.suppress(OSError):
            self._object.unwrap()
        return self._outgoing.read()


class TlsStream(trio.abc.Stream):
    """A connection after its handshake, for one task that reads and one that writes. `socket` and `link` are for who
    writes by itself."""

    def __init__(self, plain: trio.SocketStream, link: TlsLink) -> None:
        self.socket, self.link = plain.socket, link
        self._plain = plain
        self._clear = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as view:
            for begin in range(0, len(view), _ENCRYPT_BYTES):
                await self.send_encrypted(self.link.encrypt(view[begin : begin + _ENCRYPT_BYTES]))

    async def send_encrypted(self, data: bytes) -> None:
        """Send what `link` has encrypted."""
        await self._plain.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._plain.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._clear:
            self._clear = await self.receive_into(memoryview(bytearray(_READ_BYTES)))
        size_bytes = len(self._clear) if max_bytes is None else max_bytes
        clear, self._clear = self._clear[:size_bytes], self._clear[size_bytes:]
        return clear

    async def receive_into(self, encrypted: memoryview) -> bytes:
        """All that has come, b"" at the end; what the socket has goes through this buffer."""
        clear, self._clear = self._clear, b""
        try:
            clear = clear or self.link.decrypt(b"")
            while not clear and not self.link.is_over:
                size_bytes = await self.socket.recv_into(encrypted)
                if not size_bytes:
                    break
                clear = self.link.decrypt(encrypted[:size_bytes])
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        return clear

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0 and (last := self.link.farewell()):
            with contextlib.suppress(OSError):
                os.write(self.socket.fileno(), last)
        await self._plain.aclose()
