"""A cut of the log takes offsets of pops back that counted on what goes: what nobody acknowledged comes again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.broker.pop.checkpoint import REVIVE_GROUP
from rmqha.broker.tables.offsets import CUT_VERSION, OffsetTable
from rmqha.model.message import REVIVE_QUEUE_COUNT, REVIVE_TOPIC_PREFIX
from rmqha.model.offset import PhyOffset
from tests.broker.pop.test_order import ordered
from tests.broker.pop.test_pop import bodies
from tests.broker.pop.test_set_back import settle
from tests.broker.pop.world import INVISIBLE_MS, ack_all, later, pop, send
from tests.broker.support import Broker, TableListener

MakeBroker = Callable[..., Broker]
REVIVE = f"{REVIVE_TOPIC_PREFIX}DefaultCluster"


def cut(make_broker: MakeBroker, broker: Broker, end_offset: int) -> Broker:
    """The broker stops, and loses what its log holds from there on before it is master again."""
    broker.core.save()
    broker.close()
    again = make_broker()
    again.clock.ms = broker.clock.ms
    again.store.truncate(PhyOffset(end_offset))
    return again.start()


def test_what_was_given_behind_a_cut_is_given_again(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b", b"c", b"d")
    ack_all(broker, pop(broker, maxMsgNums=1))
    end = broker.store.max_phy_offset
    assert bodies(pop(broker, maxMsgNums=1) + pop(broker, maxMsgNums=1)) == [b"b", b"c"]
    settle(broker)
    assert broker.core.offsets.query("G", "T", 0) == 3
    again = cut(make_broker, broker, end)
    assert bodies(pop(again)) == [b"b", b"c", b"d"]


def test_a_kill_right_behind_the_cut_changes_nothing(broker: Broker) -> None:
    send(broker, b"a", b"b")
    pop(broker, maxMsgNums=1)
    settle(broker)
    end = broker.store.max_phy_offset
    pop(broker, maxMsgNums=1)
    settle(broker)
    broker.core.save()
    broker.store.truncate(PhyOffset(end))
    found = OffsetTable(broker.core.disk, TableListener())
    assert found.query("G", "T", 0) == 1
    assert found.stamps()["T@G", 0] == CUT_VERSION, "what the master has counts"


def test_a_checkpoint_that_the_queues_lack_yet_counts_too(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    end = broker.store.max_phy_offset
    pop(broker)
    settle(broker)
    broker.core.save()
    broker.store._dispatch_service.position = PhyOffset(end)  # as after a start that makes the queues anew
    broker.store.truncate(PhyOffset(end))
    assert broker.core.offsets.query("G", "T", 0) == 0


def test_what_came_again_behind_a_cut_comes_again(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a")
    pop(broker)
    later(broker, INVISIBLE_MS - 500)  # its checkpoint has come
    end = broker.store.max_phy_offset
    later(broker, 2000)
    settle(broker)
    broker.run()
    broker.core.deliver()
    worked_off = [broker.core.offsets.query(REVIVE_GROUP, REVIVE, item) for item in range(REVIVE_QUEUE_COUNT)]
    assert any(item is not None for item in worked_off), "no entry counts as worked off"
    again = cut(make_broker, broker, end)
    later(again, 2000)
    assert bodies(pop(again)) == [b"a"]


def test_what_was_acknowledged_before_the_cut_stays_so(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    send(broker, b"a", b"b")
    ack_all(broker, pop(broker, maxMsgNums=1))
    later(broker, 2 * INVISIBLE_MS)
    settle(broker)
    end = broker.store.max_phy_offset
    pop(broker)
    later(broker, INVISIBLE_MS - 500)
    again = cut(make_broker, broker, end)
    assert bodies(pop(again)) == [b"b"]
    later(again, 2 * INVISIBLE_MS)
    assert bodies(pop(again)) == [b"b"]


def test_what_is_done_in_order_stays_done(make_broker: MakeBroker) -> None:
    """Its client has said so: nothing is left out if it is not given again."""
    broker = make_broker().start()
    send(broker, b"a", b"b")
    end = broker.store.max_phy_offset
    ack_all(broker, ordered(broker, maxMsgNums=1))
    settle(broker)
    again = cut(make_broker, broker, end)
    assert bodies(ordered(again)) == [b"b"]


def test_a_cut_of_nothing_that_was_popped_sets_nobody_back(broker: Broker) -> None:
    send(broker, b"a", b"b")
    pop(broker)
    settle(broker)
    end = broker.store.max_phy_offset
    send(broker, b"c")
    broker.store.truncate(PhyOffset(end))
    assert broker.core.offsets.query("G", "T", 0) == 2
    assert "pop_offsets_cut" not in broker.tracer.names()


@pytest.mark.parametrize("is_dispatched", [False, True])
def test_rot_in_what_goes_keeps_no_cut(broker: Broker, is_dispatched: bool) -> None:
    send(broker, b"a", b"b")
    end = broker.store.max_phy_offset
    pop(broker, maxMsgNums=1)
    second = broker.store.max_phy_offset
    pop(broker, maxMsgNums=1)
    settle(broker)
    if not is_dispatched:
        broker.store._dispatch_service.position = PhyOffset(end)
    (path,) = broker.directory.rglob("commitlog/*")
    with path.open("r+b") as file:
        file.seek(second + 4)
        file.write(b"\xff\xff\xff\xff")
    broker.store.truncate(PhyOffset(end))
    assert broker.store.max_phy_offset == end
    assert broker.core.offsets.query("G", "T", 0) == 0
