"""A slave that copies much: how fast it may, how far it is, and where it goes on."""

from __future__ import annotations

from typing import Any

from rmqha.ha.action import SendLog
from rmqha.ha.stream.copy_progress import CopyProgress
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import PhyOffset
from tests.ha.group import Group, Node, started

LOG_BYTES = 400_000


def written(group: Group, size_bytes: int = LOG_BYTES) -> None:
    group.send(1, b"r" * size_bytes)
    group.settle()
    group.run(100)


def left_behind(**options: Any) -> Group:
    """Replica 3 is gone and out of the set; the others have LOG_BYTES more."""
    group = started(**options)
    group.kill(3)
    group.run(5000)
    assert group.controller.members == [1, 2]
    written(group)
    return group


def copied(node: Node) -> int:
    return node.log.max_phy_offset


def test_a_slave_outside_of_the_set_copies_at_the_limit() -> None:
    group = left_behind(ha_transfer_bytes_per_second=100_000)
    node = group.restart(3)
    start = copied(node)
    for second in range(1, 4):
        group.run(1000)
        assert abs(copied(node) - start - second * 100_000) <= 10_000
    assert group.controller.members == [1, 2]
    group.run(1500)
    assert copied(node) == LOG_BYTES
    assert group.controller.members == [1, 2, 3]


def test_a_member_is_never_held_back() -> None:
    group = left_behind(ha_transfer_bytes_per_second=10_000)
    began_ms = group.now_ms
    token = group.send(1, b"r" * 1_000_000)
    group.settle()
    assert token in group[1].done
    assert group.now_ms == began_ms


def test_the_limit_is_changed_while_a_slave_copies() -> None:
    group = left_behind(ha_transfer_bytes_per_second=1000)
    node = group.restart(3)
    group.run(2000)
    assert copied(node) < 5000
    group[1].replica.limit_copies(200_000)
    before = copied(node)
    group.run(1000)
    assert abs(copied(node) - before - 200_000) <= 30_000
    group[1].replica.limit_copies(0)
    group.run(200)
    assert copied(node) == LOG_BYTES


def test_a_limit_of_a_few_bytes_starves_neither_heartbeat_nor_connection() -> None:
    group = left_behind(ha_transfer_bytes_per_second=10)
    node = group.restart(3)
    group.run(60_000)
    assert 1024 <= copied(node) <= 2048
    assert "ha_dropped" not in node.trace.names()


def test_transfers_are_small_enough_to_be_even() -> None:
    group = left_behind(ha_transfer_bytes_per_second=100_000)
    sizes: list[int] = []
    perform = group.perform

    def noted(node: Node, action: object) -> None:
        if isinstance(action, SendLog):
            sizes.append(action.size_bytes)
        perform(node, action)

    group.perform = noted  # type: ignore[method-assign]
    group.restart(3)
    group.run(2000)
    assert len(sizes) > 20
    assert max(sizes) == 5000


def test_a_slave_that_says_nothing_is_dropped_though_it_is_spoken_to() -> None:
    group = started()
    assert 3 in group[1].replica.slave_ends()
    group.cut = {(3, 1)}
    for _ in range(BrokerConfig().ha_housekeeping_interval // 1000 + 1):
        group.run(1000)
    assert 3 not in group[1].replica.slave_ends()


def test_where_a_slave_goes_on_is_where_it_ends_though_its_disk_lacks_some_of_it() -> None:
    """Under SYNC_FLUSH an acknowledgement tells what is synced, and the first one where to send from."""
    group = started(flush_disk_type="SYNC_FLUSH")
    group.send(1, b"x" * 1000)
    group.settle()
    group.kill(3)
    group[3].log.synced = 400
    group.auto_sync = False
    node = group.restart(3)
    group.run(100)
    assert node.replica.is_following and not group[1].replica.slave_ends().get(3)
    group.auto_sync = True
    group.run(100)
    assert group[1].replica.slave_ends()[3] == node.log.max_phy_offset == 1000


def test_a_copy_that_ends_half_way_goes_on_where_it_stood() -> None:
    group = left_behind(ha_transfer_bytes_per_second=100_000)
    group.restart(3)
    group.run(1500)
    group.kill(3)
    reached = copied(group[3])
    assert LOG_BYTES / 4 < reached < LOG_BYTES / 2
    group.run(1000)
    node = group.restart(3)
    group.run(10)
    view = node.replica.state(group.now_ms).to_json()["copy"]
    assert view["fromOffset"] == reached
    assert view["leftBytes"] <= LOG_BYTES - reached
    group.run(4000)
    assert node.log.data == group[1].log.data
    assert {"ha_restarted", "log_restarted"}.isdisjoint(node.trace.names())


def test_progress_is_shown_until_the_copy_is_whole() -> None:
    group = left_behind(ha_transfer_bytes_per_second=100_000)
    node = group.restart(3)
    group.run(20)
    view = node.replica.state(group.now_ms).to_json()["copy"]
    assert (view["fromOffset"], view["toOffset"]) == (0, LOG_BYTES)
    assert (view["bytesPerSecond"], view["etaMs"]) == (0, None)
    group.run(2100)
    view = node.replica.state(group.now_ms).to_json()["copy"]
    assert view["copiedBytes"] == copied(node)
    assert view["leftBytes"] == node.replica.copy_left_bytes == LOG_BYTES - copied(node)
    assert 90_000 < view["bytesPerSecond"] < 110_000
    assert abs(view["etaMs"] - view["leftBytes"] / 100) < view["etaMs"] / 5
    group.run(3000)
    assert node.replica.state(group.now_ms).to_json()["copy"] is None
    assert node.replica.copy_left_bytes == 0


def test_a_copy_that_stands_still_has_no_speed() -> None:
    progress = CopyProgress()
    progress.begin(0, PhyOffset(0), PhyOffset(1000))
    progress.moved(1000, PhyOffset(100))
    soon, later = progress.state(1000, PhyOffset(100)), progress.state(60_000, PhyOffset(100))
    assert soon is not None and later is not None
    assert (soon.bytes_per_second, later.bytes_per_second, later.eta_ms) == (100, 0, None)


def test_a_log_that_was_given_up_is_copied_from_where_the_masters_begins() -> None:
    progress = CopyProgress()
    progress.begin(0, PhyOffset(100), PhyOffset(5000))
    progress.restart(10, PhyOffset(4000))
    state = progress.state(20, PhyOffset(4100))
    assert state is not None
    assert (state.from_offset, state.copied_bytes, state.left_bytes) == (4000, 100, 900)
