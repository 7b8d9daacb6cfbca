"""Dial and listen on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqha.host.net import network
from rmqha.model.error import UnreachableError, UsageError
from tests.support.patience import HANG_S


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


class SilentNameServers:
    """The system while no name server answers: a lookup waits until `answer` is set."""

    def __init__(self) -> None:
        self.answer = Event()
        self.asked: list[str] = []

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **_: Any) -> list[Any]:
        if arguments[-1] & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        name = host.decode()
        self.asked.append(name)
        self.answer.wait(HANG_S)
        if name == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNameServers]:
    found = SilentNameServers()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.answer.set()


@pytest.mark.usefixtures("silent")
async def test_a_name_that_nobody_answers_keeps_few_threads_and_none_of_the_disks(autojump_clock: MockClock) -> None:
    """Dials are given up after 3 s, and come again. A lookup that is 5 s old may have been lost: another begins."""
    lookups = network.NameLookups()
    trio.socket.set_custom_hostname_resolver(lookups)
    for dial_count, thread_count in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        with pytest.raises(UnreachableError, match=r"controller\.far:1 did not answer a connection within 3000 ms"):
            await network.dial("controller.far:1")
        assert lookups._threads.borrowed_tokens == thread_count, dial_count
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0


async def test_whoever_asks_for_the_same_name_has_the_same_answer(silent: SilentNameServers) -> None:
    trio.socket.set_custom_hostname_resolver(network.NameLookups())
    found: list[tuple[str, ...]] = []

    async def ask(name: str) -> None:
        found.append(await network.addresses_of(name))

    async with trio.open_nursery() as nursery:
        for name in ("here", "here", "nobody", "nobody"):
            nursery.start_soon(ask, name)
        await trio.testing.wait_all_tasks_blocked()
        silent.answer.set()
    assert sorted(found) == [(), (), ("127.0.0.1",), ("127.0.0.1",)]
    assert sorted(silent.asked) == ["here", "nobody"]
    assert await network.addresses_of("here") == ("127.0.0.1",)
    assert sorted(silent.asked) == ["here", "here", "nobody"], "an answer is not kept"


async def test_names_that_wait_for_a_thread_are_not_asked_again(
    silent: SilentNameServers, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dial left one more question behind, and a name that the system knows waited for all of them."""
    monkeypatch.setattr(network, "LOOKUP_COUNT", 1)
    lookups = network.NameLookups()
    trio.socket.set_custom_hostname_resolver(lookups)
    for _ in range(5):
        for name in ("one.far:1", "other.far:1"):
            with pytest.raises(UnreachableError):
                await network.dial(name)
    waiting = lookups._threads.statistics().tasks_waiting
    assert waiting <= 2, f"{waiting} questions wait"
    silent.answer.set()


async def test_a_lookup_that_gets_no_thread_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with few processes: it ended the server."""
    trio.socket.set_custom_hostname_resolver(network.NameLookups())

    async def no_thread(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    with pytest.raises(UnreachableError, match=r"controller\.far:1: no thread for the lookup of its name"):
        await network.dial("controller.far:1")


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
