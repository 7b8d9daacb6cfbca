"""Transactions: a half message is seen by nobody, a committed one by all. At the end, when nothing waits any more:

- CP: an acknowledged half message stands where its answer said, and a commit that was answered SUCCESS is in the topic,
  though nobody may know of it any more. AP: those that are missing are counted.
- In both: of each half message that the log holds the producer's decision has come to pass, whichever master asked, or
  it was asked for as often as it may be and lies in TRANS_CHECK_MAX_TIME_TOPIC; never so after the faults.
- What was rolled back or never decided is not in the topic. What is there is what was sent, each copy by a request of
  its own, with the half message that it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rmqha.broker.services.transaction import marked
from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    TRANSACTION_GROUP,
    decode_properties,
)
from rmqha.store.log.record import Record, decode
from tests.simulation.checkers.logs.records import entries
from tests.simulation.clients.transaction_client import COMMIT, ROLLBACK, TAG, TOPIC
from tests.simulation.history import History, InvariantError, Send, Transaction
from tests.simulation.processes.broker_process import BrokerProcess

OWN_TOPICS = frozenset((TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC))
"""Which hold no message as it was sent to them."""


@dataclass(frozen=True, slots=True)
class Found:
    """`lost`: acknowledged half messages that are gone. `lost_end_count`: confirmed commits that are in no topic."""

    acked_count: int
    committed_count: int
    duplicate_count: int
    given_up_count: int
    lost: tuple[Send, ...]
    lost_end_count: int


@dataclass(slots=True)
class _Log:
    """What a replica holds."""

    halves: list[tuple[int, int, str]] = field(default_factory=list)
    """(place in the queue, place in the log, key)"""
    marked: dict[int, int] = field(default_factory=dict)
    """Place of a half message in its queue to the place in the log of the first mark that lists it."""
    kept: dict[str, list[int]] = field(default_factory=dict)
    """By key: places in the log of what may stand for its half message, copies, commits and what was given up."""
    given_up: Counter[str] = field(default_factory=Counter)
    committed: Counter[str] = field(default_factory=Counter)


def missing(brokers: Sequence[BrokerProcess], history: History) -> str:
    """What still waits for an end, or ""."""
    undecided = [item.key for item in history.transactions.values() if item.decision is None]
    if undecided:
        return f"{len(undecided)} transactions are under way, {undecided[0]} among them"
    for broker in brokers:
        if broker.replica.is_master:
            offset, end = broker.core.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0), _end(broker)
            if (offset or 0) < end:
                return f"{broker.host} has worked off {offset} of {end} half messages"
    return ""


def _end(broker: BrokerProcess) -> int:
    return int(broker.store.queue_range(HALF_TOPIC, 0)[1])


def verify(history: History, broker: BrokerProcess, *, cp: bool, check_max: int) -> Found:
    """`check_max`: the least transactionCheckMax of all replicas."""
    log = _read(history, broker, check_max)
    places = {place: key for place, _, key in log.halves}
    present = set(places.values())
    _check_marks(broker, log)
    _check_order(history, broker, log)
    lost: list[Send] = []
    lost_end_count = 0
    for item in history.transactions.values():
        half = item.half
        if half.acked_at_ms is not None and places.get(half.queue_offset) != item.key:
            lost.append(half)
            if cp:
                raise InvariantError(
                    f"the half message of {item.key} was acknowledged at {half.queue_offset} by {half.broker},"
                    f" and is not there"
                )
        if item.decision == COMMIT and item.ended_at_ms is not None and not log.committed[item.key]:
            lost_end_count += 1
            if cp:
                raise InvariantError(f"the commit of {item.key} was confirmed, and its message is not in {TOPIC}")
        if item.key in present:
            _check_ended(item, log)
    copies = sum(count - 1 for count in log.committed.values())
    acked = sum(item.half.acked_at_ms is not None for item in history.transactions.values())
    return Found(acked, len(log.committed), copies, len(log.given_up), tuple(lost), lost_end_count)


def _check_ended(item: Transaction, log: _Log) -> None:
    """Of one whose half message is there."""
    if log.committed[item.key]:
        return  # and rightly so: `_check_committed`
    if item.is_last and (item.decision == COMMIT or not item.rollback_count):
        raise InvariantError(f"{item.key}, begun after all faults, was not ended as its producer says: {item}")
    if item.decision == ROLLBACK and item.rollback_count:
        return
    if not log.given_up[item.key]:
        raise InvariantError(f"{item.key} waits no longer, is neither in {TOPIC} nor in {CHECK_MAX_TOPIC}: {item}")


def _check_marks(broker: BrokerProcess, log: _Log) -> None:
    """What waits no longer is marked, and nothing else is."""
    places = [place for place, _, _ in log.halves]
    unmarked = [place for place in places if place not in log.marked]
    strange = sorted(log.marked.keys() - set(places))
    if unmarked or strange:
        raise InvariantError(
            f"{broker.host}: of {len(places)} half messages {unmarked[:3]} have no mark; marks list {strange[:3]},"
            f" which are none"
        )


def _check_order(history: History, broker: BrokerProcess, log: _Log) -> None:
    """A mark stands behind what was made of the message that it ends: a cut may take the mark alone."""
    for place, half_at, key in log.halves:
        marked_at = log.marked[place]
        between = [at for at in log.kept.get(key, ()) if half_at < at < marked_at]
        if not between and history.transactions[key].decision == COMMIT:
            raise InvariantError(
                f"{broker.host}: the mark at {marked_at} ends {key}, and nothing in front of it stands for its half"
                f" message at {half_at}"
            )


def _read(history: History, broker: BrokerProcess, check_max: int) -> _Log:
    log = _Log()
    for place, phy_offset, key, record in _records(broker, HALF_TOPIC):
        item = _sent(history, broker, key, record)
        properties = decode_properties(record.properties)
        meant = properties.get(PROPERTY_REAL_TOPIC), properties.get(PROPERTY_REAL_QUEUE_ID)
        if meant != (TOPIC, str(item.queue_id)):
            raise InvariantError(f"{broker.host}: the half message of {key} is meant for {meant}")
        log.halves.append((place, phy_offset, key))
        log.kept.setdefault(key, []).append(phy_offset)
    for _, phy_offset, _, record in _records(broker, OP_TOPIC):
        for place in marked(record):
            log.marked.setdefault(place, phy_offset)
    for _, phy_offset, key, record in _records(broker, CHECK_MAX_TOPIC):
        _sent(history, broker, key, record)
        times = int(decode_properties(record.properties).get(PROPERTY_TRANSACTION_CHECK_TIMES, "0"))
        if times < check_max:
            raise InvariantError(f"{broker.host} has given {key} up after {times} of {check_max} questions")
        log.given_up[key] += 1
        log.kept.setdefault(key, []).append(phy_offset)
    key_at = {phy_offset: key for _, phy_offset, key in log.halves}
    for _, phy_offset, key, record in _records(broker, TOPIC):
        item = _sent(history, broker, key, record)
        prepared = record.prepared_transaction_offset
        if prepared >= phy_offset or key_at.get(prepared) != key:
            raise InvariantError(f"{broker.host} shows {key} for a half message at {prepared}, where none of it stands")
        _check_committed(item, record)
        log.committed[key] += 1
        log.kept.setdefault(key, []).append(phy_offset)
        if log.committed[key] > item.commit_count:
            raise InvariantError(f"{key} was committed {item.commit_count} times and is stored oftener")
    return log


def _sent(history: History, broker: BrokerProcess, key: str, record: Record) -> Transaction:
    item = history.transactions.get(key)
    if item is None or bytes(record.body) != item.body:
        raise InvariantError(f"{broker.host}: {record.topic} holds {key} at {record.queue_offset}, which nobody sent")
    return item


def _check_committed(item: Transaction, record: Record) -> None:
    if item.decision != COMMIT:
        raise InvariantError(f"{item.key} is in {TOPIC}, and its producer has never committed it: {item}")
    properties = decode_properties(record.properties)
    wanted = {PROPERTY_UNIQUE_KEY: item.key, PROPERTY_KEYS: item.key, PROPERTY_TAGS: TAG}
    if (
        record.queue_id != item.queue_id
        or record.sys_flag & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_TRANSACTION_COMMIT
        or {name: properties.get(name) for name in wanted} != wanted
        or PROPERTY_REAL_TOPIC in properties
    ):
        raise InvariantError(f"{item.key} was sent to queue {item.queue_id}, and is shown as {record}")


def _records(broker: BrokerProcess, topic: str) -> Iterator[tuple[int, int, str, Record]]:
    """(place in its queue, place in the log, key, record)"""
    for queue_id in broker.store.queues().get(topic, ()):
        for entry in entries(broker, topic, queue_id):
            yield entry.queue_offset, entry.phy_offset, entry.key, decode(entry.view)
