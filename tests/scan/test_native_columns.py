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
from rmqha.scan.inner_batches import explode
from rmqha.scan.native import columns as native_columns
from rmqha.scan.walk import Window, walk
from rmqha.store.log.record import NewMessage
from tests.fuzz.budget import fuzz
from tests.kernel.support import kernel_named
from tests.kernel.test_scan import V6, log_of
from tests.store.support import HOST, message

TEXTS = ("body", "topic", "keys", "tags")
NUMBERS = ("queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp", "sysFlag", "flag")
NAMES = (*TEXTS, *NUMBERS)
PROPERTIES = st.sampled_from(
    [
        b"UNIQ_KEY\x01U\x02KEYS\x01a b\x02TAGS\x01x\x02WAIT\x01true\x02",
        b"TAGS\x01first\x02TAGS\x01last\x02KEYS\x01one",
        b"TAGS\x01last\x02TAGS\x01\x02KEYS\x01  a   b  \x02",
        "TAGS\x01\u00fc\x02KEYS\x01\u4f60 \U0001f600\x02".encode(),
        b"xTAGS\x01no\x02KEYSx\x01no\x02TAG\x01no",
        b"\x02\x02TAGS\x02KEYS\x01\x01k\x02",
        b"TAGS",
        b"".join(b"name%d\x01%s\x02" % (size, b"v" * size) for size in range(40))
        + b"TAGS\x01behind\x02KEYS\x01k"
        + b" k" * 9,
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
    assert set(found) == names
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
    assert native(late) == {} and set(native(late, ("body", "storeTimestamp"))) == {"body", "storeTimestamp"}


@pytest.mark.parametrize(
    "properties",
    [b"TAGS\x01" + b"t" * 500, b"KEYS\x01" + b"k" * 500, b"KEYS\x01" + b"k " * 50, b"\x02" * 500],
    ids=["a long tag", "a long key", "many keys", "separators alone"],
)
def test_longer_texts_than_usual_have_room(properties: bytes) -> None:
    items = [message(number, topic="T" * 127, properties=properties, body=b"x" * number) for number in range(20)]
    found = native(records_of(log_of(items)))
    for name, array in found.items():
        array.validate(full=True)
        assert array.equals(records_of(log_of(items)).column(name, Decoding())), name
    assert set(found) == set(NAMES)


@given(
    st.lists(st.sampled_from([b"\x02", b"\x01", b"TAGS\x01", b"KEYS\x01", b"TAGS", b"a", b" ", b"v" * 61]), max_size=99)
)
def test_separators_anywhere(parts: list[bytes]) -> None:
    log = log_of([message(1, properties=b"".join(parts))])
    found = native(records_of(log))
    for name in ("keys", "tags"):
        assert found[name].equals(records_of(log).column(name, Decoding())), name


def test_a_row_with_a_fault_has_no_body() -> None:
    """An inner batch whose CRC is right and whose messages do not fill it is one row that says so, without a body."""
    items = [message(1, body=b"no message"), message(2)]
    log = bytearray(log_of(items))
    log[36:40] = (0x80 | 0x40).to_bytes(4, "big")
    decoding = Decoding(("body", "_corrupt", "sysFlag"), on_corrupt="row")

    def rows() -> Any:
        (piece,) = explode(records_of(bytes(log)), decoding)
        (batch,) = piece.batches(decoding)
        return batch.to_pylist()

    found = rows()
    assert [row["body"] for row in found] == [None, items[1].body] and "inner batch" in found[0]["_corrupt"]
    native_columns.use(None)
    assert rows() == found


def test_flags_of_a_walk_are_those_of_its_records() -> None:
    flags = [0x10, 0x1, 0, 0x100]
    items = [message(number, sys_flag=flag, born_host=V6 if flag & 0x10 else HOST) for number, flag in enumerate(flags)]
    for count in range(1, 5):
        log = log_of(items[:count])
        window = Window("commitlog/0", 0, bytearray(log), np.frombuffer(log, np.uint8))
        assert walk(window, len(log)).seen_flags == sum(flags[:count])


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
