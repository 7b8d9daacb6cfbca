"""HA connections of the shell: their ends in every order."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import ssl
import struct
from collections.abc import Callable
from threading import Event
from typing import cast

import pytest
import trio
import trio.testing
import trustme

from rmqha.broker.replication import ha_service
from rmqha.broker.replication.ha_authenticator import HaAuthenticator
from rmqha.broker.replication.ha_service import DIRECT_WRITE_BYTES, HaService
from rmqha.broker.replication.replica_driver import ReplicaDriver
from rmqha.host.access.security import Security, ServerTls
from rmqha.host.access.tls_link import TlsStream
from rmqha.host.net import network
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.statistics import Statistics
from rmqha.model.error import BrokenInvariantError
from rmqha.model.offset import BrokerId, PhyOffset
from rmqha.port import Tracer
from rmqha.wire.auth.ha_proof import HaClaim
from rmqha.wire.ha_stream import SlaveHandshake
from tests.support.patience import HANG_S
from tests.support.tracer import RecordingTracer, SilentTracer


class Bytes:
    """A log of which `view` shows the bytes themselves, as a mapped file's does."""

    def __init__(self, size_bytes: int) -> None:
        self.content = bytearray(b"L" * size_bytes)
        self.load: Callable[[], None] | None = None
        """Reads the log into memory; None: it is there."""

    @property
    def max_phy_offset(self) -> PhyOffset:
        return PhyOffset(len(self.content))

    def view(self, phy_offset: PhyOffset, limit_bytes: int) -> memoryview:
        return memoryview(self.content)[phy_offset : phy_offset + limit_bytes]

    def log_loader(self, phy_offset: PhyOffset, size_bytes: int) -> Callable[[], None] | None:
        assert phy_offset + size_bytes <= len(self.content)
        return self.load


class Driver:
    """Takes down what a replica would be told."""

    def __init__(self, store: Bytes | None = None) -> None:
        self.told: list[tuple[str, int]] = []
        self.store = store or Bytes(0)

    def ha_accepted(self, conn_id: int, peer: str, claim: HaClaim | None) -> None:
        assert peer
        self.told.append(("accepted", conn_id))

    def ha_sent(self, conn_id: int) -> None:
        self.told.append(("sent", conn_id))

    def ha_opened(self, conn_id: int) -> None:
        self.told.append(("opened", conn_id))

    def ha_closed(self, conn_id: int) -> None:
        self.told.append(("closed", conn_id))

    def ha_received(self, conn_id: int, data: bytes) -> None:
        self.told.append(("received", conn_id))


async def test_a_connection_closed_before_its_dial_began_is_only_forgotten() -> None:
    """A slave that was told of two masters in one step opens, closes and opens again before any task runs."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    driver = Driver()
    async with trio.open_nursery() as nursery:
        service = HaService(cast(ReplicaDriver, driver), SilentTracer(), nursery)
        service.open(-1, address)
        service.close(-1)
        service.open(-2, address)
        stream = await listeners[0].accept()
        other = await listeners[0].accept()
        with trio.fail_after(HANG_S):
            while not driver.told:
                await trio.lowlevel.checkpoint()
        assert driver.told == [("opened", -2)]
        nursery.cancel_scope.cancel()
    for item in (stream, other, *listeners):
        await item.aclose()


async def held_open(stream: trio.SocketStream | TlsStream) -> None:
    """Close it when the nursery ends."""
    async with stream:
        await trio.sleep_forever()


async def connected(nursery: trio.Nursery, driver: Driver) -> tuple[HaService, trio.SocketStream]:
    """A service that has accepted a slave as connection 1, and the slave's end."""
    service, slave = await met(nursery, driver, None)
    assert isinstance(slave, trio.SocketStream)
    return service, slave


async def met(
    nursery: trio.Nursery, driver: Driver, keys: Security | None, tracer: Tracer | None = None
) -> tuple[HaService, trio.SocketStream | TlsStream]:
    """The same, by TLS if there are keys."""
    authenticator = None if keys is None else HaAuthenticator("enforcing", keys)
    service = HaService(cast(ReplicaDriver, driver), tracer or SilentTracer(), nursery, authenticator)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    plain = await network.dial(address, 1000)
    nursery.start_soon(service.accept, await listeners[0].accept())
    await listeners[0].aclose()
    slave = plain if authenticator is None else await authenticator.dial(plain, address)
    await slave.send_all(SlaveHandshake(BrokerId(2)).encode())
    with trio.fail_after(HANG_S):
        while ("accepted", 1) not in driver.told:
            await trio.lowlevel.checkpoint()
    return service, slave


def read_now(slave: trio.SocketStream | TlsStream) -> bytes:
    """All that has come, without giving another task a turn. Raises BlockingIOError."""
    data = os.read(slave.socket.fileno(), 1 << 20)
    return slave.link.decrypt(data) if isinstance(slave, TlsStream) else data


@pytest.fixture(params=["plain", "TLS"])
def keys(request: pytest.FixtureRequest) -> Security | None:
    return None if request.param == "plain" else tls_keys()


def tls_keys() -> Security:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    client.check_hostname = False
    return Security(ServerTls(server, only=True, certificate_digest=b""), client)


HEADER = b"H" * 36
LOG_BYTES = 16 * 1024 * 1024
"""More than the kernel takes at once."""


async def test_a_transfer_is_sent_whole_and_answered(keys: Security | None) -> None:
    driver = Driver(Bytes(LOG_BYTES))
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        service.send_log(1, HEADER, PhyOffset(100), LOG_BYTES - 100)
        service.send(1, b"next")
        got = bytearray()
        with trio.fail_after(HANG_S):
            while len(got) < len(HEADER) + LOG_BYTES - 100 + 4:
                got += await slave.receive_some()
        assert got == HEADER + b"L" * (LOG_BYTES - 100) + b"next"
        assert ("sent", 1) in driver.told
        nursery.cancel_scope.cancel()


async def test_a_transfer_takes_few_turns_of_the_loop(keys: Security | None) -> None:
    """Under a flood each takes tens of milliseconds, and senders wait for what is at the log's end."""
    driver = Driver(Bytes(1 << 20))
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        service.send_log(1, HEADER, PhyOffset(0), 1 << 20)
        got = bytearray()
        for turn_count in itertools.count():
            await trio.lowlevel.checkpoint()
            with contextlib.suppress(BlockingIOError):
                while True:
                    got += read_now(slave)
            if len(got) == len(HEADER) + (1 << 20):
                break
            assert turn_count < 6, f"{len(got)} bytes"
        nursery.cancel_scope.cancel()


async def test_bytes_that_are_cut_while_the_kernel_takes_them_are_not_sent() -> None:
    """The machine closes the connection, then cuts the log: zeros stand where bytes were sent from. Half of them are
    still to go, and the socket may have become writable in the same moment."""
    for turn in range(20):
        driver = Driver(Bytes(LOG_BYTES))
        async with trio.open_nursery() as nursery:
            service, slave = await connected(nursery, driver)
            nursery.start_soon(held_open, slave)
            service.send_log(1, HEADER, PhyOffset(0), LOG_BYTES)
            got = bytearray(await slave.receive_some(1 << 20))
            await trio.testing.wait_all_tasks_blocked()
            got += await slave.receive_some(1 << 22)
            if turn % 2:
                await trio.lowlevel.checkpoint()
            service.close(1)
            driver.store.content[:] = bytes(LOG_BYTES)
            with trio.fail_after(HANG_S):
                while more := await slave.receive_some(1 << 20):
                    got += more
            assert len(HEADER) < len(got) < LOG_BYTES
            assert got == HEADER + b"L" * (len(got) - len(HEADER))
            assert ("sent", 1) not in driver.told
            nursery.cancel_scope.cancel()


async def test_a_transfer_whose_bytes_were_removed_ends_the_connection(keys: Security | None) -> None:
    driver = Driver(Bytes(LOG_BYTES))
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        service.send_log(1, HEADER, PhyOffset(0), LOG_BYTES)
        await slave.receive_some(1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        driver.store.content.clear()
        with trio.fail_after(HANG_S):
            while await slave.receive_some(1 << 20):
                pass
            while ("closed", 1) not in driver.told:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_a_transfer_waits_for_the_disk_and_holds_up_nobody_else(keys: Security | None) -> None:
    """A slave that is far behind is sent what only the disk has."""
    store, disk_goes_on = Bytes(LOG_BYTES), Event()
    driver = Driver(store)

    def load() -> None:
        assert disk_goes_on.wait(HANG_S)
        store.load = None

    store.load = load
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        service.send_log(1, HEADER, PhyOffset(0), DIRECT_WRITE_BYTES)
        await trio.testing.wait_all_tasks_blocked()
        with contextlib.suppress(BlockingIOError):
            assert read_now(slave) == b""
        disk_goes_on.set()
        got = bytearray()
        with trio.fail_after(HANG_S):
            while len(got) < len(HEADER) + DIRECT_WRITE_BYTES:
                got += await slave.receive_some()
        assert got == HEADER + b"L" * DIRECT_WRITE_BYTES
        nursery.cancel_scope.cancel()


async def test_a_log_that_the_disk_cannot_read_ends_the_connection(keys: Security | None) -> None:
    """A look through the mapping would end the process."""
    store, tracer = Bytes(LOG_BYTES), RecordingTracer()
    driver = Driver(store)

    def load() -> None:
        raise OSError(errno.EIO, "Input/output error")

    store.load = load
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys, tracer)
        nursery.start_soon(held_open, slave)
        service.send_log(1, HEADER, PhyOffset(7), DIRECT_WRITE_BYTES)
        with trio.fail_after(HANG_S):
            while ("closed", 1) not in driver.told:
                await trio.lowlevel.checkpoint()
        (told,) = tracer.named("ha_broken")
        assert told["reason"] == "the log at 7 cannot be read: Input/output error"
        nursery.cancel_scope.cancel()


async def test_an_ack_leaves_at_once_and_what_the_kernel_does_not_take_follows_in_order(keys: Security | None) -> None:
    driver = Driver()
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        service.send(1, b"ack")
        assert read_now(slave) == b"ack", "no other task has run"
        much = b"".join(number.to_bytes(4, "big") for number in range(LOG_BYTES // 4))
        service.send(1, much)
        service.send(1, b"end")
        got = bytearray()
        with trio.fail_after(HANG_S):
            while len(got) < LOG_BYTES + 3:
                got += await slave.receive_some()
        assert got == much + b"end"
        nursery.cancel_scope.cancel()


async def test_records_of_tls_that_have_gathered_are_one_read() -> None:
    """A slave that is busy is told of all at once: each read costs a turn of the event loop."""
    driver = Driver()
    async with trio.open_nursery() as nursery:
        _, slave = await met(nursery, driver, tls_keys())
        assert isinstance(slave, TlsStream)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        driver.told.clear()
        for _ in range(100):
            os.write(slave.socket.fileno(), slave.link.encrypt(b"ack"))
        await trio.testing.wait_all_tasks_blocked()
        assert 1 <= len(driver.told) <= 3, "of 4 KiB each"
        nursery.cancel_scope.cancel()


async def test_the_newest_bytes_of_the_log_leave_at_once_and_in_order(keys: Security | None) -> None:
    """No writer is woken for them; what the kernel does not take follows, and so does what comes behind it."""
    piece_bytes = DIRECT_WRITE_BYTES - 100
    driver = Driver(Bytes(LOG_BYTES))
    driver.store.content[-piece_bytes:] = os.urandom(piece_bytes)
    piece = bytes(driver.store.content[-piece_bytes:])
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        service.send_log(1, HEADER, PhyOffset(LOG_BYTES - 100), 100)
        assert read_now(slave) == HEADER + piece[-100:], "no other task has run"
        assert driver.told[-1] == ("sent", 1)
        service.send_log(1, HEADER, PhyOffset(0), 100)
        with pytest.raises(BlockingIOError):
            read_now(slave)  # what is a copy waits for its turn
        count = 0
        await trio.testing.wait_all_tasks_blocked()
        while driver.told[-1] == ("sent", 1):
            driver.told.append(("next", count := count + 1))
            service.send_log(1, HEADER, PhyOffset(LOG_BYTES - piece_bytes), piece_bytes)
        service.send(1, b"end")
        expected = HEADER + b"L" * 100 + (HEADER + piece) * count + b"end"
        got = bytearray()
        with trio.fail_after(HANG_S):
            while len(got) < len(expected):
                got += await slave.receive_some()
        assert got == expected
        await trio.testing.wait_all_tasks_blocked()
        assert driver.told.count(("sent", 1)) == 2 + count
        nursery.cancel_scope.cancel()


async def test_news_wait_for_the_next_transfer_which_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ha_service, "FRAME_DELAY_S", 2 * HANG_S)
    driver = Driver(Bytes(200))
    async with trio.open_nursery() as nursery:
        service, slave = await connected(nursery, driver)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        service.send(1, b"first", may_wait=True)
        assert read_now(slave) == b"first", "after a pause they leave at once"
        service.send(1, b"second", may_wait=True)
        service.send(1, b"third", may_wait=True)
        service.send_log(1, HEADER, PhyOffset(100), 100)
        service.send(1, b"fourth", may_wait=True)
        service.send(1, b"answer")
        assert read_now(slave) == HEADER + b"L" * 100 + b"answer"
        nursery.cancel_scope.cancel()


async def test_news_of_a_transfer_wait_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load the next one is there in a millisecond or two: a frame between them would wake the slave for
    nothing."""
    monkeypatch.setattr(ha_service, "FRAME_DELAY_S", 2 * HANG_S)
    driver = Driver(Bytes(300))
    async with trio.open_nursery() as nursery:
        service, slave = await connected(nursery, driver)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        service.send_log(1, HEADER, PhyOffset(200), 100)
        service.send(1, b"acknowledged", may_wait=True)
        service.send_log(1, HEADER, PhyOffset(200), 100)
        assert read_now(slave) == 2 * (HEADER + b"L" * 100)
        nursery.cancel_scope.cancel()


async def test_news_that_nothing_follows_leave_soon_and_only_the_newest(keys: Security | None) -> None:
    driver = Driver()
    async with trio.open_nursery() as nursery:
        service, slave = await met(nursery, driver, keys)
        nursery.start_soon(held_open, slave)
        await trio.testing.wait_all_tasks_blocked()
        got = b""
        for number in range(50):
            service.send(1, b"%02d" % number, may_wait=True)
        with trio.fail_after(HANG_S):
            while not got.endswith(b"49"):
                got += await slave.receive_some()
        assert len(got) < 100, "not each of them"
        await trio.testing.wait_all_tasks_blocked(2 * ha_service.FRAME_DELAY_S)
        with pytest.raises(BlockingIOError):
            read_now(slave)
        nursery.cancel_scope.cancel()


async def test_a_transfer_to_a_peer_that_has_gone_ends_the_connection() -> None:
    driver = Driver(Bytes(200))
    async with trio.open_nursery() as nursery:
        service, slave = await connected(nursery, driver)
        await trio.testing.wait_all_tasks_blocked()
        slave.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        await slave.aclose()
        service.send_log(1, HEADER, PhyOffset(100), 100)
        with trio.fail_after(HANG_S):
            while ("closed", 1) not in driver.told:
                await trio.lowlevel.checkpoint()
        assert ("sent", 1) not in driver.told
        nursery.cancel_scope.cancel()


async def test_an_ack_to_a_peer_that_has_gone_ends_the_connection() -> None:
    driver = Driver()
    async with trio.open_nursery() as nursery:
        service, slave = await connected(nursery, driver)
        slave.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        await slave.aclose()
        service.send(1, b"ack")
        with trio.fail_after(HANG_S):
            while ("closed", 1) not in driver.told:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


class Faulty(Driver):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def ha_accepted(self, conn_id: int, peer: str, claim: HaClaim | None = None) -> None:
        raise self.error


async def test_a_connection_that_meets_a_bug_ends_alone() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    counts, tracer = Statistics(), SilentTracer()
    driver = Faulty(KeyError("slave"))
    async with trio.open_nursery() as nursery:
        boundary = Boundary(counts, tracer)
        service = HaService(cast(ReplicaDriver, driver), tracer, nursery, None, boundary)
        nursery.start_soon(trio.serve_listeners, service.accept, listeners)
        for turn in (1, 2):
            async with await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as stream:
                await stream.send_all(SlaveHandshake(BrokerId(2)).encode())
                with trio.fail_after(HANG_S):
                    assert not await stream.receive_some()
            assert counts.failed_request_count == turn
        nursery.cancel_scope.cancel()


async def test_what_the_machine_raises_ends_the_broker() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    driver = Faulty(BrokenInvariantError("half"))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            boundary = Boundary(Statistics(), SilentTracer())
            service = HaService(cast(ReplicaDriver, driver), SilentTracer(), nursery, None, boundary)
            nursery.start_soon(trio.serve_listeners, service.accept, listeners)
            async with await trio.open_tcp_stream(*listeners[0].socket.getsockname()) as stream:
                await stream.send_all(SlaveHandshake(BrokerId(2)).encode())
                with trio.fail_after(HANG_S):
                    await trio.sleep_forever()
    assert caught.value.subgroup(BrokenInvariantError) is not None
