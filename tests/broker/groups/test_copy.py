"""A broker that copies a master's log, and one that is copied from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.replication import replica_driver
from rmqha.model.code import RequestCode
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.ha_stream import MasterHandshake, TransferHeader
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.support import Broker, FakeChannel, send_command

COUNT = 60
COPY_BYTES = 20_000


def log_of(broker: Broker) -> bytes:
    for number in range(COUNT):
        broker.ask(send_command(body=bytes(1000), queue_id=number % 3))
    return bytes(broker.store.view(PhyOffset(0), broker.store.max_phy_offset))


def follow(broker: Broker, master_max: int) -> None:
    """It is told of a master, which shakes hands."""
    notice = Command(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        {"masterBrokerId": "2", "masterAddress": "127.0.0.1:20921", "masterEpoch": "3", "syncStateSetEpoch": "5"},
        dumps({"syncStateSet": [2], "syncStateSetEpoch": 5}),
        flag=FLAG_ONEWAY,
    )
    broker.core.processor.received(FakeChannel(), [notice])
    broker.core.driver.ha_opened(-1)
    history = EpochHistory([EpochEntry(Epoch(3), PhyOffset(0))])
    broker.core.driver.ha_received(-1, MasterHandshake(PhyOffset(master_max), Epoch(3), history).encode())


def receive(broker: Broker, log: bytes, start: int, end: int) -> None:
    """In a buffer that is used again at once."""
    header = TransferHeader(end - start, PhyOffset(start), Epoch(3), PhyOffset(0), PhyOffset(len(log)))
    buffer = bytearray(header.encode() + log[start:end])
    broker.core.driver.ha_received(-1, memoryview(buffer))
    buffer[:] = bytes(len(buffer))


def test_ha_status_tells_when_the_master_was_heard(broker: Broker, make_broker: Callable[..., Broker]) -> None:
    log = log_of(broker)
    broker.close()
    slave = make_broker("slave").start()
    asked = Command(RequestCode.GET_BROKER_HA_STATUS)
    none = loads(bytes(slave.ask(asked).body))["haClientRuntimeInfo"]
    assert (none["lastReadTimestamp"], none["lastWriteTimestamp"], none["transferredByteInSecond"]) == (0, 0, 0)
    follow(slave, len(log))
    slave.core.admin.sample()
    slave.run(1500)
    slave.core.admin.sample()
    receive(slave, log, 0, len(log))
    slave.run(1000)
    slave.core.admin.sample()
    heard_at_ms = slave.clock.wall_ms() - 1000
    told = loads(bytes(slave.ask(asked).body))["haClientRuntimeInfo"]
    assert told["lastReadTimestamp"] == heard_at_ms
    assert heard_at_ms <= told["lastWriteTimestamp"] <= slave.clock.wall_ms()
    assert told["maxOffset"] == len(log) and told["transferredByteInSecond"] == round(len(log) / 2.5)


def test_a_copy_is_dispatched_in_slices_that_are_worth_it(
    broker: Broker, make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "COPY_BYTES", COPY_BYTES)
    log = log_of(broker)
    broker.close()
    slave = make_broker("slave").start()
    follow(slave, len(log))
    driver, at, waited = slave.core.driver, 0, 0
    while at < len(log):
        receive(slave, log, at, min(len(log), at + 3000))
        at += 3000
        left = len(log) - min(at, len(log))
        behind = slave.store.dispatch_behind_bytes
        assert driver.is_copying == (left > COPY_BYTES)
        assert driver.dispatch_due == (behind > (COPY_BYTES if left > COPY_BYTES else 0))
        waited += not driver.dispatch_due
        slave.run()
    assert waited >= 10
    assert slave.store.max_phy_offset == slave.store.dispatched_offset == len(log)
    assert [slave.store.queue_range("T", queue_id)[1] for queue_id in range(3)] == [20, 20, 20]


def test_a_copy_that_breaks_off_is_dispatched(
    broker: Broker, make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_driver, "COPY_BYTES", COPY_BYTES)
    log = log_of(broker)
    broker.close()
    slave = make_broker("slave").start()
    follow(slave, len(log))
    receive(slave, log, 0, 5000)
    slave.run()
    assert slave.store.dispatched_offset == 0
    slave.shell.woken.clear()
    slave.core.driver.ha_closed(-1)
    assert slave.shell.woken["dispatch"]
    assert slave.core.driver.dispatch_due
    slave.run()
    assert slave.store.record_end_offset == slave.store.dispatched_offset > 0


@pytest.mark.parametrize("key", ["haTransferBytesPerSecond", "maxHaTransferByteInSecond"])
def test_an_operator_sets_the_limit_of_copies(broker: Broker, key: str) -> None:
    log_of(broker)
    limit = 10_000
    reply = broker.ask(Command(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{key}={limit}\n".encode()))
    assert reply.code == 0, reply.remark
    broker.join_slave(2)
    logs = [action for action in broker.ports.ha_actions if action[0] == "log"]
    assert logs == [("log", 1, 0, 1024)]


def test_a_master_dispatches_in_small_slices_unless_much_waits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    dispatch = broker.store.dispatch

    def noted(limit_bytes: int) -> bool:
        limits.append(limit_bytes)
        return dispatch(limit_bytes)

    monkeypatch.setattr(broker.store, "dispatch", noted)
    broker.ask(send_command())
    monkeypatch.setattr(replica_driver, "BACKLOG_BYTES", 100)
    broker.ask(send_command(body=bytes(1000)))
    assert limits == [replica_driver.DISPATCH_BYTES, replica_driver.COPY_BYTES]


def test_slices_that_take_long_become_small(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record of a new queue makes a file: half a MiB of them held up everything for seconds."""
    limits: list[int] = []
    dispatch = broker.store.dispatch

    def slow(limit_bytes: int) -> bool:
        limits.append(limit_bytes)
        broker.clock.ms += 50
        return dispatch(limit_bytes)

    monkeypatch.setattr(broker.store, "dispatch", slow)
    for _ in range(3):
        broker.ask(send_command(body=bytes(1000)))
    assert limits[:1] + limits[-1:] == [replica_driver.DISPATCH_BYTES, replica_driver.MIN_DISPATCH_BYTES]
