"""Receipts, checkpoints, bits of acknowledgements, order infos, and one revive queue beside a simple model of it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict

from hypothesis import example, given
from hypothesis import strategies as st

from rmqha.broker.pop.checkpoint import Ack, CheckPoint, InOrder, bits_to_offsets, offsets_to_bits
from rmqha.broker.pop.modes import AssignedQueue, Mode, assigned
from rmqha.broker.pop.order_info import OTHER_POP, STALE, OrderInfo
from rmqha.broker.pop.revive_queue import ReviveQueue
from rmqha.broker.timers.message import to_timer
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import NewMessage
from rmqha.wire.state.receipt import Receipt, kind_of, normal_topic, real_topic, retry_topic

NUMBERS = st.integers(0, 2**40)
NAMES = st.from_regex(r"[a-zA-Z0-9-]{1,20}", fullmatch=True)
RECEIPTS = st.builds(
    Receipt,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(0, 999),
    st.sampled_from("012"),
    NAMES,
    st.integers(0, 1000),
    st.none() | NUMBERS,
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
OFFSETS = st.lists(st.integers(0, 500), min_size=1, max_size=32, unique=True).map(sorted)


@given(RECEIPTS)
def test_a_receipt_is_read_as_it_was_written(receipt: Receipt) -> None:
    assert Receipt.decode(receipt.encode()) == receipt


@given(st.text(max_size=80))
def test_any_text_is_a_receipt_or_is_refused(text: str) -> None:
    with suppress(ValueError):
        assert Receipt.decode(text).encode().count(" ") >= 6


def test_the_receipt_is_rocketmqs() -> None:
    text = "7 1700000000000 60000 3 1 broker-a 0 9"
    assert Receipt.decode(text) == Receipt(7, 1700000000000, 60000, 3, "1", "broker-a", 0, 9)
    assert real_topic("T", "g", "1") == "%RETRY%g_T" and real_topic("T", "g", "2") == "%RETRY%g+T"


def test_the_proxys_receipt_has_a_place_in_the_log_more() -> None:
    text = "7 1700000000000 60000 3 1 broker-a 0 9"
    assert Receipt.decode(f"{text} 123456") == Receipt.decode(f"{text} -1") == Receipt.decode(text)


@given(NAMES, NAMES, st.sampled_from("12"))
def test_a_retry_topic_names_its_topic(topic: str, group: str, kind: str) -> None:
    name = retry_topic(topic, group, kind)
    assert normal_topic(name, group) == topic and kind_of(name) == kind and kind_of(topic) == "0"


@given(st.integers(0, 2**40), OFFSETS, NAMES, NAMES)
def test_a_checkpoint_is_read_as_it_was_written(start: int, steps: list[int], topic: str, group: str) -> None:
    checkpoint = CheckPoint(topic, group, 3, start, 17, 60, "b", tuple(start + step for step in steps))
    assert CheckPoint.from_json(json.loads(json.dumps(checkpoint.to_json())), "own") == checkpoint


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["so", "pt", "it", "n", "q", "t", "c", "d", "bn", "rp"]), inner)
        ),
    )
)
def test_any_json_is_a_checkpoint_or_is_refused(value: object) -> None:
    with suppress(ValueError):
        assert CheckPoint.from_json(value, "own").group
    for is_batch in (True, False):
        with suppress(ValueError):
            assert Ack.from_json(value, "own", is_batch=is_batch).group


def test_acknowledgements_are_rocketmqs() -> None:
    one = '{"ao":9,"bn":"b","c":"g","pt":1700000000000,"q":3,"so":7,"t":"T"}'
    many = '{"ao":-1,"aol":[7,9],"bn":"b","c":"g","pt":1700000000000,"q":3,"so":7,"t":"T"}'
    for text, is_batch, offsets in ((one, False, (9,)), (many, True, (7, 9))):
        ack = Ack.from_json(json.loads(text), "own", is_batch=is_batch)
        assert ack.queue_offsets == offsets and json.dumps(ack.to_json(), separators=(",", ":")) == text


@given(NUMBERS, OFFSETS)
def test_bits_are_those_of_javas_bit_set(start: int, steps: list[int]) -> None:
    offsets = [start + step for step in steps]
    bits = offsets_to_bits(start, offsets)
    assert bits_to_offsets(start, bits, 1000) == offsets and bits[-1]


def test_bits_that_java_has_written() -> None:
    assert bits_to_offsets(7, bytes.fromhex("010000000000000040"), 99) == [7, 77]


@given(OFFSETS, st.lists(st.integers(0, 31), max_size=40), st.integers(0, 100), st.integers(1, 100))
def test_the_offset_of_an_ordered_group_is_that_of_the_first_message_that_is_not_done(
    offsets: list[int], done: list[int], pop_ms: int, invisible_ms: int
) -> None:
    info = OrderInfo(pop_ms, invisible_ms, tuple(offsets))
    is_open = list(offsets)
    for place in done:
        offset = offsets[place % len(offsets)]
        found = info.done(offset, pop_ms)
        is_open = [item for item in is_open if item != offset]
        assert found == (is_open[0] if is_open else offsets[-1] + 1)
        assert info.done(offset, pop_ms + 1) == OTHER_POP and info.done(9999, pop_ms) == STALE
        assert OrderInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
    assert info.free_ms() == (pop_ms + invisible_ms if is_open else 0)
    assert info.blocks(None, pop_ms) is bool(is_open)


@given(st.lists(st.tuples(st.sampled_from(["ck", "ack", "late"]), st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_a_revive_queue_gives_what_no_acknowledgement_names(entries: list[tuple[str, int, int]]) -> None:
    queue, given_offsets, acked = ReviveQueue(0), set[int](), dict[int, set[int]]()
    for kind, start, step in entries:
        ack = Ack("T", "g", 0, start, 1, "b", (start + step,))
        if kind == "ck" and start not in given_offsets:
            given_offsets.add(start)
            queue.read(CheckPoint("T", "g", 0, start, 1, start, "b", tuple(range(start, start + 4))), 1 + start)
        elif kind == "ack":
            acked.setdefault(start, set()).add(start + step)
            queue.read(ack, 1 + start)
        elif kind == "late" and queue.acked(ack):
            acked.setdefault(start, set()).add(start + step)
    wanted = {start: set(range(start, start + 4)) - acked.get(start, set()) for start in given_offsets}
    found = {}
    assert queue.worked_off_offset <= queue.read_offset
    while (point := queue.take_due(100, {})) is not None:
        found[point.checkpoint.start_offset] = set(point.open_offsets)
        queue.done(point)
    assert found == {start: offsets for start, offsets in wanted.items() if offsets}
    queue.settle(100)
    assert queue.worked_off_offset == queue.read_offset and not list(queue.points())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 1)), max_size=24))
@example([(True, 0, 0), (False, 1, 0), (False, 1, 1), (True, 2, 0), (True, 1, 0)])
@example([(False, 1, 0), (True, 0, 0), (True, 1, 0), (False, 1, 1)])
def test_a_revive_queue_that_is_read_from_what_is_worked_off_has_the_same_open_messages(
    entries: list[tuple[bool, int, int]],
) -> None:
    """Whichever replica leads next, and however long ago it heard how far the queue is worked off."""
    read: list[CheckPoint | Ack] = []
    begins = set[int]()
    queue = ReviveQueue(0)
    for is_checkpoint, start, step in entries:
        if is_checkpoint:
            entry: CheckPoint | Ack = CheckPoint("T", "g", 0, start, 1, start, "b", (start, start + 1))
            if entry in read:
                continue
        else:
            entry = Ack("T", "g", 0, start, 1, "b", (start + step,))
        read.append(entry)
        queue.read(entry, 1 + start)
        begins.add(queue.worked_off_offset)
        for begin in begins:
            again = ReviveQueue(begin)
            for item in read[begin:]:
                again.read(item, 1 + item.start_offset)
            assert opened(again) == opened(queue)


def opened(queue: ReviveQueue) -> dict[int, set[int]]:
    return {point.checkpoint.start_offset: set(point.open_offsets) for point in queue.points()}


def test_a_checkpoint_waits_while_an_acknowledgement_of_it_is_on_its_way() -> None:
    queue = ReviveQueue(0)
    checkpoint = CheckPoint("T", "g", 0, 5, 1, 1, "b", (5,))
    queue.read(checkpoint, 2)
    assert queue.take_due(9, {checkpoint.key: 1}) is None and queue.worked_off_offset == 0
    assert queue.take_due(1, {}) is None
    assert queue.take_due(2, {}) is not None


@given(
    st.integers(1, 9), st.integers(1, 12), st.sampled_from(["AVG", "AVG_BY_CIRCLE"]), st.sampled_from(["PULL", "POP"])
)
def test_each_queue_is_some_clients(clients: int, count: int, strategy: str, mode: str) -> None:
    queues = [AssignedQueue("T", "b", number) for number in range(count)]
    names = [f"c{number}" for number in range(clients)]
    shares = [assigned(Mode("T", "g", mode), strategy, name, names, queues) for name in names]
    found = [queue for share in shares for queue in share]
    if mode == "POP":
        assert all(share == [AssignedQueue("T", "b", -1)] for share in shares)
    else:
        assert sorted(found) == queues
    assert assigned(Mode("T", "g", mode), strategy, "stranger", names, queues) == []


@given(
    st.builds(
        CheckPoint,
        TEXTS,
        TEXTS,
        st.integers(0, 99),
        NUMBERS,
        NUMBERS,
        NUMBERS,
        TEXTS,
        OFFSETS.map(tuple),
        st.integers(0, 9),
        st.booleans(),
    ),
    st.booleans(),
    NUMBERS,
)
def test_a_checkpoint_is_written_as_a_timer_message_of_its_json(point: CheckPoint, is_batch: bool, now_ms: int) -> None:
    host = (b"\x7f\0\0\1", 1)
    when = now_ms, host, 1000
    ack = Ack(*point.key, point.queue_offsets or (5,), is_batch)
    written = (
        (point, point.message("R", 3, *when), point.due_ms - 1000),
        (ack, ack.message("R", 3, point.due_ms, *when), point.due_ms),
    )
    for value, message, at_ms in written:
        body = json.dumps(value.to_json(), ensure_ascii=False, separators=(",", ":")).encode()
        properties = decode_properties(message.properties)
        own = {name: properties[name] for name in ("TAGS", "TIMER_DELIVER_MS", "UNIQ_KEY")}
        plain = NewMessage("R", 3, body, encode_properties(own), now_ms, host, host)
        expected = to_timer(plain, at_ms, 1000) if at_ms > now_ms else plain
        assert {name: getattr(message, name) for name in asdict(plain)} == asdict(expected)


@given(st.builds(InOrder, NAMES, NAMES, st.integers(0, 1000), NUMBERS, NUMBERS))
def test_what_is_done_in_order_is_read_as_it_was_written(done: InOrder) -> None:
    message = done.message("revive", 1700000000000, (b"\x7f\0\0\1", 1))
    assert (message.topic, message.queue_id) == ("revive", done.queue_id % 8)
    assert InOrder.from_json(json.loads(bytes(message.body))) == done


@given(OFFSETS, st.integers(0, 600))
def test_what_lies_before_the_groups_offset_is_done(offsets: list[int], known: int) -> None:
    info = OrderInfo(1, 1, tuple(offsets))
    info.settle(known)
    assert [info.is_done(place) for place in range(len(offsets))] == [offset < known for offset in offsets]
    left = [offset for offset in offsets if offset >= known]
    if left:
        assert info.done(left[0], 1) == (left[1] if len(left) > 1 else offsets[-1] + 1)


def test_what_timers_deliver_twice_says_nothing_until_they_do_not() -> None:
    checkpoint = CheckPoint("T", "G", 0, 5, 1000, 500, "b", (5,))
    ack = Ack("T", "G", 0, 5, 1000, "b", (5,))
    queue = ReviveQueue(0)
    for entry in (checkpoint, ack, checkpoint):
        queue.read(entry, 1500)
    assert list(queue.points()) == []
    again = CheckPoint("T", "G", 0, 5, 1000, 900, "b", (5,), put_times=1)
    queue.read(again, 1900)  # put back since its message could not be read
    assert [point.checkpoint for point in queue.points()] == [again]


def test_a_queue_in_order_is_free_when_the_last_of_its_open_messages_comes_again() -> None:
    info = OrderInfo.given(None, "one", 1000, 500, (3, 4), 1000)
    assert info.delay(4, 1000, 9000)
    assert (info.free_ms(), info.blocks("two", 1600), info.blocks("two", 9000)) == (9000, True, False)


def test_clients_that_name_no_attempt_wait_for_each_other() -> None:
    info = OrderInfo.given(None, None, 1000, 500, (3,), 1000)
    assert (info.blocks(None, 1499), info.blocks(None, 1500)) == (True, False)


def test_another_time_in_order_is_of_the_last_pop_alone() -> None:
    info = OrderInfo.given(None, "one", 1000, 500, (3,), 1000)
    assert not info.delay(3, 999, 9000) and not info.delay(4, 1000, 9000)
    assert info.free_ms() == 1500
