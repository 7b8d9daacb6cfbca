"""The simulated network does what it is told to messages, and the same with the same seed."""

from __future__ import annotations

from rmqha.sim.network import LinkOptions, SimNetwork
from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler


class World:
    def __init__(self, options: LinkOptions | None = None, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.network = SimNetwork(self.scheduler, SimPrng(seed), options)
        self.seen: list[tuple[int, str, str, bytes]] = []
        for name in ("a", "b", "c"):
            self.attach(name)

    def attach(self, name: str) -> None:
        def receive(source: str, data: bytes) -> None:
            self.seen.append((self.scheduler.now_ms, source, name, data))

        self.network.attach(name, receive)

    def send(self, source: str, target: str, count: int = 1) -> None:
        for number in range(count):
            self.network.send(source, target, b"%d" % number)

    def arrived(self) -> list[bytes]:
        self.scheduler.run_until(self.scheduler.now_ms + 10_000)
        data = [item[3] for item in self.seen]
        self.seen.clear()
        return data


def test_messages_of_a_link_arrive_in_order_within_their_delay() -> None:
    world = World(LinkOptions(min_delay_ms=5, max_delay_ms=20))
    world.send("a", "b", 50)
    world.scheduler.run_until(4)
    assert not world.seen
    world.scheduler.run_until(20)
    assert [item[3] for item in world.seen] == [b"%d" % number for number in range(50)]


def test_loss_duplication_and_reordering_meet_their_shares() -> None:
    lossy = World(LinkOptions(lost_per_mille=300))
    lossy.send("a", "b", 1000)
    assert 620 < len(lossy.arrived()) < 780
    double = World(LinkOptions(duplicated_per_mille=300))
    double.send("a", "b", 1000)
    assert 1220 < len(double.arrived()) < 1380
    shuffled = World(LinkOptions(reordered_per_mille=300))
    shuffled.send("a", "b", 100)
    arrived = shuffled.arrived()
    assert sorted(arrived) == sorted(b"%d" % number for number in range(100))
    assert arrived != [b"%d" % number for number in range(100)]


def test_the_same_seed_is_the_same_network_and_links_are_independent() -> None:
    options = LinkOptions(max_delay_ms=50, lost_per_mille=200, duplicated_per_mille=200, reordered_per_mille=200)
    first, second = World(options), World(options)
    first.send("a", "b", 100)
    second.send("c", "b", 100)
    second.send("a", "b", 100)
    for world in (first, second):
        world.scheduler.run_until(1000)
    assert first.seen == [item for item in second.seen if item[1] == "a"]


def test_one_way_and_two_way_partitions_and_healing() -> None:
    world = World()
    world.network.block("a", "b")
    world.send("a", "b")
    assert world.arrived() == []
    world.send("b", "a")
    assert world.arrived() == [b"0"]
    world.network.partition(["a"], ["b", "c"])
    world.send("a", "b")
    world.send("c", "a")
    assert world.arrived() == []
    world.send("b", "c")
    assert world.arrived() == [b"0"]
    assert world.network.is_blocked("a", "c")
    world.network.heal()
    world.send("a", "b")
    assert world.arrived() == [b"0"]


def test_a_partition_takes_what_is_on_its_way() -> None:
    world = World(LinkOptions(min_delay_ms=10, max_delay_ms=10))
    world.send("a", "b")
    world.network.block("a", "b")
    assert world.arrived() == []
    assert world.network.statistics.blocked_count == 1


def test_a_slow_link_is_slow_in_one_direction() -> None:
    world = World()
    world.network.set_link("a", "b", LinkOptions(min_delay_ms=500, max_delay_ms=500))
    world.send("a", "b")
    world.send("b", "a")
    world.scheduler.run_until(100)
    assert [item[1] for item in world.seen] == ["b"]
    assert len(world.arrived()) == 2
    world.network.set_link("a", "b", None)
    world.send("a", "b")
    world.scheduler.run_until(world.scheduler.now_ms + 5)
    assert len(world.seen) == 1


def test_a_paused_host_gets_everything_when_it_wakes() -> None:
    world = World()
    world.network.pause("b")
    world.send("a", "b", 3)
    world.send("a", "c")
    assert world.arrived() == [b"0"]
    world.network.resume("b")
    assert world.arrived() == [b"0", b"1", b"2"]


def test_a_dead_host_and_its_next_life_get_nothing_of_the_old() -> None:
    world = World(LinkOptions(min_delay_ms=10, max_delay_ms=10))
    world.send("a", "b")
    world.network.detach("b")
    world.send("a", "b")
    world.attach("b")
    world.send("a", "b")
    assert len(world.arrived()) == 1
    assert world.network.statistics.lost_count == 2
