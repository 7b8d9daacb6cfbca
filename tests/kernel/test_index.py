"""The index of keys: both kernels make the same entries and find the same place for them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.kernel.batch_kernel import NEW_ENTRY, IndexFront, KeyedRecords, PlacedEntries
from rmqha.kernel.python_kernel import PythonKernel
from rmqha.model.message import encode_properties
from rmqha.store.index.index_key import key_hash
from tests.fuzz.budget import fuzz
from tests.kernel.support import kernel_named

NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "xKEYS", "WAIT")
TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "a b", " ", "  x", "7F00000100002A139A5500000000" + "1A2B", "ü", "你 好", "\U0001f600", "k" * 300]
    ),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12),
)
PROPERTIES = st.one_of(
    st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=4).map(
        lambda pairs: b"".join(f"{name}\x01{text}\x02".encode() for name, text in pairs)
    ),
    st.binary(max_size=60),
    st.binary(max_size=20).map(lambda key: b"KEYS\x01" + key + b"\x02TAGS\x01" + key),
)
RECORDS = st.lists(st.tuples(st.sampled_from(["T", "T", "U", "L" * 200, "%RETRY%g"]), PROPERTIES), max_size=12)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


class Both:
    """Both kernels, which keep what they keep from call to call."""

    def __init__(self) -> None:
        self._python, self._native = PythonKernel(), kernel_named("native")

    def entries(self, records: KeyedRecords) -> bytes:
        expected, found = (kernel.index_entries(records) for kernel in (self._python, self._native))
        assert found == expected, records
        return found

    def place(self, front: IndexFront, entries: bytes) -> PlacedEntries:
        expected, found = (
            placed._replace(positions=list(placed.positions))
            for placed in (kernel.index_place(front, entries) for kernel in (self._python, self._native))
        )
        assert found == expected
        return found

    def words(self, memory: bytes, positions: Sequence[int], words: bytes) -> bytes:
        """`memory` with these words in it."""
        expected, found, again = bytearray(memory), bytearray(memory), bytearray(memory)
        self._python.put_words(memoryview(expected), positions, words)
        self._native.put_words(memoryview(found), positions, words)
        self._native.put_words(memoryview(again), array("q", positions), words)
        assert found == again == expected
        return bytes(found)


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


def keyed(records: list[tuple[str, bytes]], first: int = 1 << 40, stored_ms: int = 1_795_227_462_186) -> KeyedRecords:
    tails = [len(properties).to_bytes(2, "big") + properties for _, properties in records]
    return KeyedRecords(
        [topic for topic, _ in records],
        tails,
        [first + 100 * number for number in range(len(records) + 1)],
        [stored_ms + number for number in range(len(records))],
    )


@fuzz
@given(RECORDS, st.integers(0, 1 << 62), NUMBERS.filter(lambda number: number < 1 << 62))
@example([("T", b"KEYS\x01\xe4\xbd\x02TAGS\x01\xff\xfe\xf0\x90")], 0, 0)
@example([("T", b"KEYS\x01\xed\xa0\x80 \xc3\x28 \xf4\x90\x80\x80")], 0, 0)
def test_both_make_the_same_entries(both: Both, records: list[tuple[str, bytes]], first: int, stored_ms: int) -> None:
    both.entries(keyed(records, first, stored_ms))


def test_the_entries_are_those_that_a_search_looks_for(both: Both) -> None:
    properties = encode_properties({"UNIQ_KEY": "U1", "KEYS": "a ü", "TAGS": "t"})
    found = list(NEW_ENTRY.iter_unpack(both.entries(keyed([("T", properties)], 7, 9))))
    wanted = [key_hash("T", "U1"), key_hash("T", "a"), key_hash("T", "ü"), key_hash("T", "t", "T")]
    assert found == [(value, 7, 9) for value in wanted]


def test_more_keys_than_there_was_memory_for(both: Both) -> None:
    keys = b"KEYS\x01" + b" ".join(b"%d" % number for number in range(6_000))
    assert len(both.entries(keyed([("T", keys), ("U", keys)]))) == 12_000 * NEW_ENTRY.size
    assert len(both.entries(keyed([("T", b"")] * 500))) == 0


@fuzz
@given(
    slots=st.lists(st.integers(-5, 60), min_size=1, max_size=20),
    entries=st.lists(
        st.tuples(st.integers(0, 40) | st.integers(0, 0x7FFFFFFF), st.integers(0, 1 << 62), NUMBERS), max_size=40
    ),
    first=st.integers(1, 50),
    begin_ms=st.sampled_from([0, -5, 1, 1_795_227_462_186, (1 << 63) - 1]),
)
def test_both_find_the_same_place(
    both: Both, slots: list[int], entries: list[tuple[int, int, int]], first: int, begin_ms: int
) -> None:
    view = memoryview(bytearray(40) + struct.pack(f">{len(slots)}i", *slots))
    new = b"".join(NEW_ENTRY.pack(*entry) for entry in entries)
    placed = both.place(IndexFront(view, len(slots), first, begin_ms), new)
    assert both.place(IndexFront(view.toreadonly(), len(slots), first, begin_ms), new) == placed
    assert len(placed.entries) == len(new) and len(placed.heads) == 4 * len(placed.positions)
    assert sorted(set(placed.positions)) == sorted(placed.positions), "each slot is written once"


@fuzz
@given(memory=st.binary(min_size=4, max_size=70), draws=st.lists(st.tuples(st.integers(0, 100), st.binary(max_size=4))))
def test_both_put_the_same_words(both: Both, memory: bytes, draws: list[tuple[int, bytes]]) -> None:
    positions = [number % (len(memory) // 4) * 4 for number, _ in draws]
    words = b"".join(word.ljust(4, b"!") for _, word in draws)
    both.words(memory, positions, words)


def test_a_word_is_never_put_outside_the_memory_or_across_places() -> None:
    native, memory = kernel_named("native"), bytearray(12)
    for position in (-4, 12, 8 + 1, 1 << 62, -(1 << 63)):
        with pytest.raises(RuntimeError, match="refuses"):
            native.put_words(memoryview(memory), [position], b"abcd")
    assert memory == bytes(12)
