"""Dial and listen on loopback."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from rmqha.host.net import network
from rmqha.model.error import UnreachableError, UsageError


async def test_listen_dial_and_options() -> None:
    [listener] = await network.listen("127.0.0.1:0")
    async with listener:
        port = network.local_port(listener)
        assert listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        async with await network.dial(f"127.0.0.1:{port}") as client, await listener.accept() as server:
            network.tune(server)
            for stream in (client, server):
                assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
                assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert network.peer_name(client) == f"127.0.0.1:{port}"
            await client.send_all(b"x")
            assert await server.receive_some() == b"x"
        assert network.peer_name(client) == "unknown:0"


async def test_a_port_in_use_is_one_sentence() -> None:
    [listener] = await network.listen("127.0.0.1:0")
    async with listener:
        port = network.local_port(listener)
        with pytest.raises(UsageError, match=f"port {port} in use on 127.0.0.1: stop the process") as caught:
            await network.listen(f"127.0.0.1:{port}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", ":80"])
async def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        await network.listen(address)


async def test_an_address_of_another_machine() -> None:
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0: .*choose an address of this machine"):
        await network.listen("192.0.2.1:0")


class OneName(trio.abc.HostnameResolver):
    """Every name stands for an IPv6 address that is none of this machine's, and loopback."""

    async def getaddrinfo(
        self, host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        if host == "127.0.0.1":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, int(port)))]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", int(port), 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port))),
        ]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        raise NotImplementedError


async def test_a_name_with_an_ipv6_address_that_this_machine_lacks() -> None:
    """As localhost in a container without IPv6, whose /etc/hosts has ::1 all the same."""
    trio.socket.set_custom_hostname_resolver(OneName())
    [listener] = await network.listen("here:0")
    async with listener:
        assert listener.socket.getsockname()[0] == "127.0.0.1"


async def test_nobody_listens() -> None:
    [listener] = await network.listen("127.0.0.1:0")
    port = network.local_port(listener)
    await listener.aclose()
    with pytest.raises(UnreachableError, match=f"cannot connect to 127.0.0.1:{port}: Connection refused"):
        await network.dial(f"127.0.0.1:{port}")


async def test_nobody_accepts() -> None:
    """A backlog that is full leaves the dialer without an answer."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            refusals: list[str] = []

            async def try_dial() -> None:
                try:
                    (await network.dial(address, 300)).socket.close()
                except UnreachableError as error:
                    refusals.append(str(error))

            for _ in range(8):
                nursery.start_soon(try_dial)
        assert f"{address} did not answer a connection within 300 ms" in refusals


async def test_dialing_nonsense() -> None:
    with pytest.raises(UnreachableError, match="not an address"):
        await network.dial("nonsense")
