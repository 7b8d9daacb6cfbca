"""What faults leave of a simulated connection: every byte once and in order, up to the place where it ends."""

from __future__ import annotations

import pytest

from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Connection, Delays, Transport


class End:
    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.closed_count = 0
        self.conn: Connection | None = None

    def accepted(self, conn: Connection, port: str) -> None:
        self.conn = conn

    def received(self, conn: Connection, data: bytes) -> None:
        assert not self.closed_count
        self.arrived.append(data)

    def closed(self, conn: Connection) -> None:
        self.closed_count += 1


def connected(seed: int) -> tuple[Scheduler, Transport, End, End]:
    """The transport, and who dialed and who was dialed, their connection open."""
    scheduler = Scheduler()
    transport = Transport(scheduler, SimPrng(seed), Delays(0, 5))
    near, far = End(), End()
    transport.listen("b", "b:1", far)

    def opened(conn: Connection | None) -> None:
        near.conn = conn

    transport.connect("a", near, "b:1", opened)
    scheduler.run_until(100)
    assert near.conn is not None and far.conn is not None
    return scheduler, transport, near, far


@pytest.mark.parametrize("seed", range(20))
def test_split_bytes_come_in_order_and_before_the_end(seed: int) -> None:
    scheduler, transport, near, far = connected(seed)
    transport.split_per_mille = 800
    assert near.conn is not None
    sent = [bytes([number]) * (number % 7 + 1) for number in range(100)]
    for number, piece in enumerate(sent):
        scheduler.run_until(100 + number)
        near.conn.send(piece)
    near.conn.close()
    scheduler.run_until(10_000)
    assert b"".join(far.arrived) == b"".join(sent)
    assert far.closed_count == 1
    assert not {*far.arrived} <= {*sent}, "some piece was cut"


def test_a_reset_loses_a_chance_part_of_what_is_under_way() -> None:
    lengths = set()
    for seed in range(30):
        scheduler, transport, near, far = connected(seed)
        assert near.conn is not None and far.conn is not None
        transport.hold(near.conn, 50)
        for _ in range(10):
            near.conn.send(b"abcdefghij")
        far.conn.send(b"lost")
        transport.break_off(near.conn, SimPrng(seed))
        assert near.closed_count == 1 and not near.conn.is_open
        scheduler.run_until(10_000)
        assert (near.arrived, near.closed_count, far.closed_count) == ([], 1, 1)
        found = b"".join(far.arrived)
        assert found == (b"abcdefghij" * 10)[: len(found)]
        lengths.add(len(found))
        transport.break_off(near.conn, SimPrng(seed))  # it is over
        assert near.closed_count == 1
    assert len(lengths) > 10 and any(length % 10 for length in lengths)


@pytest.mark.parametrize("sent", [b"", b"request"])
@pytest.mark.parametrize("held_ms", [100, 3000])
def test_who_believes_in_a_connection_to_a_host_without_power_is_told_when_that_is_back(
    sent: bytes, held_ms: int
) -> None:
    """Also if what the host had sent stood still when its power went: it arrives first, then the end."""
    scheduler, transport, near, far = connected(1)
    assert far.conn is not None
    transport.hold(far.conn, held_ms)
    if sent:
        far.conn.send(sent)
    transport.power_off("b")
    scheduler.run_until(2000)
    assert near.closed_count == 0
    transport.power_on("b")
    scheduler.run_until(5000)
    assert near.closed_count == 1 and b"".join(near.arrived) == sent
    assert near.conn is not None and not near.conn.is_open
