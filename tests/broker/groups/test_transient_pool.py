"""transientStorePoolEnable: what nobody waits for is collected; who waits gets everything written and sent at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.identity import Role
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import Broker, FakeChannel, pull_command, send_command

NO_WAIT = "WAIT\x01false\x02"


@pytest.fixture
def pooled(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(transient_store_pool_enable=True).start()


def test_nobody_waits(pooled: Broker) -> None:
    reply = pooled.ask(send_command(i=NO_WAIT))
    assert (reply.code, reply.ext["queueOffset"]) == (0, "0")
    channel = FakeChannel()
    oneway = send_command()
    oneway.flag |= FLAG_ONEWAY
    pooled.core.processor.received(channel, [oneway])
    assert pooled.store.max_phy_offset == 0 and pooled.store.uncommitted_bytes > 0
    assert pooled.store.free_buffer_count == 4
    assert pooled.ask(pull_command()).code != ResponseCode.SUCCESS
    pooled.core.driver.commit()
    pooled.run()
    assert pooled.store.uncommitted_bytes == 0
    assert pooled.store.free_buffer_count == 5
    assert pooled.ask(pull_command()).ext["nextBeginOffset"] == "2"


def test_whoever_waits_takes_all_along_in_the_same_step(pooled: Broker) -> None:
    pooled.ask(send_command(i=NO_WAIT))
    channel = FakeChannel()
    pooled.core.processor.received(channel, [send_command()])
    (reply,) = channel.take()
    assert (reply.code, reply.ext["queueOffset"]) == (0, "1")
    assert pooled.store.uncommitted_bytes == 0
    assert pooled.store.confirm_offset == pooled.store.max_phy_offset > 0


def test_much_is_written_without_waiting_for_the_interval(pooled: Broker) -> None:
    pooled.core.processor.received(FakeChannel(), [send_command(i=NO_WAIT, body=b"x" * 4000) for _ in range(4)])
    assert pooled.store.uncommitted_bytes == 0 and pooled.store.max_phy_offset > 16384


def test_a_master_that_is_none_any_more_drops_what_nobody_saw(pooled: Broker) -> None:
    pooled.ask(send_command())
    end = pooled.store.max_phy_offset
    pooled.ask(send_command(i=NO_WAIT))
    ext = {"masterBrokerId": "2", "masterAddress": "127.0.0.1:20921", "masterEpoch": "3", "syncStateSetEpoch": "3"}
    notice = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext, b'{"syncStateSet":[2],"syncStateSetEpoch":3}')
    pooled.ask(notice)
    assert pooled.core.replica.role is not Role.MASTER
    pooled.core.driver.commit()
    assert (pooled.store.uncommitted_bytes, pooled.store.max_phy_offset) == (0, end)


def test_a_stopping_master_writes_it_first(pooled: Broker) -> None:
    pooled.ask(send_command(i=NO_WAIT))
    pooled.core.driver.stopping()
    assert pooled.store.uncommitted_bytes == 0 and pooled.store.max_phy_offset > 0
