"""Shares of the time: who asks for little is served at once, nobody is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqha.host.net.fair_queue import GRAIN_US, NEW_COST_US, FairQueue, Place

SLICE_S = 0.002


class Server:
    """One that serves slices, as the poller does: half of them by use, half by age."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.now_s = 0.0
        self.slice_count = 0

    def places(self, count: int, *, waiting: bool = True) -> list[Place]:
        made = [Place(lambda: True) for _ in range(count)]
        for place in made if waiting else ():
            self.queue.join(place)
        return made

    def serve(self, cost_of: Callable[[Place], float], again: Callable[[Place], bool] = lambda place: True) -> Place:
        self.slice_count += 1
        place = self.queue.oldest() if self.slice_count % 2 else self.queue.least()
        assert place is not None
        cost_s = cost_of(place)
        self.now_s += cost_s
        place.charge(cost_s * 1e6)
        if again(place):
            self.queue.join(place)
        return place


@pytest.mark.parametrize("order", ["least", "oldest"])
def test_first_come_first_served_among_equals(order: str) -> None:
    server = Server()
    places = server.places(5)
    for place in places:
        server.queue.join(place)
    assert len(server.queue) == 5
    assert [getattr(server.queue, order)() for _ in range(6)] == [*places, None]
    assert len(server.queue) == 0


def test_equal_shares_of_those_who_want_all() -> None:
    server = Server()
    places = server.places(10)
    taken = dict.fromkeys(places, 0)
    for _ in range(2000):
        taken[server.serve(lambda place: SLICE_S)] += 1
    assert max(taken.values()) - min(taken.values()) <= 20


@pytest.mark.parametrize("flood_count", [1, 10, 100, 1000])
def test_who_asks_for_little_waits_for_two_slices_not_for_a_round(flood_count: int) -> None:
    """200 requests a second of 0.1 ms each: twice the equal share among a hundred."""
    server = Server()
    server.places(flood_count)
    (honest,) = server.places(1, waiting=False)
    for _ in range(3 * flood_count):
        server.serve(lambda place: SLICE_S)
    waits_s = list[float]()
    came_at_s = due_s = server.now_s
    while len(waits_s) < 200:
        if server.now_s >= due_s and not honest.is_waiting:
            came_at_s, due_s = server.now_s, server.now_s + 0.005
            server.queue.join(honest)
        served = server.serve(lambda place: 0.0001 if place is honest else SLICE_S, lambda place: place is not honest)
        if served is honest:
            waits_s.append(server.now_s - came_at_s)
    assert max(waits_s) <= 2 * SLICE_S


def test_nobody_is_left_out_however_many_ask_for_little() -> None:
    server = Server()
    (greedy,) = server.places(1)
    for _ in range(60):
        server.serve(lambda place: SLICE_S)
    turns = 0
    for _ in range(2000):
        server.places(1)  # new ones all the time
        turns += server.serve(lambda place: SLICE_S, lambda place: place is greedy) is greedy
    assert turns >= 1


def test_what_a_slice_takes_counts_by_doublings() -> None:
    place = Place(lambda: True)
    assert place.length() == (int(NEW_COST_US) // GRAIN_US).bit_length()
    for _ in range(100):
        place.charge(2000)
    assert 2000 / 2 ** place.length() < GRAIN_US <= 2000 / 2 ** (place.length() - 1)
    long = place.length()
    place.charge(100)
    assert long - 1 <= place.length() <= long, "one short slice makes nobody short"
    for _ in range(100):
        place.charge(50)
    assert place.length() == 0


@pytest.mark.parametrize("cost_us", [500, 2000, 20_000])
def test_costly_single_requests_do_not_count_as_short(cost_us: int) -> None:
    """A hundred that wait for each answer, and an honest one whose sends take a tenth of all time."""
    server = Server()
    flood = server.places(100)
    (honest,) = server.places(1, waiting=False)
    for _ in range(300):
        server.serve(lambda place: cost_us / 1e6)
    for _ in range(50):
        server.queue.join(honest)
        before_s, served = server.now_s, None
        while served is not honest:
            served = server.serve(lambda place: 0.0001 if place is honest else cost_us / 1e6, flood.__contains__)
        assert server.now_s - before_s <= 2 * cost_us / 1e6 + 0.0002


def test_who_has_left_is_not_served() -> None:
    server = Server()
    gone, here = server.places(2)
    gone.is_waiting = False
    assert (server.queue.least(), server.queue.least()) == (here, None)
    server.queue.join(gone)
    server.queue.join(here)
    gone.is_waiting = False
    assert (server.queue.oldest(), server.queue.oldest()) == (here, None)


def test_who_left_and_came_again_stands_at_the_end() -> None:
    server = Server()
    first, second = server.places(2)
    first.is_waiting = False
    server.queue.join(first)
    assert [server.queue.oldest(), server.queue.oldest(), server.queue.oldest()] == [second, first, None]


def test_what_was_taken_by_age_does_not_pile_up() -> None:
    server = Server()
    server.places(3)
    for _ in range(1000):
        place = server.queue.oldest()
        assert place is not None
        server.queue.join(place)
    assert len(server.queue._by_use) <= 2 * 3 + 64


HONEST_S = 0.0001


@pytest.mark.parametrize("flood_count", [1, 10, 100, 1000])
def test_newcomers_stand_behind_those_who_are_known_to_ask_for_little(flood_count: int) -> None:
    """A hundred new connections with a costly request each held up an honest one until all had been served once."""
    server = Server()
    (honest,) = server.places(1)
    honest.is_drained = True
    for _ in range(3):
        server.serve(lambda place: HONEST_S)
    flood = set(server.places(flood_count))
    for _ in range(20):
        server.queue.join(honest)
        assert honest in [server.serve(lambda place: 0.01 if place in flood else HONEST_S) for _ in range(3)]


@pytest.mark.parametrize("flood_count", [1, 10, 100])
def test_what_gathered_while_somebody_waited_does_not_make_him_wait_again(flood_count: int) -> None:
    """Its slice is as long as those of the flood, but has handled all there was."""
    server = Server()
    (honest,) = server.places(1, waiting=False)
    server.places(flood_count)
    for _ in range(30):
        server.queue.join(honest)
        served = []
        while honest not in served:
            honest.is_drained = True
            served.append(server.serve(lambda place: SLICE_S, lambda place: place is not honest))
        waited_for = len(served)
    assert waited_for <= 3


def test_who_is_drained_by_costly_requests_is_no_better_than_others() -> None:
    server = Server()
    costly, cheap = server.places(2)
    costly.is_drained = True
    costly.charge(50_000)
    cheap.charge(SLICE_S * 1e6)
    assert costly.length() > cheap.length()


def test_a_hundred_connections_of_one_do_not_stand_before_the_only_one_of_another() -> None:
    """Its slices are as long as theirs: what it has been asked for has gathered while it waited."""
    server = Server()
    for place in server.places(100, waiting=False):
        place.owner = "guest"
        server.queue.join(place)
    (honest,) = server.places(1, waiting=False)
    honest.owner = "honest"
    for _ in range(300):
        server.serve(lambda place: SLICE_S)
    waits_s = list[float]()
    while len(waits_s) < 100:
        if not honest.is_waiting:
            came_at_s = server.now_s
            server.queue.join(honest)
        if server.serve(lambda place: SLICE_S, lambda place: place is not honest) is honest:
            waits_s.append(server.now_s - came_at_s)
    assert max(waits_s) <= 3 * SLICE_S


def test_those_who_have_gone_count_for_nobody() -> None:
    queue = FairQueue()
    gone, mine, other = Place(lambda: True, "a"), Place(lambda: True, "a"), Place(lambda: True, "b")
    for _ in range(100):
        queue.join(gone)
        gone.is_waiting = False  # its socket was closed
    queue.join(mine)
    assert queue.oldest() is mine and queue.oldest() is None
    for place in (mine, other):
        place.charge(8 * GRAIN_US)
    queue.join(other)
    queue.join(mine)
    assert queue.least() is mine, "each has half of it, but the first came to an empty queue"
