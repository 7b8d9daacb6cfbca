"""Forms of a timer message, and the times that producers ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqha.broker.timers.message import (
    ROLL_WINDOW_MS,
    deliver_at_ms,
    due,
    from_timer,
    plain_due,
    says_when_and_where_to,
    to_timer,
)
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import Record, decode
from rmqha.store.store import Store
from tests.store.support import message

NOW_MS = 1_800_000_000_000
HOST = (b"\x7f\0\0\1", 1)
TIMER_TOPIC = "rmq_sys_wheel_timer"


@pytest.mark.parametrize(
    ("properties", "at_ms"),
    [
        ({}, None),
        ({"TIMER_DELAY_SEC": "3"}, NOW_MS + 3000),
        ({"TIMER_DELAY_MS": "1500"}, NOW_MS + 1500),
        ({"TIMER_DELIVER_MS": "1234"}, 1234),
        ({"TIMER_DELAY_MS": "-5"}, NOW_MS - 5),
        ({"TIMER_DELAY_MS": "+5"}, NOW_MS + 5),
        ({"TIMER_DELIVER_MS": "9", "TIMER_DELAY_MS": "8", "TIMER_DELAY_SEC": "7"}, NOW_MS + 7000),
        ({"TIMER_DELIVER_MS": "9", "TIMER_DELAY_MS": "8"}, NOW_MS + 8),
        ({"TIMER_DELAY_MS": "8", "TIMER_OUT_MS": "1"}, None),
    ],
)
def test_asked_for(properties: dict[str, str], at_ms: int | None) -> None:
    assert deliver_at_ms(properties, NOW_MS) == at_ms


@pytest.mark.parametrize("value", ["", "x", "1.5", " 5", "5 ", "1e3", "0x5", "٣", "9223372036854775807", "9" * 40])
def test_no_time(value: str) -> None:
    with pytest.raises(ValueError, match="TIMER_DELAY_MS"):
        deliver_at_ms({"TIMER_DELAY_MS": value}, NOW_MS)


@pytest.mark.parametrize(
    ("at_ms", "precision_ms", "slot_ms"), [(5000, 1000, 4000), (5001, 1000, 5000), (5999, 1000, 5000), (500, 100, 400)]
)
def test_it_waits_in_the_slot_that_ends_at_its_time_or_behind(at_ms: int, precision_ms: int, slot_ms: int) -> None:
    given = {"REAL_TOPIC": "Other", "__CRC32#": "0123456789", "A": "b"}
    waiting = to_timer(message(topic="Real", queue_id=3, properties=encode_properties(given)), at_ms, precision_ms)
    assert (waiting.topic, waiting.queue_id) == (TIMER_TOPIC, 0)
    expected = {"A": "b", "TIMER_OUT_MS": str(slot_ms), "REAL_TOPIC": "Real", "REAL_QID": "3"}
    assert decode_properties(waiting.properties) == expected
    assert slot_ms + precision_ms >= at_ms


@pytest.mark.parametrize(
    ("properties", "slot_ms"),
    [
        ({"TIMER_DELIVER_MS": 4001}, 4000),
        ({"TIMER_DELIVER_MS": 4002}, 4000),
        ({"TIMER_DELIVER_MS": 4003}, 4002),
        ({"TIMER_DELIVER_MS": 5000}, 4998),
        ({"TIMER_DELIVER_MS": 4000}, 4998),
        ({"TIMER_DELIVER_MS": 5700}, 5698),
        ({"TIMER_DELIVER_MS": 64_001}, 4998),
        ({"TIMER_DELAY_MS": 2500}, 4498),
        ({"TIMER_DELAY_MS": 3001}, 4998),
        ({"TIMER_DELAY_SEC": 3}, 4998),
        ({"TIMER_DELAY_SEC": 3, "TIMER_DELIVER_MS": 4001}, 4998),
        ({"TIMER_DELAY_MS": "+1"}, 4998),
        ({}, 4998),
    ],
)
def test_it_comes_at_its_own_time_within_the_wheels_slot(
    golden: Store, properties: dict[str, str | int], slot_ms: int
) -> None:
    """The wheel's is [4000, 5000), it was stored at 2000. Where its own time is not known, or cannot be, it comes at
    the end; one that was stored in a wheel of longer slots is not early."""
    given = {"TIMER_OUT_MS": "4000", "REAL_TOPIC": "T", "REAL_QID": "0", **{k: str(v) for k, v in properties.items()}}
    record = replace(
        records(golden, TIMER_TOPIC)[0], store_timestamp_ms=2000, properties=encode_properties({"A": "b", **given})
    )
    assert due(record) == (slot_ms, False)
    assert plain_due(2000, record.properties) in (None, ((slot_ms, False), b"T"))


@pytest.mark.parametrize(
    "properties",
    [
        b"REAL_TOPIC\x01T\x02REAL_QID\x012\x02TIMER_OUT_MS\x014000\x02",
        b"TIMER_OUT_MS\x014000\x02REAL_TOPIC\x01T\x02REAL_QID\x012\x02",
        b"REAL_TOPIC\x01U\x02REAL_QID\x013\x02TIMER_OUT_MS\x015\x02TIMER_OUT_MS\x014000\x02REAL_QID\x012\x02REAL_TOPIC\x01T\x02",
        b"REAL_QID\x012\x02NOT_REAL_TOPIC\x01U\x02TIMER_OUT_MS\x014000\x02REAL_TOPIC\x01T\x02MY_TIMER_OUT_MS\x015\x02",
        b"A\x01REAL_TOPIC\x02TIMER_OUT_MS\x014000\x02REAL_QID\x012\x02REAL_TOPIC\x01T",
    ],
)
def test_when_and_where_to_is_the_last_of_the_properties_of_that_name(golden: Store, properties: bytes) -> None:
    record = replace(records(golden, TIMER_TOPIC)[0], store_timestamp_ms=2000, properties=properties)
    message = from_timer(record, NOW_MS, HOST)
    assert message is not None and (message.topic, message.queue_id) == ("T", 2)
    assert due(record) == (4998, False) and says_when_and_where_to(record)
    assert not says_when_and_where_to(replace(record, properties=properties.replace(b"REAL_QID", b"REAL_QUE")))


def test_a_copy_that_is_made_of_bytes_alone_is_that_of_all_properties(golden: Store) -> None:
    record = records(golden, TIMER_TOPIC)[0]
    marked = encode_properties({**decode_properties(record.properties), "TIMER_ENQUEUE_MS": "1"})
    plain, whole = (from_timer(item, NOW_MS, HOST) for item in (record, replace(record, properties=marked)))
    assert plain is not None and whole is not None
    assert decode_properties(plain.properties) == decode_properties(whole.properties)


def records(store: Store, topic: str) -> list[Record]:
    found: list[Record] = []
    for queue_id in store.queues().get(topic, ()):
        found += [decode(item) for item in store.pull(topic, queue_id, 0, 1000, 1 << 24).records]
    return found


def test_what_a_real_broker_stored_of_timer_messages(golden: Store) -> None:
    """Each record that waited in the real broker's log gives the record that it delivered."""
    arrived = {decode_properties(item.properties)["UNIQ_KEY"]: item for item in records(golden, "GoldDelay")}
    waiting = records(golden, TIMER_TOPIC)
    compared = 0
    for record in waiting:
        assert says_when_and_where_to(record)
        theirs = arrived.get(decode_properties(record.properties)["UNIQ_KEY"])
        if theirs is None:
            continue  # not due when the capture ended
        their_properties = decode_properties(theirs.properties)
        ours = from_timer(record, int(their_properties["TIMER_DEQUEUE_MS"]), HOST)
        assert ours is not None
        assert (ours.topic, ours.queue_id, bytes(ours.body)) == (theirs.topic, theirs.queue_id, bytes(theirs.body))
        own_properties = decode_properties(ours.properties)
        assert abs(int(own_properties.pop("TIMER_ENQUEUE_MS")) - int(their_properties.pop("TIMER_ENQUEUE_MS"))) <= 1000
        assert own_properties == their_properties
        compared += 1
    assert compared >= 10 and len(waiting) == 15


def test_what_waits_longer_than_the_log_keeps_files_waits_again(golden: Store) -> None:
    record = records(golden, TIMER_TOPIC)[0]
    stored_ms = record.store_timestamp_ms

    def due_in(ms: int) -> Record:
        properties = decode_properties(record.properties) | {"TIMER_OUT_MS": str(stored_ms + ms)}
        return replace(record, properties=encode_properties(properties))

    for ahead_ms, slot_ms, is_rolled in (
        (ROLL_WINDOW_MS - 1, (stored_ms + ROLL_WINDOW_MS - 1) // 1000 * 1000 + 998, False),
        (ROLL_WINDOW_MS, stored_ms + ROLL_WINDOW_MS // 2 | 1, True),
        (2 * ROLL_WINDOW_MS, stored_ms + ROLL_WINDOW_MS | 1, True),
    ):
        assert due(due_in(ahead_ms)) == (slot_ms, is_rolled)
    again = from_timer(due_in(ROLL_WINDOW_MS), NOW_MS, HOST)
    assert again is not None and again.topic == TIMER_TOPIC
    assert decode_properties(again.properties)["TIMER_ROLL_TIMES"] == "1"


@pytest.mark.parametrize("name", ["TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"])
def test_a_record_that_does_not_say_when_or_where_to_is_not_delivered(golden: Store, name: str) -> None:
    record = records(golden, TIMER_TOPIC)[0]
    for value in ("", "x/y" if name != "REAL_TOPIC" else TIMER_TOPIC):
        changed = replace(record, properties=encode_properties(decode_properties(record.properties) | {name: value}))
        assert from_timer(changed, NOW_MS, HOST) is None
