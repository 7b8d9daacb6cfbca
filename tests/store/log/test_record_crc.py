"""Records with a checksum of all of them (`enabledAppendPropCRC`): no bit of such a record changes unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqha.kernel.sound_records import skip_sound
from rmqha.model.message import decode_properties
from rmqha.model.offset import PhyOffset
from rmqha.store.log.new_batch import NewBatch
from rmqha.store.log.record import (
    BadRecordError,
    crc_property,
    decode,
    encode,
    is_sound,
    locate,
    topic_field,
    verify,
    with_crc,
    with_crc_room,
)
from rmqha.store.store import Store
from tests.store.support import HOST, SMALL, commit_all, log_bytes, message, open_store, sim_disk

WITH_CRC = replace(SMALL, enabled_append_prop_crc=True)


def test_no_bit_of_a_record_flips_unseen() -> None:
    field, version = topic_field("T")
    new = message(7, properties=with_crc_room(b"TAGS\x01a\x02"))
    good = with_crc(encode(new, field, version, 3, 4096, 99))
    size = len(good)
    verify(memoryview(good), 0, size, 4096)
    assert is_sound(memoryview(good), 4096, size, b"T", 0, 3)
    for bit in range(size * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        view = memoryview(bytes(bad))
        with pytest.raises(BadRecordError):
            verify(view, 0, size, 4096)
        assert not is_sound(view, 4096, size, b"T", 0, 3)
        assert skip_sound(view, 0, 4096, 0).end == 0


def stores() -> list[Store]:
    """Each message alone, together as a client's batch, and together as the broker's own."""
    alone, batch, own = (open_store(sim_disk(), WITH_CRC) for _ in range(3))
    parts = [(b"b%d" % number * 40, properties(number), number) for number in range(20)]
    new = NewBatch(
        "T", 2, [(body, len(rest).to_bytes(2, "big") + rest, flag) for body, rest, flag in parts], 5, HOST, HOST
    )
    for item in new.messages():
        alone.append(item, 9)
    for at in (0, 10):
        batch.append_batch(replace(new, parts=new.parts[at : at + 10]), 9)
    own.append_encoded(own.encode_batch(new.messages()), 9)
    return [alone, batch, own]


def properties(number: int) -> bytes:
    """With and without a separator at their end, none, and those of another record's checksum."""
    return (b"KEYS\x01%d\x02" % number, b"KEYS\x01%d" % number, b"", b"A\x01b\x02" + crc_property(b"x"))[number % 4]


def test_all_ways_of_appending_store_the_same_bytes() -> None:
    alone, batch, own = map(log_bytes, stores())
    assert alone == batch == own


def test_each_record_that_is_appended_has_its_checksum_and_its_properties() -> None:
    for store in stores():
        commit_all(store)
        low, high = store.queue_range("T", 2)
        assert (low, high) == (0, 20)
        records = [view for at in range(20) for view in store.pull("T", 2, at, 1, 1 << 20).records]
        assert len(records) == 20
        for number, view in enumerate(records):
            record = decode(view)
            verify(view, 0, len(view), record.phy_offset)
            found = decode_properties(record.properties)
            assert len(found.pop("__CRC32#")) == 10
            assert record.properties[-20:] == crc_property(view[:-20])
            rest = properties(number) if number % 4 != 3 else b"A\x01b\x02"
            assert found == decode_properties(rest)


def test_what_the_key_leaves_no_room_for_is_refused() -> None:
    store = open_store(sim_disk(), replace(WITH_CRC, mapped_file_size_commit_log=1 << 17))
    full = b"K\x01" + b"v" * 32_744 + b"\x02"
    record = store.append(message(properties=full), 1)
    assert record.end_offset == locate(store.view(PhyOffset(0), 1 << 20), 0, 1 << 17, 0)[0]
    with pytest.raises(Exception, match="exceed 32767"):
        store.append(message(properties=b"v" + full), 1)
