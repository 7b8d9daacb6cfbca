"""Answers that nobody takes: bounded in all, at the cost of those that do not read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.host.net.slow_readers import MIN_COUNTED_BYTES, STUCK_S, SlowReaders

MIB = 1 << 20
BOUND = 64 * MIB


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.readers = SlowReaders(BOUND, lambda: self.now_s)
        self.closed: list[str] = []

    def reader(self, name: str) -> Peer:
        return Peer(self, name)


class Peer:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.queued_bytes = world, name, 0

    def add(self, size_bytes: int) -> None:
        self.queued_bytes += size_bytes
        self.world.readers.hold(self, self.queued_bytes)

    def close_unread(self) -> None:
        self.world.closed.append(self.name)
        self.queued_bytes = 0


def test_whoever_reads_outlives_those_who_do_not() -> None:
    """However much it has asked for."""
    world = World()
    hogs = [world.reader(f"hog {number}") for number in range(50)]
    for hog in hogs:
        hog.add(MIB)
    world.now_s += STUCK_S
    consumer = world.reader("consumer")
    consumer.add(10 * MIB)
    consumer.add(-MIB)
    assert world.closed == []
    consumer.add(6 * MIB)
    assert world.closed and "consumer" not in world.closed


def test_the_largest_go_first_until_there_is_room() -> None:
    world = World()
    for number in range(30):
        world.reader(f"small {number}").add(MIB)
    world.reader("large").add(30 * MIB)
    assert world.closed == []
    world.reader("last straw").add(5 * MIB)
    assert world.closed == ["large"]
    assert world.readers.total_bytes == 35 * MIB


def test_who_has_taken_all_counts_no_more() -> None:
    world = World()
    peer = world.reader("peer")
    peer.add(40 * MIB)
    peer.add(-40 * MIB)
    world.reader("other").add(40 * MIB)
    assert world.closed == [] and world.readers.total_bytes == 40 * MIB


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 20 * MIB), st.booleans()), max_size=100))
def test_the_bound_holds_and_the_sum_is_right(story: list[tuple[int, int, bool]]) -> None:
    world = World()
    peers = [world.reader(str(number)) for number in range(8)]
    for number, size_bytes, takes in story:
        peer = peers[number]
        peer.add(-min(size_bytes, peer.queued_bytes) if takes else size_bytes)
        noted = [peer.queued_bytes for peer in peers if peer.queued_bytes > MIN_COUNTED_BYTES]
        assert world.readers.total_bytes == sum(noted) <= BOUND
