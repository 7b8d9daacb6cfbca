"""A native decoder makes the columns that NumPy makes, and leaves to it what is not plain."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.host import kernel_choice
from rmqha.model.error import StoreError
from rmqha.scan.columns import TYPES, Decoding, Records
from rmqha.scan.native import columns as native_columns
from rmqha.scan.walk import Window, walk
from rmqha.store.log.record import NewMessage
from tests.fuzz.budget import fuzz
from tests.kernel.support import kernel_named
from tests.kernel.test_scan import V6, log_of
from tests.store.support import HOST, message

NAMES = ("body", "topic", "keys", "tags", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
PROPERTIES = st.sampled_from(
    [
        b"UNIQ_KEY\x01U\x02KEYS\x01a b\x02TAGS\x01x\x02WAIT\x01true\x02",
        b"TAGS\x01first\x02TAGS\x01last\x02KEYS\x01one",
        b"TAGS\x01last\x02TAGS\x01\x02KEYS\x01  a   b  \x02",
        "TAGS\x01\u00fc\x02KEYS\x01\u4f60 \U0001f600\x02".encode(),
        b"xTAGS\x01no\x02KEYSx\x01no\x02TAG\x01no",
        b"\x02\x02TAGS\x02KEYS\x01\x01k\x02",
        b"TAGS",
        b"",
    ]
)
RARE = st.sampled_from([b"TAGS\x01\xff\x02", b"KEYS\x01\xc3\x28 a\x02", b"KEYS\x01\xed\xa0\x80"])


def messages(properties: Any = PROPERTIES) -> Any:
    return st.builds(
        lambda topic, queue_id, text, v6, body, born_ms: message(
            topic=topic,
            queue_id=queue_id,
            properties=text,
            body=body,
            born_at_ms=born_ms,
            born_host=V6 if v6[0] else HOST,
            store_host=V6 if v6[1] else HOST,
        ),
        st.sampled_from(["T", "%RETRY%g", "L" * 130]),
        st.integers(0, 3),
        properties,
        st.tuples(st.booleans(), st.booleans()),
        st.sampled_from([b"", b"b", b"x" * 700]),
        st.sampled_from([0, 1_795_227_462_186, -5, (1 << 63) // 1000 - 1]),
    )


def records_of(log: bytes) -> Records:
    window = Window("commitlog/0", 0, bytearray(log), np.frombuffer(log, np.uint8))
    return Records(window, walk(window, len(log)).starts)


@pytest.fixture(autouse=True)
def decoder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernel_named("native")
    monkeypatch.setattr(native_columns, "LEAST_COUNT", 1)
    native_columns.use(kernel_choice.native_columns())
    yield
    native_columns.use(None)


def native(records: Records, names: tuple[str, ...] = NAMES, *, crc: bool = True) -> dict[str, Any]:
    return native_columns.arrays(records.window.data, records.starts, names, TYPES, 1, crc)


@fuzz
@given(st.lists(messages(), min_size=1, max_size=20), st.sets(st.sampled_from(NAMES), min_size=1), st.booleans())
def test_both_make_the_same(items: list[NewMessage], names: set[str], crc: bool) -> None:
    records, wanted = records_of(log_of(items)), tuple(sorted(names))
    found = native(records, wanted, crc=crc)
    has_text = bool(names & {"body", "topic", "keys", "tags"})
    assert set(found) == (names if has_text else set())
    decoding = Decoding(wanted, verify_crc=crc)
    for name, array in found.items():
        array.validate(full=True)
        expected = records_of(log_of(items)).column(name, decoding)
        assert array.type == expected.type and array.equals(expected), name


@fuzz
@given(st.lists(messages(), max_size=5), messages(RARE), st.lists(messages(), max_size=5))
def test_texts_that_are_no_utf_8_are_left_to_numpy(
    before: list[NewMessage], rare: NewMessage, after: list[NewMessage]
) -> None:
    items = [*before, rare, *after]
    records = records_of(log_of(items))
    assert native(records) == {}
    (batch,) = records.batches(Decoding(NAMES))
    native_columns.use(None)
    (expected,) = records_of(log_of(items)).batches(Decoding(NAMES))
    native_columns.use(kernel_choice.native_columns())
    assert batch.equals(expected)


def test_a_batch_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(message(number, properties=b"TAGS\x01t\x02KEYS\x01k", body=b"x" * number) for number in range(40))
    calls: list[dict[str, Any]] = []
    arrays = native_columns.arrays

    def noted(*given: Any) -> dict[str, Any]:
        found = arrays(*given)
        calls.append(dict(found))
        return found

    monkeypatch.setattr(native_columns, "arrays", noted)
    (found,) = records_of(log).batches(Decoding())
    assert set(calls[0]) == set(NAMES)
    native_columns.use(None)
    (expected,) = records_of(log).batches(Decoding())
    assert calls[1] == {} and found.equals(expected)


def test_a_compressed_body_and_a_late_time_are_left_to_numpy() -> None:
    compressed = records_of(log_of([message(1), message(2, sys_flag=1)]))
    assert native(compressed) == {} and native(compressed, ("topic",)) == {}
    late = records_of(log_of([message(1, born_at_ms=(1 << 63) // 1000 + 1)]))
    assert native(late) == {} and set(native(late, ("body",))) == {"body"}


@fuzz
@given(st.lists(messages(), min_size=1, max_size=12), st.data())
def test_a_walk_finds_the_same_records(items: list[NewMessage], data: st.DataObject) -> None:
    log = bytearray(log_of(items))
    if data.draw(st.booleans()):
        log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    size, base = data.draw(st.integers(0, len(log))), data.draw(st.sampled_from([0, 0, 8]))
    behind = data.draw(st.sampled_from([0, 300]))
    window = Window("commitlog/0", base, log[:size], np.frombuffer(log[:size], np.uint8), behind)
    stop = data.draw(st.integers(0, size + behind))
    found = walk(window, stop)
    native_columns.use(None)
    expected = walk(window, stop)
    native_columns.use(kernel_choice.native_columns())
    assert (found.starts.tolist(), found.end, found.broken) == (expected.starts.tolist(), expected.end, expected.broken)


def outcome(log: bytes, starts: Any, decoding: Decoding) -> Any:
    try:
        window = Window("commitlog/0", 0, bytearray(log), np.frombuffer(log, np.uint8))
        return list(Records(window, starts).batches(decoding))
    except StoreError as error:
        return str(error)


@pytest.mark.parametrize("on_corrupt", ["fail", "skip", "row"])
def test_damaged_records(on_corrupt: str) -> None:
    """As NumPy says of them, wherever the damage is but in what the walk has looked at."""
    log = log_of(message(number, properties=b"KEYS\x01a b\x02TAGS\x01t", body=b"x" * 9) for number in range(6))
    starts, random = records_of(log).starts, Random(1)
    walked = {start + at for start in starts.tolist() for at in (*range(8), *range(28, 36))}
    places = [at for at in range(len(log)) if at not in walked]
    decoding = Decoding((*NAMES, "_corrupt"), on_corrupt=on_corrupt)
    for number in range(1500):
        damaged = bytearray(log)
        for _ in range(1 + number % 3):
            at = random.choice(places)
            damaged[at] = random.choice((0, 1, 2, 0x20, 0x7F, 0x80, 0xFF, damaged[at] ^ 1))
        found = outcome(bytes(damaged), starts, decoding)
        native_columns.use(None)
        assert found == outcome(bytes(damaged), starts, decoding)
        native_columns.use(kernel_choice.native_columns())
