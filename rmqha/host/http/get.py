"""A GET request to a server's httpPort."""

from __future__ import annotations

import h11
import trio

from rmqha.host.net.network import dial
from rmqha.model.error import RemoteProtocolError, UnreachableError

READ_BYTES = 64 * 1024


async def http_get(address: str, path: str, *, timeout_s: float, limit_bytes: int) -> bytes:
    """Body of the answer, whatever its status: that of 503 has the reason. Raises UnreachableError if the answer is not
    complete in time, RemoteProtocolError for bytes that are not HTTP, or more than `limit_bytes`."""
    try:
        with trio.fail_after(timeout_s):
            stream = await dial(address, round(timeout_s * 1000) + 1)
            try:
                return await _get(stream, address, path, limit_bytes)
            finally:
                await trio.aclose_forcefully(stream)
    except trio.TooSlowError:
        raise UnreachableError(f"http://{address}{path} did not answer within {timeout_s:g} s") from None
    except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
        raise RemoteProtocolError(f"http://{address}{path} does not speak HTTP: {error}") from None


async def _get(stream: trio.SocketStream, address: str, path: str, limit_bytes: int) -> bytes:
    http = h11.Connection(h11.CLIENT)
    request = h11.Request(method="GET", target=path, headers=[("Host", address), ("Connection", "close")])
    await stream.send_all((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(READ_BYTES)))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > limit_bytes:
                raise RemoteProtocolError(f"http://{address}{path} is longer than {limit_bytes} bytes")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return bytes(body)
