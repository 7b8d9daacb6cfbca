"""The quick walk over plain records passes by nothing that `verify` would stop at."""

from __future__ import annotations

from zlib import crc32

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqha.kernel.sound_records import skip_sound
from rmqha.store.log.record import BadRecordError, NewMessage, verify
from tests.kernel.support import kernels
from tests.store.log.test_record import encoded, messages
from tests.store.support import message

START = 4096 * 3 - 60
NEWEST_MS = 50


def log_of(news: list[NewMessage]) -> bytearray:
    data = bytearray()
    for place, new in enumerate(news):
        data += encoded(new, place, START + len(data), 100 + place)
    return data


def slow_walk(data: bytearray, at: int, stop: int) -> tuple[int, int]:
    """As `skip_sound`, with `verify`, and no further than `stop`."""
    newest = NEWEST_MS
    while at < stop:
        try:
            parts = verify(memoryview(data), at, len(data), START + at)
        except BadRecordError:
            break
        at, newest = at + parts[0], max(newest, parts[10])
    return at, newest


def check(data: bytearray) -> int:
    """Where the quick walk stops, with each kernel; everything before it is sound, and its newest time is what they
    say."""
    stop, newest = found = skip_sound(memoryview(data), 0, START, NEWEST_MS)
    for kernel in kernels():
        assert kernel.skip_sound(memoryview(data), 0, START, NEWEST_MS) == found
        assert kernel.skip_sound(memoryview(bytes(data)), 0, START, NEWEST_MS) == found, "bytes that may not be written"
    assert slow_walk(data, 0, stop) == (stop, newest)
    return stop


def test_plain_records_are_passed_to_the_last_one() -> None:
    data = log_of([message(number) for number in range(20)])
    assert check(data) == len(data)
    assert skip_sound(memoryview(data), 0, START, NEWEST_MS).newest_timestamp_ms == 119


def test_the_zeros_behind_a_log_stop_it() -> None:
    data = log_of([message(1), message(2)])
    whole = len(data)
    data += bytes(200)
    assert check(data) == whole


def test_every_changed_or_lost_byte_is_judged_as_verify_does() -> None:
    news = [message(1), message(2)]
    whole = log_of(news)
    for place in range(len(whole)):
        for value in (0, whole[place] ^ 1, whole[place] ^ 0x80, 255):
            data = bytearray(whole)
            data[place] = value
            check(data)


def test_every_place_to_cut_is_judged_as_verify_does() -> None:
    whole = log_of([message(1), message(2)])
    for size in range(len(whole)):
        check(whole[:size])
        check(whole[:size] + bytes(len(whole) - size))


def test_a_whole_record_checksum_is_left_to_verify() -> None:
    new = message(1)
    new.properties = b"k\x01v\x02" + b"__CRC32#\x01" + b"0000000000\x02"
    assert check(log_of([new])) == 0


@given(st.lists(messages, min_size=1, max_size=4), st.data())
@settings(max_examples=200)
def test_any_records_damaged_anywhere(news: list[NewMessage], data: st.DataObject) -> None:
    log = log_of(news)
    check(log)
    first = data.draw(st.integers(0, len(log) - 1))
    size = data.draw(st.sampled_from([1, 4, 512]))
    log[first : first + size] = bytes(len(log[first : first + size]))
    check(log)


@given(st.binary(max_size=300))
@example(crc32(b"").to_bytes(4, "big") * 40)
def test_any_bytes_at_all(data: bytes) -> None:
    check(bytearray(data))


def test_a_lost_sector_in_the_middle_of_a_topic_stops_it() -> None:
    """Without properties the record ends in zeros anyway: only the sector tells."""
    new = message(1)
    new.topic, new.properties = "T" * 100, b""
    for lead in range(512):
        new.body = bytes(1) * lead
        data = log_of([new])
        boundary = len(data) - (START + len(data)) % 512
        if len(data) - 100 < boundary < len(data) - 2:
            data[boundary:] = bytes(len(data) - boundary)
            assert check(data) == 0


def test_a_record_without_a_topic_stops_it() -> None:
    new = message(1)
    new.topic = "T"
    data = log_of([new])
    at = 88 + len(new.body)
    data[at : at + 2] = b"\0"
    data[:4] = len(data).to_bytes(4, "big")
    assert check(data) == 0
