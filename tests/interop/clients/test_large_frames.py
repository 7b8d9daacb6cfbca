"""Transfers of up to 1 MiB, whoever the slave is: Apache's broker reads them (its own master sends 32 KiB)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from rmqha.wire.ha_stream import MAX_TRANSFER_BYTES, TRANSFER_HEADER_BYTES, HaState
from tests.interop.lab.group import TIMEOUT_S, is_master, logs_are_equal, whole_set
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import until
from tests.interop.lab.tap import Tap

pytestmark = pytest.mark.interop

TOPIC = "LargeFrames"
BODY_BYTES = 4000
PART = 3500
"""14 MB: several CommitLog files of 4 MiB."""
TOLD_HOST = "127.0.0.2"
"""brokerIP2 of the master: what listens there is the tap."""


def sizes_into(found: list[int]) -> Callable[[], Callable[[bytes], None]]:
    """Reads a master's stream by itself, not with the parser of the code under test: sizes of the transfers."""

    def make() -> Callable[[bytes], None]:
        waiting = bytearray()

        def seen(data: bytes) -> None:
            waiting.extend(data)
            while len(waiting) >= TRANSFER_HEADER_BYTES:
                state, size = struct.unpack_from(">ii", waiting)
                whole = (20 if state == HaState.HANDSHAKE else TRANSFER_HEADER_BYTES) + size
                if len(waiting) < whole:
                    return
                if state == HaState.TRANSFER and size:
                    found.append(size)
                del waiting[:whole]

        return seen

    return make


def test_apaches_slave_takes_transfers_of_a_mebibyte(lab: Lab) -> None:
    lab.start_our_name_server()
    ours = lab.our_broker("ours", brokerElectionPriority="1", brokerIP2=TOLD_HOST)
    apaches = lab.java_broker("apaches")
    sizes: list[int] = []
    tap = Tap(TOLD_HOST, ours.ha_port, "127.0.0.1", sizes_into(sizes))
    try:
        for node in (ours, apaches):
            lab.run(node)
        is_master(lab, ours)
        whole_set(lab, ours, apaches)
        apaches.running.kill()
        until("it has left the set", lambda: lab.members() == {ours.address}, TIMEOUT_S, ours.running)
        producer = lab.client("Produce", TOPIC, "0", str(PART), str(BODY_BYTES), "0")
        assert producer.wait(TIMEOUT_S) == 0, producer.tail()
        sizes.clear()

        lab.run(apaches)
        whole_set(lab, ours, apaches)
        logs_are_equal(ours, apaches, least_bytes=PART * BODY_BYTES)
    finally:
        tap.close()
    assert max(sizes) == MAX_TRANSFER_BYTES
    assert sizes.count(MAX_TRANSFER_BYTES) >= PART * BODY_BYTES // MAX_TRANSFER_BYTES // 2
