"""The record codec: what is encoded is decoded, what is damaged is refused with expected and found."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqha.kernel.sound_records import skip_sound
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import (
    MAGIC_BLANK,
    BadRecordError,
    Host,
    NewMessage,
    blank,
    decode,
    encode,
    fixed_bytes,
    locate,
    seems_lost,
    topic_field,
    verify,
)
from tests.store.support import message

hosts = st.tuples(
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.integers(0, 65535)
)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
topics = st.text("abcXYZ%|-_09", min_size=1, max_size=255)
messages = st.builds(
    NewMessage,
    topic=topics,
    queue_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=3000),
    properties=st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"\1") + b"\2"),
    born_at_ms=int64,
    born_host=hosts,
    store_host=hosts,
    flag=int32,
    sys_flag=st.sampled_from([0, 8, 0x101, 0x301]),
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


def encoded(new: NewMessage, queue_offset: int = 3, phy_offset: int = 0, stored: int = 99) -> bytes:
    field, version = topic_field(new.topic)
    return encode(new, field, version, queue_offset, phy_offset, stored)


@given(messages, st.integers(0, 2**62), st.integers(0, 2**62), int64)
@settings(max_examples=150)
def test_round_trip(new: NewMessage, queue_offset: int, phy_offset: int, stored: int) -> None:
    data = encoded(new, queue_offset, phy_offset, stored)
    record = decode(memoryview(data))
    assert record.size_bytes == len(data)
    assert record.version == (1 if len(new.topic) <= 127 else 2)
    assert bytes(record.body) == new.body
    assert record.body_crc == crc32(new.body) & 0x7FFFFFFF
    v6 = (0x10 if len(new.born_host[0]) == 16 else 0) | (0x20 if len(new.store_host[0]) == 16 else 0)
    assert record.sys_flag == new.sys_flag | v6
    for name in (
        "topic",
        "queue_id",
        "flag",
        "born_at_ms",
        "born_host",
        "store_host",
        "reconsume_times",
        "prepared_transaction_offset",
        "properties",
    ):
        assert getattr(record, name) == getattr(new, name), name
    assert (record.queue_offset, record.phy_offset, record.store_timestamp_ms) == (queue_offset, phy_offset, stored)
    assert verify(memoryview(data), 0, len(data), phy_offset)[0] == len(data)


@given(messages, st.integers(0, 511), st.data())
@settings(max_examples=100)
def test_a_lost_sector_is_noticed(new: NewMessage, lead: int, data: st.DataObject) -> None:
    """Any sector of the record that reads as zeros, as after a loss of power, makes it invalid, unless the sector held
    nothing but zeros."""
    record = encoded(new, phy_offset=lead)
    sectors = range(-(-(lead + len(record)) // 512))
    lost = data.draw(st.sampled_from(sectors))
    image = bytearray(bytes(lead) + record)
    part = slice(max(lead, lost * 512), min(len(image), lost * 512 + 512))
    before = bytes(image[part])
    image[part] = bytes(part.stop - part.start)
    if any(before):
        with pytest.raises(BadRecordError):
            found = verify(memoryview(image), lead, len(image), lead)
            # a first sector may hold only leading zero bytes of totalSize besides what it lost
            raise AssertionError(f"accepted a record without sector {lost}: {found}")


@pytest.mark.parametrize("topic", ["T", "t" * 200])
def test_lengths_that_are_zero_may_begin_and_end_a_sector(topic: str) -> None:
    """Of no properties both bytes of the length, of a topic of more than 127 bytes the first."""
    for body in (b"", b"x"):
        for lead in range(512):
            record = encoded(message(1, topic=topic, body=body, properties=b""), phy_offset=lead)
            image = memoryview(bytes(lead) + record)
            assert verify(image, lead, len(image), lead)[0] == len(record)
            assert skip_sound(image, lead, 0, 0)[0] in (lead, len(image))


def test_properties_that_look_lost_are_those_that_are_not_verified() -> None:
    for zeros in (1, 511, 512, 513, 1600):
        properties = b"K\x01" + bytes(zeros) + b"v\x02"
        leads = [lead for lead in range(512) if not holds(properties, lead)]
        assert bool(leads) == seems_lost(properties) == (zeros >= 512)
    assert seems_lost(b"K\x01\0") and not holds(b"K\x01\0", 0) and not seems_lost(b"")


def holds(properties: bytes, lead: int) -> bool:
    record = encoded(message(1, properties=properties), phy_offset=lead)
    try:
        verify(memoryview(bytes(lead) + record), lead, lead + len(record), lead)
    except BadRecordError:
        return False
    return True


@pytest.mark.parametrize("lead", range(0, 512, 16))
def test_each_lost_sector_of_long_properties_is_noticed(lead: int) -> None:
    record = encoded(message(7, topic="t" * 100, body=b"b" * 200, properties=b"K\x01" + b"v" * 900 + b"\x02"), 3, lead)
    for lost in range(-(-(lead + len(record)) // 512)):
        image = bytearray(bytes(lead) + record)
        image[lost * 512 : lost * 512 + 512] = bytes(len(image[lost * 512 : lost * 512 + 512]))
        with pytest.raises(BadRecordError):
            verify(memoryview(image), lead, len(image), lead)


def test_a_write_that_stopped_anywhere_is_noticed() -> None:
    record = encoded(message(7, topic="t" * 100, body=b"b" * 40, properties=b"K\x01v\x02"))
    for size in range(len(record)):
        with pytest.raises(BadRecordError):
            verify(memoryview(record[:size].ljust(len(record), b"\0")), 0, len(record), 0)


def test_the_parts_that_only_structure_protects() -> None:
    new = message(7, body=b"x" * 100, properties=b"KEYS\x01k\x02")
    good = encoded(new)
    assert fixed_bytes(new) == 88
    for at, value, expected in (
        (4, b"\0\0\0\0", "magic"),
        (0, (len(good) + 1).to_bytes(4, "big"), "totalSize"),
        (0, b"\xff\xff\xff\xff", "totalSize"),
        (28, b"\0\0\0\0\0\0\0\1", "physicalOffset 0, found 1"),
        (84, b"\x7f\0\0\0", "bodyLength"),
        (84, b"\xff\xff\xff\xff", "bodyLength"),
        (188, b"\0", "topicLength"),
        (188, b"\xff", "topicLength"),
        (190, b"\0\6", "propertiesLength of 7"),
    ):
        bad = bytearray(good)
        bad[at : at + len(value)] = value
        with pytest.raises(BadRecordError, match="expected .*" + expected):
            locate(memoryview(bad), 0, len(bad), 0)
    for size in range(91):
        with pytest.raises(BadRecordError):
            locate(memoryview(good), 0, size, 0)


def test_a_changed_body_is_noticed_by_verify_only() -> None:
    bad = bytearray(encoded(message(7, body=b"x" * 100)))
    bad[100] ^= 1
    locate(memoryview(bad), 0, len(bad), 0)
    with pytest.raises(BadRecordError, match="body with CRC"):
        verify(memoryview(bad), 0, len(bad), 0)


def test_the_whole_record_checksum_is_checked_where_there_is_one() -> None:
    def with_checksum(properties: bytes) -> bytearray:
        plain = bytearray(encoded(message(7, properties=properties + b"__CRC32#\x010000000000\x02")))
        value = crc32(plain[:-20]) & 0x7FFFFFFF
        plain[-11:-1] = b"%010d" % value
        plain[-11:-1] = bytes(reversed(plain[-11:-1]))
        return plain

    good = with_checksum(b"TAGS\x01a\x02")
    verify(memoryview(good), 0, len(good), 0)
    good[17] ^= 1  # the user's flag, which bodyCRC does not cover
    with pytest.raises(BadRecordError, match="__CRC32#"):
        verify(memoryview(good), 0, len(good), 0)


def test_topics_of_each_version() -> None:
    assert topic_field("a" * 127) == (b"\x7f" + b"a" * 127, 1)
    assert topic_field("a" * 128) == (b"\0\x80" + b"a" * 128, 2)
    for topic in ("", "a" * 32768):
        with pytest.raises(ValueError):
            topic_field(topic)


def test_blank_record() -> None:
    assert blank(500) == (500).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")


def test_a_topic_that_is_no_utf8_is_refused() -> None:
    bad = bytearray(encoded(message(7, topic="abc", body=b"x")))
    at = bad.index(b"abc")
    bad[at] = 0xFF
    with pytest.raises(BadRecordError, match="UTF-8"):
        decode(memoryview(bad))


@pytest.mark.parametrize("told", [0x10, 0x20, 0x30])
@pytest.mark.parametrize("born", [(b"\x7f\0\0\1", 1), (bytes(15) + b"\1", 1)])
@pytest.mark.parametrize("kept", [(b"\x7f\0\0\1", 2), (bytes(15) + b"\1", 2)])
def test_the_hosts_say_whether_they_are_of_ipv6(told: int, born: Host, kept: Host) -> None:
    """Not the record that a new one is a copy of: its hosts may have been others."""
    new = message(born_host=born, store_host=kept, sys_flag=told | 0x1)
    for data in (
        encode(new, *topic_field(new.topic), 3, 7, 9),
        NewBatch(new.topic, new.queue_id, [(bytes(new.body), b"\0\0", 0)], 0, born, kept, told | 0x1).encode(
            *topic_field(new.topic), 3, 7, 9
        )[0],
    ):
        record = decode(memoryview(data))
        assert (record.size_bytes, record.born_host, record.store_host) == (len(data), born, kept)
        assert bytes(record.body) == bytes(new.body) and record.sys_flag & 0x1
