"""Order and length of slices, by a clock of the tests: who waits for whom, and for how long."""

from __future__ import annotations

import socket
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

from rmqha.host.net import poller as module
from rmqha.host.net.fair_queue import QueueEntry
from tests.host.net.test_poller import TurnCount


class Clients:
    """Sockets with something to read, each served by a slice of so many ms; notes who was served, in which turn."""

    def __init__(self, turn: TurnCount) -> None:
        self.turn, self.poller = turn, module.Poller()
        self.now_s = 1000.0
        self.served: list[tuple[int, str]] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def monotonic(self) -> float:
        return self.now_s

    def thread_time_ns(self) -> int:
        return round(self.now_s * 1e9)

    def add(
        self,
        name: str,
        slice_ms: float,
        count: int,
        owner: str = "",
        work: Callable[[], None] | None = None,
        *,
        leaves: bool = False,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._pairs.append((ours, theirs))
        theirs.send(b"x" * count)
        if leaves:
            theirs.shutdown(socket.SHUT_WR)

        def serve() -> None:
            if not ours.recv(1):
                self.poller.end(ours.fileno())
            self.now_s += slice_ms / 1000
            self.served.append((self.turn.count, name))
            if work is not None:
                work()

        self.poller.add(ours.fileno(), QueueEntry(serve, owner))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.poller.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        for pair in self._pairs:
            for end in pair:
                end.close()


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clients]:
    turn = TurnCount()
    trio.lowlevel.add_instrument(turn)
    clients = Clients(turn)
    monkeypatch.setattr(module, "time", clients)
    yield clients
    trio.lowlevel.remove_instrument(turn)


async def test_slices_as_long_as_a_turn_come_one_in_a_turn(clients: Clients) -> None:
    """Two of 6 ms in each turn made the acks of replicas, which other tasks read, wait for 12 ms."""
    for number in range(4):
        clients.add(f"long-{number}", 6, 10, f"owner-{number % 2}")
    await clients.run()
    turns = [turn for turn, _ in clients.served]
    assert len(turns) == 40
    assert len(set(turns)) >= 36, "others had a turn of the loop after each, but for those that nobody knew"


async def test_who_has_waited_longest_comes_though_slices_are_as_long_as_a_turn(clients: Clients) -> None:
    clients.add("longest", 20, 3, "one")
    for number in range(8):
        clients.add(f"long-{number}", 6, 50, f"owner-{number}")
    await clients.run()
    places = [place for place, (_, name) in enumerate(clients.served) if name == "longest"]
    assert len(places) == 3
    assert places[-1] < 3 * 20, "by the other order its owner would have had most"


async def test_what_is_put_off_does_not_wait_for_long_slices(clients: Clients) -> None:
    """A send was read, and written to the log 9 ms later, behind heartbeats of somebody else."""
    done: list[list[tuple[int, str]]] = []

    def put_off() -> None:
        assert clients.poller.at_turn_end(lambda: done.append(clients.served[:]))

    clients.add("long", 6, 6, "one")
    clients.add("other", 6, 6, "other")
    await trio.lowlevel.checkpoint()
    clients.add("small", 0.1, 3, "small", put_off)
    await clients.run()
    assert len(done) == 3
    assert [said[-1][1] for said in done[1:]] == ["small", "small"], "nobody was served in between"


async def test_what_is_put_off_waits_for_a_part_of_a_turn_at_most(clients: Clients) -> None:
    waited_ms: list[float] = []

    def put_off() -> None:
        since_s = clients.now_s
        assert clients.poller.at_turn_end(lambda: waited_ms.append((clients.now_s - since_s) * 1000))

    for number in range(64):
        clients.add(f"short-{number}", 0.1, 5, f"owner-{number}", put_off)
    await clients.run()
    assert len(waited_ms) == 320
    assert 1 < max(waited_ms) <= 1000 * module.MAX_DEFER_S + 0.1


async def test_who_asks_for_little_waits_for_one_long_slice(clients: Clients) -> None:
    waited: list[int] = []

    def look() -> None:
        waited.append(len([name for _, name in clients.served if name.startswith("long")]))

    for number in range(4):
        clients.add(f"long-{number}", 6, 30, "guest")
    clients.add("small", 0.1, 60, "honest", look)
    await clients.run()
    known = waited[8:]
    assert max(after - before for before, after in pairwise(known)) == 1


@pytest.mark.parametrize("count", [2, 10, 100])
async def test_the_more_wait_the_shorter_is_a_slice(count: int, clients: Clients) -> None:
    """Each of a hundred connections that always had more to do took 2 ms, so each waited for 200."""
    served_at_s: dict[str, list[float]] = {}

    def use_up(name: str) -> None:
        clients.now_s += clients.poller.slice_s
        served_at_s.setdefault(name, []).append(clients.now_s)

    for number in range(count):
        clients.add(f"greedy-{number}", 0, 20, "one", partial(use_up, f"greedy-{number}"))
    await clients.run()
    gaps_s = [after - before for times in served_at_s.values() for before, after in pairwise(times[:10])]
    slice_s = max(gaps_s) / count
    assert slice_s <= 2.5 * module.ROUND_S / count
    assert slice_s >= min(module.SLICE_S, module.ROUND_S / (count + 1)) * 0.9


async def test_many_who_leave_at_once_do_not_stand_before_who_stays(clients: Clients) -> None:
    """A thousand connections were lost at once, and a send waited until each had been closed."""
    for number in range(300):
        clients.add(f"gone-{number}", 0.1, 1, leaves=True)
    clients.add("stays", 0.1, 20)
    await clients.run()
    turns = [turn for turn, name in clients.served if name == "stays"]
    assert len(turns) == 20
    assert turns[-1] - turns[0] == 19, "a turn without it"
    first = clients.served[0][0]
    assert turns[0] - first <= 1
    assert Counts(name for _, name in clients.served) == {
        **{f"gone-{number}": 2 for number in range(300)},
        "stays": 20,
    }, "each has been read to its end"
    most = max(Counts(turn for turn, name in clients.served if name != "stays").values())
    assert most <= module.MAX_ENDED_COUNT


async def test_long_slices_of_those_who_leave_come_one_in_a_turn(clients: Clients) -> None:
    for number in range(8):
        clients.add(f"gone-{number}", 6, 5, leaves=True)
    clients.add("stays", 0.1, 48)
    await clients.run()
    turns = [turn for turn, name in clients.served if name != "stays"]
    assert len(turns) == 48
    assert max(Counts(turns).values()) == 1


async def test_who_leaves_alone_is_read_to_its_end(clients: Clients) -> None:
    clients.add("gone", 0.1, 3, leaves=True)
    await clients.run()
    assert [name for _, name in clients.served] == ["gone"] * 4
