"""The kernel tells of each connection how long it has been silent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.abuse.gaps import SAMPLE_S, Gaps, Link, silences

SILENT_S = 0.3


def connection(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asker = stack.enter_context(socket.create_connection(listener.getsockname()))
        served, _ = listener.accept()
        return asker, stack.enter_context(served)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_gaps_of_what_is_sent_and_of_what_comes(stack: ExitStack) -> None:
    beating, controller = connection(stack)
    slave, master = connection(stack)
    gaps = Gaps([os.getpid()], controller.getsockname()[1], master.getsockname()[1])
    try:
        began = time.monotonic()
        while time.monotonic() < began + SILENT_S:
            beating.sendall(b"beat")
            time.sleep(SAMPLE_S / 4)
    finally:
        gaps.close()
    assert gaps.ack_ms >= SILENT_S * 1000 / 2, "nobody acknowledged"
    slave.sendall(b"ack")
    master.recv(3)
    link = Link(master.getsockname()[1], slave.getsockname()[1])
    before = silences()[link]
    time.sleep(SILENT_S)
    after = silences()[link]
    assert after.received_ms - before.received_ms >= SILENT_S * 1000 / 2 and after.inode == before.inode


def test_a_connection_that_ends_is_silent(stack: ExitStack) -> None:
    _, controller = connection(stack)
    slave, master = connection(stack)
    gaps = Gaps([os.getpid()], controller.getsockname()[1], master.getsockname()[1])
    try:
        slave.close()
        master.close()
        time.sleep(SILENT_S)
        ended_at_ms = gaps.ack_ms
        time.sleep(SILENT_S)
    finally:
        gaps.close()
    assert gaps.ack_ms > ended_at_ms > 0


def test_who_is_not_there_cannot_be_watched() -> None:
    with pytest.raises(AssertionError, match="no broker is connected"):
        Gaps([os.getpid()], 1, 2)


def test_who_is_no_broker_acknowledges_nothing(stack: ExitStack) -> None:
    """An attacker that is connected to the HA port when the watch begins is no slave that falls silent when he goes."""
    _, controller = connection(stack)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    ha_port = listener.getsockname()[1]
    comes = f"import socket, sys; there = socket.create_connection(('127.0.0.1', {ha_port})); sys.stdin.read()"
    stranger = subprocess.Popen([sys.executable, "-c", comes], stdin=subprocess.PIPE)
    try:
        stack.enter_context(listener.accept()[0])
        with pytest.raises(AssertionError, match="no slave to the master"):
            Gaps([os.getpid()], controller.getsockname()[1], ha_port)
    finally:
        stranger.communicate()
