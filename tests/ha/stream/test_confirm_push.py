"""When a slave hears of the confirm offset though there is no data for it."""

from __future__ import annotations

from rmqha.ha.action import SendHa, SendLog
from rmqha.ha.stream.connection import CONFIRM_DELAY_MS, PART_CONFIRM_DELAY_MS, HaConnection
from rmqha.ha.stream.copy_progress import CopyLimit
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.wire.ha_stream import SlaveAck, SlaveHandshake
from tests.ha.memory_log import MemoryLog

CONFIG = BrokerConfig()
assert CONFIG.ha_send_heartbeat_interval > PART_CONFIRM_DELAY_MS
NOW_MS = 1000


class Link:
    """A master's end, whose slave has the whole log."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        limit = CopyLimit(0, lambda broker_id: True)
        self.connection = HaConnection(NOW_MS, 1, "peer", CONFIG, self.log, limit)
        for frame in (SlaveHandshake(BrokerId(2)), SlaveAck(PhyOffset(0))):
            self.connection.received(NOW_MS, frame.encode(), Epoch(1))
        assert [type(action) for action in self.pumped()] == [SendHa], "where the log begins"

    def pumped(self, now_ms: int = NOW_MS) -> list[object]:
        """Actions of a look, which the shell has done."""
        end, confirm = self.log.max_phy_offset, self.log.confirm_offset
        idle = self.connection.is_idle(now_ms, end, confirm)
        actions: list[object] = list(self.connection.pump(now_ms))
        assert not (idle and actions), "an idle connection has nothing to do"
        self.connection.sent()
        return actions

    def append(self) -> None:
        self.log.data += b"x" * 100
        (action,) = self.pumped()
        assert isinstance(action, SendLog)


def test_the_advance_to_all_that_was_sent_is_pushed_soon() -> None:
    link = Link()
    link.append()
    assert link.pumped() == []
    link.log.confirm = 100
    assert link.pumped(NOW_MS + CONFIRM_DELAY_MS - 1) == []
    assert link.connection.deadline_ms() == NOW_MS + CONFIRM_DELAY_MS
    (push,) = link.pumped(NOW_MS + CONFIRM_DELAY_MS)
    assert isinstance(push, SendHa) and push.data.endswith((100).to_bytes(8, "big"))
    assert link.pumped(NOW_MS + CONFIRM_DELAY_MS) == [], "once"


def test_the_next_transfer_tells_it_sooner() -> None:
    link = Link()
    link.append()
    link.log.confirm = 100
    link.append()
    assert link.pumped(NOW_MS + CONFIRM_DELAY_MS) == []


def test_steps_before_it_are_not() -> None:
    """A push for each would wake the slave as the data does; what follows tells of it."""
    link, later_ms = Link(), NOW_MS + CONFIRM_DELAY_MS
    for _ in range(3):
        link.append()
    for confirm in (100, 200):
        link.log.confirm = confirm
        assert link.pumped(later_ms) == []
    link.log.confirm = 300
    assert [type(action) for action in link.pumped(later_ms)] == [SendHa]


def test_a_step_that_nothing_follows_is_pushed_later() -> None:
    """Another slave holds up the rest; who reads here waits for no heartbeat."""
    link = Link()
    link.append()
    link.append()
    link.log.confirm = 100
    assert link.pumped(NOW_MS + PART_CONFIRM_DELAY_MS - 1) == []
    assert link.connection.deadline_ms() == NOW_MS + PART_CONFIRM_DELAY_MS
    (push,) = link.pumped(NOW_MS + PART_CONFIRM_DELAY_MS)
    assert isinstance(push, SendHa) and push.data.endswith((100).to_bytes(8, "big"))
    link.log.confirm = 150
    link.log.data += b"x" * 100
    (transfer,) = link.pumped()
    assert isinstance(transfer, SendLog) and transfer.header.endswith((150).to_bytes(8, "big"))
