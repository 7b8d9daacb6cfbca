"""Transactions without a broker: the forms of their records, when a check is due, and which half messages wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.broker.services import transaction
from rmqha.broker.services.transaction import (
    Reconciliation,
    TransactionRules,
    TransactionVerdict,
    given_up,
    is_too_late,
    judge,
    mark,
    marked,
    parse_waiting_from,
    renewed,
    to_commit,
    to_half,
)
from rmqha.model.message import decode_properties, encode_properties
from rmqha.store.log.record import NewMessage, Record, decode, encode, topic_field
from rmqha.store.store import Store
from tests.store.support import message

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HOST = (b"\x7f\0\0\1", 1)
RULES = TransactionRules(timeout_ms=6000, check_max=15, reserved_ms=72 * 3_600_000)


# --- what a real broker stored ----------------------------------------------------------------------------------------
def golden_records(store: Store, topic: str) -> list[Record]:
    return [
        decode(record)
        for queue_id in store.queues()[topic]
        for record in store.pull(topic, queue_id, 0, 1000, 1 << 24).records
    ]


def comparable(item: Record | NewMessage) -> tuple[Any, ...]:
    properties = decode_properties(item.properties)
    place = (item.topic, item.queue_id, item.prepared_transaction_offset)
    return (*place, bytes(item.body), properties, item.flag, item.sys_flag, item.reconsume_times, item.born_at_ms)


def key_of(record: Record) -> str:
    return decode_properties(record.properties)["UNIQ_KEY"]


def test_commits_and_halves_are_those_of_a_real_broker(golden: Store) -> None:
    halves = {key_of(record): record for record in golden_records(golden, HALF)}
    committed = golden_records(golden, "GoldTxn")
    assert len(committed) == 5
    for record in committed:
        half = halves[key_of(record)]
        made = to_commit(half, HOST)
        assert made is not None and comparable(made) == comparable(record)
        sent = replace(made, sys_flag=4, prepared_transaction_offset=0)
        assert comparable(to_half(sent)) == comparable(half)


def test_checks_are_those_of_a_real_broker(golden: Store) -> None:
    checked = [record for record in golden_records(golden, HALF) if bytes(record.body) == b"txn-3-UNKNOW"]
    assert len(checked) == 16
    for older, newer in pairwise(checked):
        assert comparable(renewed(older, HOST)) == comparable(newer)
        assert judge(older, newer.store_timestamp_ms, RULES)[0] is TransactionVerdict.CHECK
    (last,) = golden_records(golden, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert comparable(given_up(checked[-1], HOST)) == comparable(last)
    assert judge(checked[-1], last.store_timestamp_ms, RULES)[0] is TransactionVerdict.GIVE_UP


def test_marks_are_those_of_a_real_broker(golden: Store) -> None:
    marks = golden_records(golden, OP)
    assert [marked(record) for record in marks] == [[0, 1], [2, 3], [4, 5], [6, 7], [14, 15]]
    for record in marks:
        made = mark(marked(record), record.born_at_ms, record.store_host)
        assert comparable(made) == comparable(record) and made.properties == record.properties


def test_a_mark_is_read_as_far_as_it_can_be() -> None:
    def listed(body: bytes, properties: bytes = b"TAGS\x01d\x02") -> list[int]:
        record = decode(memoryview(stored(NewMessage(OP, 0, body, properties, 0, HOST, HOST))))
        return marked(record)

    assert listed(b"7") == [7] and listed(b"7,x,,-1,8,") == [7, 8] and listed(b"") == []
    assert listed(b"9" * 40) == [] and listed(b"7,", b"TAGS\x01e\x02") == [] and listed(b"7,", b"") == []


def test_a_mark_says_from_where_on_to_read() -> None:
    def told(text: str) -> tuple[int, int] | None:
        properties = encode_properties({"RMQHA_WAITING_FROM": text})
        return parse_waiting_from(decode(memoryview(stored(NewMessage(OP, 0, b"7,", properties, 0, HOST, HOST)))))

    made = decode(memoryview(stored(mark([7], 0, HOST, (7, 12)))))
    assert parse_waiting_from(made) == (7, 12) and marked(made) == [7]
    assert parse_waiting_from(decode(memoryview(stored(mark([7], 0, HOST))))) is None
    assert told("3,0") == (3, 0)
    for text in ("", ",", "3", "3,", "-1,2", "x,2", "3,4,5", "9" * 40 + ",1"):
        assert told(text) is None


def stored(item: NewMessage, queue_offset: int = 0) -> bytes:
    return encode(item, *topic_field(item.topic), queue_offset, 0, 0)


def half(**properties: str) -> Record:
    given = {"TRAN_MSG": "true", "PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "1", **properties}
    item = replace(message(topic=HALF, properties=encode_properties(given)), born_at_ms=1_000_000)
    return decode(memoryview(stored(item)))


def test_a_client_cannot_say_where_a_half_message_goes_or_how_often_it_was_checked() -> None:
    given = {"REAL_TOPIC": "Other", "REAL_QID": "7", "TRANSACTION_CHECK_TIMES": "9", "__CRC32#": "0123456789",
             "TRAN_PREPARED_QUEUE_OFFSET": "3"}  # fmt: skip
    waiting = to_half(message(topic="Real", queue_id=2, properties=encode_properties(given), sys_flag=4))
    assert (waiting.topic, waiting.queue_id, waiting.sys_flag) == (HALF, 0, 0)
    assert decode_properties(waiting.properties) == {"REAL_TOPIC": "Real", "REAL_QID": "2"}


@pytest.mark.parametrize("place", [{"REAL_TOPIC": ""}, {"REAL_QID": "x"}, {"REAL_QID": ""}, {"REAL_TOPIC": HALF}])
def test_a_half_message_that_goes_nowhere(place: dict[str, str]) -> None:
    assert to_commit(half(**place), HOST) is None


# --- when -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("age_ms", "properties", "verdict"),
    [
        (6000, {}, TransactionVerdict.LATER),
        (6001, {}, TransactionVerdict.CHECK),
        (-1, {}, TransactionVerdict.CHECK),
        (60_000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, TransactionVerdict.LATER),
        (60_001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, TransactionVerdict.CHECK),
        (1001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, TransactionVerdict.CHECK),
        (-6000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, TransactionVerdict.LATER),
        (-6001, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, TransactionVerdict.CHECK),
        (-(1 << 60), {"CHECK_IMMUNITY_TIME_IN_SECONDS": "9"}, TransactionVerdict.CHECK),
        (6000, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "soon"}, TransactionVerdict.LATER),
        (7000, {"TRANSACTION_CHECK_TIMES": "14"}, TransactionVerdict.CHECK),
        (0, {"TRANSACTION_CHECK_TIMES": "15"}, TransactionVerdict.GIVE_UP),
        (7000, {"TRANSACTION_CHECK_TIMES": "often"}, TransactionVerdict.CHECK),
        (72 * 3_600_000 + 1, {}, TransactionVerdict.GIVE_UP),
    ],
)
def test_when_something_is_due(age_ms: int, properties: dict[str, str], verdict: TransactionVerdict) -> None:
    record = half(**properties)
    found, until_ms = judge(record, record.born_at_ms + age_ms, RULES)
    assert found is verdict
    if verdict is TransactionVerdict.LATER:
        assert judge(record, until_ms, RULES) == (TransactionVerdict.LATER, until_ms)
        assert judge(record, until_ms + 1, RULES)[0] is TransactionVerdict.CHECK


def test_only_an_immunity_of_its_own_makes_an_end_come_too_late() -> None:
    assert not is_too_late(half(), 10**15, 6000)
    record = half(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    assert not is_too_late(record, record.born_at_ms + 10_000, 6000)
    assert is_too_late(record, record.born_at_ms + 10_001, 6000)
    short = half(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert not is_too_late(short, short.born_at_ms + 6000, 6000)


# --- which ------------------------------------------------------------------------------------------------------------
class Model:
    """Both queues as lists, and which half messages wait, kept the simple way."""

    def __init__(self) -> None:
        self.half_count = 0
        self.marks: list[list[int]] = []
        self.ended: set[int] = set()
        self.found = Reconciliation(0, 0)
        self.saved = (0, 0)
        self.read_count = 0
        """Marks that any master has read."""

    def mark(self, offsets: list[int]) -> None:
        self.marks.append(offsets)
        self.ended |= set(offsets)

    def read(self, mark_count: int, half_count: int) -> None:
        found = self.found
        for place in range(found.next_op, min(len(self.marks), found.next_op + mark_count)):
            found.read_mark(place, self.marks[place], self.half_count)
        found.read_halves(min(self.half_count, found.next_half + half_count))

    def check(self) -> None:
        found = self.found
        self.read_count = max(self.read_count, found.next_op)
        read = {offset for offsets in self.marks[: found.next_op] for offset in offsets}
        assert list(found.open) == [n for n in range(found.half_offset, found.next_half) if n not in read]
        known = {offset for offsets in self.marks[: self.read_count] for offset in offsets}
        assert known >= set(range(found.half_offset)), "what waits is not passed"
        assert found.half_offset >= self.saved[0] and found.op_offset >= self.saved[1], "offsets move on"
        self.saved = (found.half_offset, found.op_offset)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 5)),
        st.tuples(st.just("end"), st.lists(st.integers(0, 30), min_size=1, max_size=4)),
        st.tuples(st.just("renew"), st.integers(0, 30)),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 4), st.integers(0, 6))),
        st.tuples(st.just("switch"), st.none()),
    ),
    max_size=40,
)


@given(steps=STEPS, few=st.booleans())
def test_what_waits_is_what_no_mark_lists(steps: list[tuple[str, Any]], few: bool) -> None:
    """Whatever is read when, and whoever goes on from the offsets: what waits is found, and nothing else."""
    kept = transaction.MAX_MARK_COUNT
    transaction.MAX_MARK_COUNT = 2 if few else kept
    try:
        model = Model()
        for name, value in steps:
            apply(model, name, value)
            model.check()
        model.found = Reconciliation(*model.saved)
        model.read(10**6, 10**6)
        assert list(model.found.open) == [n for n in range(model.half_count) if n not in model.ended]
        if not model.found.open:
            assert (model.found.half_offset, model.found.op_offset) == (model.half_count, len(model.marks))
    finally:
        transaction.MAX_MARK_COUNT = kept


def apply(model: Model, name: str, value: Any) -> None:
    match name:
        case "send":
            model.half_count += value
        case "end":
            known = [offset for offset in value if offset < model.half_count]
            model.mark([*known, 10**9])  # a number that no half message has does no harm
            for offset in known:
                model.found.end(offset)
        case "renew":
            if value in model.found.open and not model.found.is_ended(value):
                model.found.renew(value, model.half_count)
                model.half_count += 1
                model.mark([value])
                model.read(10**6, 10**6)
        case "read":
            model.read(*value)
        case "switch":
            model.found = Reconciliation(*model.saved)


def test_a_mark_is_kept_as_long_as_one_that_it_lists_may_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_MARK_COUNT", 3)
    found = Reconciliation(0, 0)
    found.read_halves(6)
    for op_offset, half_offset in enumerate((1, 3, 4, 5, 0)):
        found.read_mark(op_offset, [half_offset], 6)
    assert list(found.open) == [2] and found.half_offset == 2
    again = Reconciliation(found.half_offset, found.op_offset)
    for op_offset, half_offset in enumerate((1, 3, 4, 5, 0)):
        if op_offset >= again.next_op:
            again.read_mark(op_offset, [half_offset], 6)
    again.read_halves(6)
    assert list(again.open) == [2]


def test_an_end_is_for_the_newest_copy_and_counts_once() -> None:
    found = Reconciliation(0, 0)
    found.read_halves(1)
    assert found.target(0) == 0
    found.renew(0, 1)
    found.renew(1, 2)
    assert found.target(0) == found.target(1) == found.target(2) == 2
    found.end(2)
    assert found.target(0) is None and found.target(2) is None
    found.copied(5, 5)  # what would lead in a circle leads nowhere
    assert found.target(5) == 5


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_REMEMBERED_COUNT", 3)
    monkeypatch.setattr(transaction, "MAX_OPEN_COUNT", 2)
    found = Reconciliation(0, 0)
    for offset in range(10):
        found.end(offset)
    assert [found.target(offset) for offset in (6, 7, 9)] == [6, None, None]
    found.read_halves(2)
    assert found.room == 0 and found.may_read_marks
    found.read_mark(0, [5, 6], 10)
    assert not found.may_read_marks
