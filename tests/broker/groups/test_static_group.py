"""Brokers of a static group on real sockets and files, with a name server that only tells slaves who the master is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from rmqha.host.net import network, remoting
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import Command
from rmqha.wire.legacy_ha import encode_header, encode_report
from tests.broker.support import MAX_FRAME_BYTES, Broker, pull_command, send_command
from tests.broker.test_server import Registry, Shells
from tests.support.patience import HANG_S

MASTER: dict[str, Any] = {"enable_controller_mode": False, "broker_role": "SYNC_MASTER"}
SLAVE: dict[str, Any] = {"enable_controller_mode": False, "broker_role": "SLAVE", "broker_id": 1}


class NameServer(Registry):
    """Answers a slave's registration with the master's addresses, once it knows one."""

    def __init__(self) -> None:
        super().__init__()
        self.master: dict[str, str] = {}

    def _reply(self, command: Command) -> Command:
        if command.code == RequestCode.REGISTER_BROKER:
            ext = command.ext
            self.registered[ext["brokerAddr"]] = int(ext["brokerId"])
            if ext["brokerId"] == "0":
                self.master = {"masterAddr": ext["brokerAddr"], "haServerAddr": ext["haServerAddr"]}
            return command.reply(0, dict(self.master) if ext["brokerId"] != "0" else {})
        return super()._reply(command)


@asynccontextmanager
async def static_shells(root: Path) -> AsyncIterator[Shells]:
    registry = NameServer()
    async with trio.open_nursery() as nursery, RemotingClient() as client:
        serve = partial(remoting.serve, registry, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES)
        registry.port = await nursery.start(serve)
        yield Shells(nursery, registry, client, root)
        nursery.cancel_scope.cancel()


async def test_a_slave_that_starts_first_finds_its_master_by_registering(tmp_path: Path) -> None:
    async with static_shells(tmp_path) as here:
        slave = await here.start("b", **SLAVE)
        await here.until(lambda: here.registry.registered.get(slave.address) == 1)
        assert (await here.state(slave))["follows"] == ""
        master = await here.start("a", **MASTER)
        await here.until_state(slave, followState="following", masterAddress=master.address)
        assert (await here.send(master, b"one")).code == ResponseCode.SUCCESS
        assert (await here.call(slave.address, send_command())).code == ResponseCode.SERVICE_NOT_AVAILABLE
        ask = Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})

        async def knows_the_topic() -> bool:
            return (await here.call(slave.address, Command(ask.code, dict(ask.ext)))).code == 0

        await here.eventually(knows_the_topic)

        async def serves() -> bool:
            pulled = await here.call(slave.address, pull_command())
            return pulled.code == ResponseCode.SUCCESS and b"one" in bytes(pulled.body)

        await here.eventually(serves)
        controller_codes = {code for code in here.registry.codes() if 1000 <= code < 1100}
        assert controller_codes == set(), "nobody asked a controller"
        await master.stop()
        await slave.stop()
    logs = [(tmp_path / name / "commitlog" / f"{0:020}").read_bytes() for name in ("a", "b")]
    assert logs[0] == logs[1]


async def test_a_sync_master_alone_says_slave_not_available(tmp_path: Path) -> None:
    async with static_shells(tmp_path) as here:
        master = await here.start("a", **MASTER)
        assert (await here.send(master, b"one")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        free = await here.call(master.address, send_command(body=b"two", i="WAIT\x01false\x02"))
        assert free.code == ResponseCode.SUCCESS, "a message that does not wait waits for no slave either"
        assert b"one" in bytes((await here.call(master.address, pull_command())).body)
        await master.stop()


async def test_the_ha_address_of_the_configuration_needs_no_name_server(tmp_path: Path) -> None:
    async with static_shells(tmp_path) as here:
        master = await here.start("a", **MASTER)
        keys = SLAVE | {"ha_master_address": f"127.0.0.1:{master.ports.ha}", "namesrv_addr": "127.0.0.1:9"}
        slave = await here.start("b", **keys)
        await here.until_state(slave, followState="following")
        assert (await here.send(master, b"one")).code == ResponseCode.SUCCESS
        await slave.stop()
        await master.stop()


async def test_strangers_on_the_ha_port_of_a_static_master_are_dropped(tmp_path: Path) -> None:
    """Another protocol, a controller group's handshake, and an offset that the master does not have."""
    async with static_shells(tmp_path) as here:
        master = await here.start("a", **MASTER)
        await here.send(master, b"x")
        hello = b"\0\0\0\1\0\0\0\0" + (1).to_bytes(8, "big")
        for first in (b"GET / HTTP/1.1\r\n\r\n", hello, encode_report(PhyOffset(1 << 40))):
            stream = await network.dial(f"127.0.0.1:{master.ports.ha}")
            async with stream:
                await stream.send_all(first)
                with trio.fail_after(HANG_S):
                    try:
                        assert await stream.receive_some(1) == b""
                    except trio.BrokenResourceError:
                        continue  # closed with bytes unread: the kernel resets
        await here.until_state(master, slaves=[])
        assert (await here.send(master, b"y")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        await master.stop()


async def test_a_slave_that_got_half_a_record_asks_for_all_of_it_again(tmp_path: Path) -> None:
    """The connection breaks inside the second record; what came of it is cut before the slave reports where it ends."""
    async with static_shells(tmp_path) as here:
        source = await here.start("a", **(MASTER | {"broker_role": "ASYNC_MASTER"}))
        first = (await here.send(source, b"one")).ext["msgId"]
        second = (await here.send(source, b"two")).ext["msgId"]
        begins = int(second[-16:], 16)  # an offset message id ends with the record's position
        assert int(first[-16:], 16) == 0
        await source.stop()
        log = (tmp_path / "a" / "commitlog" / f"{0:020}").read_bytes()
        end = begins + int.from_bytes(log[begins : begins + 4], "big")

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        ha_address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        slave = await here.start("b", **SLAVE, ha_master_address=ha_address, namesrv_addr="127.0.0.1:9")
        with trio.fail_after(HANG_S):
            async with await listener.accept() as stream:
                assert await stream.receive_some(8) == encode_report(PhyOffset(0))
                await stream.send_all(encode_header(PhyOffset(0), begins + 50) + log[: begins + 50])
                assert await stream.receive_some(8) == encode_report(PhyOffset(begins + 50))
            async with await listener.accept() as stream:
                assert await stream.receive_some(8) == encode_report(PhyOffset(begins))
                await stream.send_all(encode_header(PhyOffset(begins), end - begins) + log[begins:end])
                assert await stream.receive_some(8) == encode_report(PhyOffset(end))
        await listener.aclose()
        await here.until_state(slave, maxPhyOffset=end, dispatchedOffset=end)
        await slave.stop()
    assert (tmp_path / "b" / "commitlog" / f"{0:020}").read_bytes() == log


def test_consumers_of_old_messages_are_sent_to_slaves_once_all_of_them_hold_these(tmp_path: Path) -> None:
    broker = Broker(tmp_path, memory_bytes=1000, enable_controller_mode=False).start()
    for _ in range(20):
        broker.ask(send_command())

    def suggested() -> str:
        return broker.ask(pull_command(maxMsgNums="1")).ext["suggestWhichBrokerId"]

    assert suggested() == "0", "nobody else has it"
    driver, end = broker.core.driver, broker.store.max_phy_offset
    for conn_id in (1, 2):
        driver.ha_accepted(conn_id, "127.0.0.1:9")
        driver.ha_received(conn_id, encode_report(PhyOffset(0)))
    driver.ha_received(2, encode_report(end))
    assert suggested() == "0", "one of the two has nothing yet, and which of them is replica 1 is not known"
    driver.ha_received(1, encode_report(end))
    assert suggested() == "1"
    broker.close()
