"""What the cable of `rmqha drill loss` and `delay` does to frames: here over pairs of datagram sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rmqha.drill.error import DrillError
from rmqha.drill.hosts.namespaces import LossyCable
from tests.support.patience import HANG_S, until


@contextmanager
def ends(*, loss_per_mille: int, delay_ms: int) -> Iterator[tuple[socket.socket, socket.socket, LossyCable]]:
    """The two hosts' ends, and the cable between them."""
    a, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    b, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.setblocking(False)
    far.setblocking(False)
    a.settimeout(HANG_S)
    b.settimeout(HANG_S)
    with a, b, LossyCable(near, far, loss_per_mille=loss_per_mille, delay_ms=delay_ms) as cable:
        yield a, b, cable


def test_frames_take_their_time_both_ways_and_overtake_each_other() -> None:
    with ends(loss_per_mille=0, delay_ms=40) as (a, b, cable):
        began = time.monotonic()
        sent = [bytes([number]) * 50 for number in range(9)]
        for frame in sent:
            a.send(frame)
        b.send(b"back")
        first = b.recv(100)
        assert time.monotonic() - began >= 0.02
        found = [first, *(b.recv(100) for _ in sent[1:])]
        assert sorted(found) == sent
        assert time.monotonic() - began >= 0.03
        assert a.recv(100) == b"back"
        assert (cable.carried_count, cable.lost_count) == (10, 0)


def test_some_frames_are_lost() -> None:
    with ends(loss_per_mille=300, delay_ms=0) as (a, b, cable):
        sent = received = 0

        def is_settled() -> bool:
            return cable.lost_count + cable.carried_count == sent

        while cable.lost_count <= 10 or cable.carried_count <= 10:
            assert sent < 1000
            a.send(b"x")
            sent += 1
            until(is_settled)
            while received < cable.carried_count:
                assert b.recv(10) == b"x"
                received += 1
        b.setblocking(False)
        with pytest.raises(BlockingIOError):
            b.recv(10)


def test_a_cable_that_breaks_is_told() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    listener = socket.socket()  # reading it is an error of the system
    with (
        pytest.raises(DrillError, match="the bad cable broke"),
        LossyCable(near, listener, loss_per_mille=0, delay_ms=0),
    ):
        until(lambda: "bad cable" not in [thread.name for thread in threading.enumerate()])
    far.close()
