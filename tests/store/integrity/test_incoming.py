"""A slave appends only sound records, however its master's stream is cut, and says which one is not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.model.offset import PhyOffset
from rmqha.store.log.record import BLANK, MAGIC_BLANK, locate
from rmqha.store.store import Store
from tests.store.support import SMALL, message, open_store, sim_disk
from tests.support.tracer import RecordingTracer

COUNT = 40
V6 = (bytes(15) + b"\x01", 10911)


def written() -> tuple[bytes, list[int]]:
    """A log of several files with blank records, IPv6 hosts and long topics, and where its records begin."""
    store, starts = open_store(sim_disk()), list[int]()
    for number in range(COUNT):
        more: dict[str, Any] = {"born_host": V6} if number % 5 == 1 else {"store_host": V6} if number % 7 == 2 else {}
        topic = "T" * 200 if number % 9 == 4 else "T"
        body = b"%d" % number * (1 + 97 * (number % 4))
        starts.append(store.append(message(number, topic=topic, body=body, **more), 1).phy_offset)
    size, data = store.max_phy_offset, bytearray()
    while len(data) < size:
        data += store.view(PhyOffset(len(data)), size)
    return bytes(data), starts


LOG, STARTS = written()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def feed(store: Store, parts: list[bytes]) -> str:
    for part in parts:
        fault = store.append_raw(store.max_phy_offset, part)
        if fault:
            return fault
    return ""


def held(store: Store) -> bytes:
    data = bytearray()
    while len(data) < store.max_phy_offset:
        data += store.view(PhyOffset(len(data)), 1 << 20)
    return bytes(data)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=30))
def test_a_sound_log_is_taken_however_it_is_cut(cuts: list[int]) -> None:
    assert len(LOG) > 3 * SMALL.mapped_file_size_commit_log, "blank records are among it"
    store = open_store(sim_disk())
    assert feed(store, pieces(LOG, cuts)) == ""
    assert held(store) == LOG and store.record_end_offset == len(LOG)


def covered(start: int, end: int) -> list[int]:
    """Bytes of the record [start, end) whose change the form or a CRC shows: head without flag, times, hosts and
    counts; body."""
    sizes = [*range(12), *range(28, 36)]
    _, _, _, _, body_at, body_bytes, *_ = locate(memoryview(LOG), start, end, start)
    return [start + at for at in sizes] + list(range(body_at - 4, body_at + body_bytes))


@settings(max_examples=150, deadline=None)
@given(
    number=st.integers(0, COUNT - 1),
    which=st.integers(0, 1 << 20),
    bit=st.integers(0, 7),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
)
def test_a_record_with_one_bit_wrong_is_not_taken(number: int, which: int, bit: int, cuts: list[int]) -> None:
    start = STARTS[number]
    end = [*STARTS, len(LOG)][number + 1]
    places = covered(start, end)
    at = places[which % len(places)]
    damaged = bytearray(LOG)
    damaged[at] ^= 1 << bit
    trace = RecordingTracer()
    store = open_store(sim_disk(), tracer=trace)
    fault = feed(store, pieces(bytes(damaged), cuts))
    assert fault.startswith(f"the record at {start} that the master sent is not sound: ")
    assert store.max_phy_offset == start and held(store) == LOG[:start]
    assert trace.names().count("record_refused") == 1 and store.damage.refused is not None
    # mended, it goes on where it stopped
    assert feed(store, pieces(LOG[start:], cuts)) == ""
    assert held(store) == LOG and store.damage.refused is None


def test_a_blank_record_that_does_not_reach_the_files_end() -> None:
    at = LOG.index(MAGIC_BLANK.to_bytes(4, "big")) - 4
    damaged = bytearray(LOG)
    damaged[at : at + 8] = BLANK.pack(BLANK.unpack_from(LOG, at)[0] - 1, MAGIC_BLANK)
    for cuts in ([], [at + 4], [at + 8], [at + 2, at + 9]):
        store = open_store(sim_disk())
        assert "is not sound" in feed(store, pieces(bytes(damaged), cuts))
        assert store.max_phy_offset == at


def test_it_goes_on_after_a_restart_in_the_middle_of_a_record() -> None:
    disk = sim_disk()
    store = open_store(disk)
    half = STARTS[7] + 30
    assert store.append_raw(PhyOffset(0), LOG[:half]) == ""
    store.close()
    store = open_store(disk)
    assert feed(store, [LOG[store.max_phy_offset : store.max_phy_offset + 50], LOG[store.max_phy_offset + 50 :]]) == ""
    assert held(store) == LOG
