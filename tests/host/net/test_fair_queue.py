"""Shares of the time: who asks for little is served at once, nobody is left out."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rmqha.host.net.fair_queue import (
    COST_CLASS_US,
    IDLE_CREDIT_US,
    INITIAL_COST_US,
    MIN_PRUNE_COUNT,
    FairQueue,
    QueueEntry,
)

SLICE_S = 0.002


class Server:
    """One that serves slices, as the poller does: half of them by use, half by age."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.now_s = 0.0
        self.slice_count = 0

    def entries(self, count: int, *, waiting: bool = True, owner: str = "") -> list[QueueEntry]:
        made = [QueueEntry(lambda: True, owner) for _ in range(count)]
        for entry in made if waiting else ():
            self.queue.push(entry)
        return made

    def serve(
        self, cost_of: Callable[[QueueEntry], float], again: Callable[[QueueEntry], bool] = lambda entry: True
    ) -> QueueEntry:
        self.slice_count += 1
        entry = self.queue.pop_oldest() if self.slice_count % 2 else self.queue.pop_fairest()
        assert entry is not None
        cost_s = cost_of(entry)
        self.now_s += cost_s
        self.queue.charge(entry, cost_s * 1e6)
        if again(entry):
            self.queue.push(entry)
        return entry


@pytest.mark.parametrize("order", ["pop_fairest", "pop_oldest"])
def test_first_come_first_served_among_equals(order: str) -> None:
    server = Server()
    entries = server.entries(5)
    for entry in entries:
        server.queue.push(entry)
    assert len(server.queue) == 5
    assert [getattr(server.queue, order)() for _ in range(6)] == [*entries, None]
    assert len(server.queue) == 0


def test_equal_shares_of_those_who_want_all() -> None:
    server = Server()
    entries = server.entries(10)
    taken = dict.fromkeys(entries, 0)
    for _ in range(2000):
        taken[server.serve(lambda entry: SLICE_S)] += 1
    assert max(taken.values()) - min(taken.values()) <= 20


@pytest.mark.parametrize("flood_count", [1, 10, 100, 1000])
def test_who_asks_for_little_waits_for_two_slices_not_for_a_round(flood_count: int) -> None:
    """200 requests a second of 0.1 ms each: twice the equal share among a hundred."""
    server = Server()
    server.entries(flood_count)
    (honest,) = server.entries(1, waiting=False)
    for _ in range(3 * flood_count):
        server.serve(lambda entry: SLICE_S)
    waits_s = list[float]()
    queued_at_s = due_s = server.now_s
    while len(waits_s) < 200:
        if server.now_s >= due_s and not honest.is_queued:
            queued_at_s, due_s = server.now_s, server.now_s + 0.005
            server.queue.push(honest)
        served = server.serve(lambda entry: 0.0001 if entry is honest else SLICE_S, lambda entry: entry is not honest)
        if served is honest:
            waits_s.append(server.now_s - queued_at_s)
    assert max(waits_s) <= 2 * SLICE_S


def test_nobody_is_left_out_however_many_ask_for_little() -> None:
    server = Server()
    (greedy,) = server.entries(1)
    for _ in range(60):
        server.serve(lambda entry: SLICE_S)
    turns = 0
    for _ in range(2000):
        server.entries(1)  # new ones all the time
        turns += server.serve(lambda entry: SLICE_S, lambda entry: entry is greedy) is greedy
    assert turns >= 1


def test_what_a_slice_takes_counts_by_doublings() -> None:
    entry = QueueEntry(lambda: True)
    assert entry.cost_class() == (int(INITIAL_COST_US) // COST_CLASS_US).bit_length()
    for _ in range(100):
        entry.charge(2000)
    assert 2000 / 2 ** entry.cost_class() < COST_CLASS_US <= 2000 / 2 ** (entry.cost_class() - 1)
    long = entry.cost_class()
    entry.charge(100)
    assert long - 1 <= entry.cost_class() <= long, "one short slice makes nobody short"
    for _ in range(100):
        entry.charge(50)
    assert entry.cost_class() == 0


@pytest.mark.parametrize("cost_us", [500, 2000, 20_000])
def test_costly_single_requests_do_not_count_as_short(cost_us: int) -> None:
    """A hundred that wait for each answer, and an honest one whose sends take a tenth of all time."""
    server = Server()
    flood = server.entries(100)
    (honest,) = server.entries(1, waiting=False)
    for _ in range(300):
        server.serve(lambda entry: cost_us / 1e6)
    for _ in range(50):
        server.queue.push(honest)
        before_s, served = server.now_s, None
        while served is not honest:
            served = server.serve(lambda entry: 0.0001 if entry is honest else cost_us / 1e6, flood.__contains__)
        assert server.now_s - before_s <= 2 * cost_us / 1e6 + 0.0002


def test_who_has_left_is_not_served() -> None:
    server = Server()
    gone, here = server.entries(2)
    gone.is_queued = False
    assert (server.queue.pop_fairest(), server.queue.pop_fairest()) == (here, None)
    server.queue.push(gone)
    server.queue.push(here)
    gone.is_queued = False
    assert (server.queue.pop_oldest(), server.queue.pop_oldest()) == (here, None)


def test_who_left_and_came_again_stands_at_the_end() -> None:
    server = Server()
    first, second = server.entries(2)
    first.is_queued = False
    server.queue.push(first)
    assert [server.queue.pop_oldest(), server.queue.pop_oldest(), server.queue.pop_oldest()] == [second, first, None]


def test_what_was_taken_by_age_does_not_pile_up() -> None:
    server = Server()
    server.entries(3)
    for _ in range(1000):
        entry = server.queue.pop_oldest()
        assert entry is not None
        server.queue.push(entry)
    (owner,) = server.queue._flows.values()
    assert len(owner.waiting) <= 2 * 3 + 64


HONEST_S = 0.0001


@pytest.mark.parametrize("flood_count", [1, 10, 100, 1000])
def test_newcomers_stand_behind_those_who_are_known_to_ask_for_little(flood_count: int) -> None:
    """A hundred new connections with a costly request each held up an honest one until all had been served once."""
    server = Server()
    (honest,) = server.entries(1)
    honest.is_drained = True
    for _ in range(3):
        server.serve(lambda entry: HONEST_S)
    flood = set(server.entries(flood_count))
    for _ in range(20):
        server.queue.push(honest)
        assert honest in [server.serve(lambda entry: 0.01 if entry in flood else HONEST_S) for _ in range(3)]


@pytest.mark.parametrize("flood_count", [10, 100, 1000])
def test_newcomers_stand_behind_those_who_are_known_to_ask_for_as_little(flood_count: int) -> None:
    """On a slow machine a send counted as much as a new connection, and waited for all that had come before."""
    server = Server()
    (honest,) = server.entries(1)
    for _ in range(40):
        server.serve(lambda entry: INITIAL_COST_US / 1e6)
    server.queue.pop_oldest()
    server.entries(flood_count)
    for _ in range(20):
        server.queue.push(honest)
        assert honest in [server.serve(lambda entry: INITIAL_COST_US / 1e6, lambda entry: False) for _ in range(3)]
        server.entries(3)  # more of them come all the time


@pytest.mark.parametrize("flood_count", [1, 10, 100])
def test_what_gathered_while_somebody_waited_does_not_make_him_wait_again(flood_count: int) -> None:
    """Its slice is as long as those of the flood, but has handled all there was."""
    server = Server()
    (honest,) = server.entries(1, waiting=False)
    server.entries(flood_count)
    for _ in range(30):
        server.queue.push(honest)
        served = []
        while honest not in served:
            honest.is_drained = True
            served.append(server.serve(lambda entry: SLICE_S, lambda entry: entry is not honest))
        waited_for = len(served)
    assert waited_for <= 3


@pytest.mark.parametrize("flood_count", [1, 10, 100])
def test_many_cheap_requests_at_once_do_not_stand_behind_costly_ones(flood_count: int) -> None:
    """What had gathered at an attack's begin made the slices of an honest client as long as the attacker's, and they
    stayed so as long as the attack lasted."""
    server = Server()
    (honest,) = server.entries(1, waiting=False)
    for entry in server.entries(flood_count):
        entry.request_count = 4
    honest.request_count, honest.is_deferred = 64, True
    for _ in range(30):
        server.queue.push(honest)
        served = []
        while honest not in served:
            served.append(server.serve(lambda entry: SLICE_S, lambda entry: entry is not honest))
        waited_for = len(served)
    assert waited_for <= 3


def test_many_requests_that_are_handled_one_by_one_count_as_long_as_they_take() -> None:
    """Commits of offsets, 64 in each slice, stood before sends, 40 in each: nobody else was served for 2 ms each."""
    sends, commits = QueueEntry(lambda: True), QueueEntry(lambda: True)
    for entry, count, cost_us in ((sends, 40, 700), (commits, 64, SLICE_S * 1e6)):
        for _ in range(20):
            entry.begin_slice()
            entry.is_drained, entry.request_count, entry.is_deferred = True, count, entry is sends
            entry.charge(cost_us)
    assert sends.cost_class() < commits.cost_class()


def test_a_first_short_slice_is_no_proof_yet_and_a_long_one_is() -> None:
    short, long = QueueEntry(lambda: True), QueueEntry(lambda: True)
    before = short.cost_class()
    short.charge(70)
    long.charge(2000)
    assert short.cost_class() == before and long.cost_class() == (2000 // COST_CLASS_US).bit_length()


def test_who_is_drained_by_costly_requests_is_no_better_than_others() -> None:
    server = Server()
    costly, cheap = server.entries(2)
    costly.is_drained = True
    costly.charge(50_000)
    cheap.charge(SLICE_S * 1e6)
    assert costly.cost_class() > cheap.cost_class()


@pytest.mark.parametrize("is_drained", [False, True])
@pytest.mark.parametrize("honest_s", [0.0003, 0.001, SLICE_S])
@pytest.mark.parametrize("guest_s", [0.0002, 0.0004, SLICE_S])
def test_a_hundred_connections_of_one_do_not_stand_before_the_only_one_of_another(
    guest_s: float, honest_s: float, is_drained: bool
) -> None:
    """Whatever a slice of either takes: those of a hundred who wait for each answer are short and leave nothing."""
    server = Server()
    server.entries(100, owner="guest")
    (honest,) = server.entries(1, waiting=False, owner="honest")

    def cost_of(entry: QueueEntry) -> float:
        entry.is_drained = is_drained
        return honest_s if entry is honest else guest_s

    for _ in range(300):
        server.serve(cost_of)
    waits_s, due_s = list[float](), server.now_s
    while len(waits_s) < 210:
        if server.now_s >= due_s and not honest.is_queued:
            queued_at_s, due_s = server.now_s, max(server.now_s, due_s + 4 * honest_s)
            server.queue.push(honest)
        if server.serve(cost_of, lambda entry: entry is not honest) is honest:
            waits_s.append(server.now_s - queued_at_s)
    assert max(waits_s[10:]) <= 3 * guest_s + honest_s, "it is known by then"


def test_each_owner_gets_an_equal_share_by_whatever_number_of_connections() -> None:
    server = Server()
    crowd = set(server.entries(100, owner="guest"))
    server.entries(2, owner="honest")
    honest_s = 0.0
    for _ in range(3000):
        cost_s = 0.001 if server.serve(lambda entry: 0.001 if entry in crowd else SLICE_S) in crowd else SLICE_S
        honest_s += cost_s if cost_s == SLICE_S else 0.0
    assert 0.45 <= honest_s / server.now_s <= 0.55


def test_a_long_pause_earns_no_more_than_the_credit() -> None:
    server = Server()
    server.entries(3, owner="busy")
    (idle,) = server.entries(1, waiting=False, owner="idle")
    server.queue.charge(idle, 1)
    for _ in range(5000):
        server.serve(lambda entry: SLICE_S)
    server.queue.push(idle)
    in_a_row = 0
    while (entry := server.queue.pop_fairest()) is idle:
        in_a_row += 1
        server.queue.charge(idle, SLICE_S * 1e6)
        server.queue.push(idle)
    assert entry is not None and 1 <= in_a_row <= IDLE_CREDIT_US / (SLICE_S * 1e6) + 2


def test_what_many_connections_got_by_age_is_no_debt_for_ever() -> None:
    """Half of the time goes by age, so whoever has most connections gets more than his share while three owners want
    all; later he shared nothing but that half with the only one that was left, for as long as they had been three."""
    server = Server()
    crowd = server.entries(100, owner="many")
    (other,) = server.entries(1, owner="other")
    (third,) = server.entries(1, owner="third")
    for _ in range(10_000):
        server.serve(lambda entry: SLICE_S)
    for entry in (*crowd, third):
        entry.is_queued = False  # their sockets were closed
    (one,) = server.entries(1, owner="many")
    queue = server.queue
    waited_for = 0
    while (chosen := queue.pop_fairest()) is other:
        waited_for += 1
        queue.charge(other, SLICE_S * 1e6)
        queue.push(other)
    assert chosen is one and waited_for <= 60, "100 ms of slices"


def test_owners_who_come_once_are_forgotten() -> None:
    server = Server()
    (busy,) = server.entries(1, owner="busy")
    for number in range(5000):
        server.entries(1, owner=f"{number}")
        for _ in range(2):
            server.serve(lambda entry: SLICE_S, lambda entry: entry is busy)
    assert len(server.queue._flows) <= 3 * MIN_PRUNE_COUNT
    assert len(server.queue._flow_heap) <= 3 * MIN_PRUNE_COUNT


def test_those_who_have_gone_count_for_nobody() -> None:
    queue = FairQueue()
    gone, mine, other = (
        QueueEntry(lambda: True, "a"),
        QueueEntry(lambda: True, "a"),
        QueueEntry(lambda: True, "b"),
    )
    for _ in range(100):
        queue.push(gone)
        gone.is_queued = False  # its socket was closed
    queue.push(mine)
    assert queue.pop_oldest() is mine and queue.pop_oldest() is None
    queue.charge(mine, 8 * COST_CLASS_US)
    queue.push(mine)
    queue.push(other)
    assert (queue.pop_fairest(), queue.pop_fairest(), queue.pop_fairest()) == (other, mine, None)


def test_those_whose_owner_is_known_once_they_are_served_stand_before_nobody() -> None:
    """A hundred connections of an address that turn out to be an account's: charged to that, the address has never had
    any time, and each of them was served before those who are known."""
    server = Server()
    (honest,) = server.entries(1, owner="honest")
    for _ in range(20):
        server.serve(lambda entry: HONEST_S)

    def cost_of(entry: QueueEntry) -> float:
        if entry is not honest:
            entry.owner = "guest"
        return 0.001 if entry is honest else 0.004

    server.entries(300, owner="127.0.0.1")
    for _ in range(40):
        server.queue.push(honest)
        assert honest in [server.serve(cost_of, lambda entry: entry is not honest) for _ in range(6)]


@pytest.mark.parametrize("seed", range(20))
def test_who_is_served_at_once_counts_as_one_who_came_and_was_next(seed: int) -> None:
    draws, queues = random.Random(seed), (FairQueue(), FairQueue())
    owners = [draws.choice("ABC") for _ in range(6)]
    entries = [[QueueEntry(lambda: True, owner) for owner in owners] for _ in queues]
    orders: tuple[list[int], list[int]] = ([], [])
    for _ in range(300):
        cost_us, number = draws.choice([20, 300, 4000]), draws.randrange(len(owners))
        several = draws.sample(range(len(owners)), draws.randrange(2, 5))
        is_lone = draws.random() < 0.6
        for queue, own, order, passes in zip(queues, entries, orders, (False, True), strict=True):
            if is_lone and passes:
                queue.bypass(own[number])
                queue.charge(own[number], cost_us)
                continue
            for each in [number] if is_lone else several:
                queue.push(own[each])
            while (entry := queue.pop_fairest()) is not None:
                queue.charge(entry, cost_us)
                order += [] if is_lone else [own.index(entry)]
    assert orders[0] == orders[1] and orders[0]
