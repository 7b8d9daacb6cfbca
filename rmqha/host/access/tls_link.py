"""TLS of one connection as a codec between a socket's bytes and clear ones, so that its reading and writing have their
place in the turns of `rmqha.host.net.poller` as those of a plain socket. (trio's SSLStream reads one TLS record for
each call of a task of its own: clients that write each request by itself got one request into some turns of the loop.)
"""

from __future__ import annotations

import ssl

import trio

_READ_BYTES = 64 * 1024


class TlsLink:
    """The server's end. Errors of the other one's TLS are ssl.SSLError, an OSError."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
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

    def decrypt(self, data: bytes) -> bytes:
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

    def encrypt(self, data: bytes) -> bytes:
        """For the socket, in this order: the peer takes no later piece before an earlier one."""
        if data:
            self._object.write(data)
        return self._outgoing.read()
