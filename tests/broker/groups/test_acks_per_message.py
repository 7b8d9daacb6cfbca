"""A10 for one message: oneway asks for nobody's ack, WAIT=false for the master's own append, else the group's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqha.model.code import ResponseCode
from rmqha.model.offset import PhyOffset
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.ha_stream import SlaveAck
from tests.broker.support import Broker, FakeChannel, send_command

CP: dict[str, Any] = {"ha_mode": "cp", "total_replicas": 2}
COUNT: dict[str, Any] = {"broker_role": "SYNC_MASTER", "total_replicas": 2, "in_sync_replicas": 2}
WHOLE_SET: dict[str, Any] = {"broker_role": "SYNC_MASTER", "total_replicas": 2, "all_ack_in_sync_state_set": True}


def of_each_kind() -> list[Command]:
    oneway, unwaited, waited = send_command(body=b"0"), send_command(body=b"1", i="WAIT\x01false\x02"), send_command()
    oneway.flag = FLAG_ONEWAY
    oneway.opaque, unwaited.opaque, waited.opaque = 10, 11, 12
    return [oneway, unwaited, waited]


@pytest.mark.parametrize("keys", [CP, COUNT, WHOLE_SET])
@pytest.mark.parametrize("together", [True, False])
def test_acks_zero_one_and_the_groups_rule(
    make_broker: Callable[..., Broker], keys: dict[str, Any], together: bool
) -> None:
    broker = make_broker(**keys)
    broker.controller.members = [1, 2]
    broker.start()
    broker.join_slave(2)
    broker.run()
    channel = FakeChannel()
    oneway, unwaited, waited = of_each_kind()
    for batch in [[oneway, unwaited, waited]] if together else [[oneway], [unwaited], [waited]]:
        broker.core.processor.received(channel, batch)
    broker.run()
    assert [reply.opaque for reply in channel.take()] == [unwaited.opaque]
    broker.core.driver.ha_sent(1)
    broker.core.driver.ha_received(1, SlaveAck(PhyOffset(broker.store.max_phy_offset)).encode())
    broker.run()
    answer = channel.one()
    assert (answer.opaque, answer.code) == (waited.opaque, ResponseCode.SUCCESS)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_too_small_a_set_refuses_all_three_unwritten(make_broker: Callable[..., Broker], kind: int) -> None:
    """Fail fast is for the group, not for one message: a message that nobody waits for is refused as well."""
    broker = make_broker(**COUNT, min_in_sync_replicas=2).start()
    channel = FakeChannel()
    command = of_each_kind()[kind]
    broker.core.processor.received(channel, [command])
    broker.run()
    assert [reply.code for reply in channel.take()] == ([] if kind == 0 else [ResponseCode.SYSTEM_ERROR])
    assert broker.store.max_phy_offset == 0
