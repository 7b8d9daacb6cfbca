"""Transactional messages: their forms in the log, and the ones that still wait. Pure.

A half message waits in queue 0 of HALF_TOPIC. A commit stores the real message. Every end stores a mark in queue 0 of
OP_TOPIC with the queue offset of the half message, which then no longer waits. A checked half message is stored again
with TRANSACTION_CHECK_TIMES raised by one, and the older copy is marked. So log and marks alone determine what waits.
The offsets to begin with are in the last mark: the two consumer offsets of TRANSACTION_GROUP are in no log, and may
come from a part of it that a failover in AP has lost with its marks. They count if the last mark is an Apache broker's,
which continues from the same bytes.

Transitions of `Reconciliation`: a half message is read (waits, unless its mark came first), ended (its mark is being
stored), renewed (the copy waits instead), closed (marked, or given up).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_ACCOUNT,
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_CRC32,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    decode_properties,
    encode_properties,
    find_property,
)
from rmqha.model.principal import MARK_CHARS
from rmqha.store.log.record import Host, NewMessage, Record

RENEWAL_BYTES = 64
"""Bytes of properties that a half message must leave for those of a check."""
MAX_OPEN_COUNT = 100_000
"""Bound on tracked half messages, and on marks that precede theirs."""
MAX_OWNED_COUNT = 2 * MAX_OPEN_COUNT
"""Bound on half messages whose account is remembered."""
MAX_MARK_COUNT = 1 << 16
MAX_REMEMBERED_COUNT = 1 << 16
REMOVE_TAG = "d"
PROPERTY_WAITING_FROM = "RMQHA_WAITING_FROM"
"""Own. Property of a mark: "half,op", the offsets from which half messages and marks determine what waits at the time
of the mark."""
_NO_PRODUCERS = (PROPERTY_ACCOUNT, PROPERTY_TRANSACTION_CHECK_TIMES, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
"""Properties of half messages that brokers alone say."""
_MARK_PROPERTIES = encode_properties({PROPERTY_WAIT: "true", PROPERTY_TAGS: REMOVE_TAG})


# --- forms ------------------------------------------------------------------------------------------------------------
def to_half(message: NewMessage, mark: str = "") -> NewMessage:
    """Half message of a prepared message; `mark`: the account (`Principal.mark`) whose share it counts for."""
    properties = decode_properties(message.properties)
    for name in (*_NO_PRODUCERS, PROPERTY_CRC32):
        properties.pop(name, None)
    if mark:
        properties[PROPERTY_ACCOUNT] = mark
    if properties.get(PROPERTY_UNIQUE_KEY):
        properties[PROPERTY_TRANSACTION_ID] = properties[PROPERTY_UNIQUE_KEY]
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    sys_flag = message.sys_flag & ~SYS_FLAG_TRANSACTION_MASK
    return replace(message, topic=HALF_TOPIC, queue_id=0, properties=encode_properties(properties), sys_flag=sys_flag)


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Topic and queue for which a half message is meant; None if missing."""
    topic, queue_id = properties.get(PROPERTY_REAL_TOPIC), properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or topic in (HALF_TOPIC, OP_TOPIC) or not queue_id.isascii() or not queue_id.isdigit():
        return None
    return (topic, int(queue_id)) if len(queue_id) <= 9 else None


def to_commit(half: Record, store_host: Host) -> NewMessage | None:
    """Message for consumers; None if topic or queue is missing."""
    properties = decode_properties(half.properties)
    place = real_place(properties)
    if place is None:
        return None
    for name in (PROPERTY_CRC32, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID, PROPERTY_ACCOUNT):
        properties.pop(name, None)
    sys_flag = half.sys_flag & ~SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_TRANSACTION_COMMIT
    made = _again(half, place[0], properties, store_host)
    return replace(made, queue_id=place[1], sys_flag=sys_flag, prepared_transaction_offset=half.phy_offset)


def mark_of(half: Record) -> str:
    """The account whose share a half message counts for, as its properties say; "" for none."""
    found = find_property(half.properties, PROPERTY_ACCOUNT.encode()) or b""
    return found.decode("ascii", "replace") if len(found) == MARK_CHARS else ""


def renewed(half: Record, store_host: Host) -> NewMessage:
    """Copy that waits for the answer of one more check."""
    properties = decode_properties(half.properties)
    times = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "1" if times is None else str(_number(times) + 1)
    return _again(half, HALF_TOPIC, properties, store_host)


def resumed(given: Record, store_host: Host) -> NewMessage | None:
    """Half message that is checked again after it was given up; None if it was none."""
    properties = decode_properties(given.properties)
    if real_place(properties) is None:
        return None
    properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
    return _again(given, HALF_TOPIC, properties, store_host)


def given_up(half: Record, store_host: Host) -> NewMessage:
    """Copy in CHECK_MAX_TOPIC for operators."""
    return _again(half, CHECK_MAX_TOPIC, decode_properties(half.properties), store_host)


def mark(
    queue_offsets: Sequence[int], at_ms: int, store_host: Host, waiting_from: tuple[int, int] | None = None
) -> NewMessage:
    """Mark that these half messages no longer wait. `waiting_from`: `Reconciliation.waiting_from`."""
    body = "".join(f"{queue_offset}," for queue_offset in queue_offsets).encode()
    properties = _MARK_PROPERTIES
    if waiting_from is not None:
        properties += encode_properties({PROPERTY_WAITING_FROM: "{},{}".format(*waiting_from)})
    return NewMessage(OP_TOPIC, 0, body, properties, at_ms, store_host, store_host)


def parse_waiting_from(record: Record) -> tuple[int, int] | None:
    """Queue offsets (half, op) in the mark; None in one of an Apache broker, or of an earlier release."""
    half, comma, op = (find_property(record.properties, PROPERTY_WAITING_FROM.encode()) or b"").partition(b",")
    is_told = comma and half.isdigit() and op.isdigit() and len(half) <= 19 and len(op) <= 19
    return (int(half), int(op)) if is_told else None


def marked(record: Record) -> list[int]:
    """Queue offsets in a mark; malformed ones are ignored."""
    if find_property(record.properties, PROPERTY_TAGS.encode()) != REMOVE_TAG.encode():
        return []
    parts = bytes(record.body).split(b",")
    return [int(part) for part in parts if part.isdigit() and len(part) <= 19]


def _again(half: Record, topic: str, properties: dict[str, str], store_host: Host) -> NewMessage:
    properties.pop(PROPERTY_CRC32, None)
    return half.as_new_message(topic, 0, encode_properties(properties), store_host)


def _number(text: str) -> int:
    """Number as RocketMQ reads a property: -1 if malformed."""
    try:
        return int(text) if len(text) <= 18 else -1
    except ValueError:
        return -1


# --- when -------------------------------------------------------------------------------------------------------------
class TransactionRules(NamedTuple):
    """transactionTimeOut, transactionCheckMax and fileReservedTime."""

    timeout_ms: int
    check_max: int
    reserved_ms: int


class TransactionVerdict(Enum):
    LATER = "it may still end by itself"
    CHECK = "ask its producer"
    GIVE_UP = "asked often enough, too old, or its topic was deleted"


def judge(half: Record, wall_ms: int, rules: TransactionRules) -> tuple[TransactionVerdict, int]:
    """Due step of a waiting half message, and until when `LATER` holds (ms)."""
    properties = decode_properties(half.properties)
    age_ms = wall_ms - half.born_at_ms
    times = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)
    if (times is not None and _number(times) >= rules.check_max) or age_ms > rules.reserved_ms:
        return TransactionVerdict.GIVE_UP, 0
    immunity = properties.get(PROPERTY_CHECK_IMMUNITY_SECONDS)
    if age_ms < (0 if immunity is None else -rules.timeout_ms):
        # the producer's clock is ahead: how old it is cannot be known, and an immunity from then on may last for ever
        return TransactionVerdict.CHECK, 0
    if immunity is None:
        immune_ms = rules.timeout_ms
    else:
        seconds = _number(immunity)
        immune_ms = rules.timeout_ms if seconds == -1 else seconds * 1000
    if age_ms > immune_ms:
        return TransactionVerdict.CHECK, 0
    return TransactionVerdict.LATER, half.born_at_ms + min(immune_ms, rules.reserved_ms)


def is_too_late(half: Record, wall_ms: int, timeout_ms: int) -> bool:
    """True after the immunity time of a message: only within it its producer may end it; later the answer to a check
    counts."""
    immunity = find_property(half.properties, PROPERTY_CHECK_IMMUNITY_SECONDS.encode())
    if not immunity:
        return False
    seconds = _number(immunity.decode("ascii", "replace"))
    return wall_ms - half.born_at_ms > max(seconds * 1000, timeout_ms)


# --- which ------------------------------------------------------------------------------------------------------------
class Reconciliation:
    """Waiting half messages by queue offset, as far as both queues have been read: half messages up to `next_half`,
    marks up to `next_op`. `open`: waiting ones, ascending, with the time before which nothing is due, if known.

    It begins with offsets of half messages and marks. `half_offset` and `op_offset` are the present ones: with them the
    same messages are found to wait.
    """

    def __init__(self, half_offset: int, op_offset: int) -> None:
        self.next_half = half_offset
        self.next_op = op_offset
        self.open: dict[int, int | None] = {}
        self._removed: set[int] = set()
        """Half messages that were marked before they were read."""
        self._marks: deque[tuple[int, int]] = deque()
        """(offset of a mark, last half message in it or in those up to the next entry), of marks that may still be
        needed."""
        self._ended: OrderedDict[int, int] = OrderedDict()
        """Latest half messages that producers have ended; their marks may not be read yet."""
        self._copies: OrderedDict[int, int] = OrderedDict()
        """Copy that waits in place of a half message, for ends that name the older one."""
        self._marks_of: dict[int, str] = {}
        """Accounts of half messages that wait, as far as known."""
        self._owned_counts: Counter[str] = Counter()

    @property
    def half_offset(self) -> int:
        return next(iter(self.open), self.next_half)

    @property
    def op_offset(self) -> int:
        first = self.half_offset
        while self._marks and self._marks[0][1] < first:
            self._marks.popleft()
        return self._marks[0][0] if self._marks else self.next_op

    @property
    def waiting_from(self) -> tuple[int, int]:
        """Both offsets."""
        return self.half_offset, self.op_offset

    @property
    def room(self) -> int:
        """Number of half messages that can still be tracked."""
        return MAX_OPEN_COUNT - len(self.open)

    @property
    def may_read_marks(self) -> bool:
        return len(self._removed) < MAX_OPEN_COUNT

    def read_mark(self, op_offset: int, queue_offsets: Iterable[int], half_end: int) -> None:
        """Read the mark at `op_offset` with `queue_offsets`. `half_end`: end of the queue of half messages; a mark
        follows its half messages, so larger offsets are ignored."""
        first, last = self.half_offset, -1
        for queue_offset in queue_offsets:
            if not first <= queue_offset < half_end:
                continue
            last = max(last, queue_offset)
            if queue_offset >= self.next_half:
                self._removed.add(queue_offset)
                self._disown(queue_offset)
            else:
                self.close(queue_offset)
        if last >= 0:
            self._marks.append((op_offset, last))
            if len(self._marks) > MAX_MARK_COUNT:
                self._thin_out()
        self.next_op = op_offset + 1

    def read_halves(self, end: int) -> None:
        """Read the half messages before `end`."""
        for queue_offset in range(self.next_half, end):
            if queue_offset in self._removed:
                self._removed.discard(queue_offset)
            else:
                self.open[queue_offset] = None
        self.next_half = max(self.next_half, end)

    @property
    def unended(self) -> list[int]:
        """Waiting ones that no producer has ended, ascending."""
        return [queue_offset for queue_offset in self.open if queue_offset not in self._ended]

    def is_ended(self, queue_offset: int) -> bool:
        return queue_offset in self._ended

    def target(self, queue_offset: int) -> int | None:
        """Half message that an end of this one is for: itself, or the copy that waits instead. None if it has ended, as
        far as remembered."""
        while (copy := self._copies.get(queue_offset)) is not None:
            queue_offset = copy
        return None if queue_offset in self._ended or queue_offset in self._removed else queue_offset

    def end(self, queue_offset: int) -> None:
        """Take note that its mark has been appended."""
        _remember(self._ended, queue_offset, queue_offset)
        self._disown(queue_offset)

    def renew(self, queue_offset: int, copy_offset: int) -> None:
        """Take note that its copy and its mark have been appended."""
        mark = self._marks_of.get(queue_offset, "")
        self.close(queue_offset)
        self.copied(queue_offset, copy_offset)
        self.own(copy_offset, mark)

    def copied(self, queue_offset: int, copy_offset: int) -> None:
        """Take note of a copy of a half message at a higher offset."""
        if copy_offset > queue_offset:
            _remember(self._copies, queue_offset, copy_offset)

    def judge_anew(self) -> None:
        """Forget the results of all checks."""
        self.open = dict.fromkeys(self.open)

    def close(self, queue_offset: int) -> None:
        """Remove a half message that no longer waits."""
        self.open.pop(queue_offset, None)
        self._disown(queue_offset)

    def own(self, queue_offset: int, mark: str) -> None:
        """Count a half message for the account of that mark, "" for nobody."""
        if mark and queue_offset not in self._marks_of and len(self._marks_of) < MAX_OWNED_COUNT:
            self._marks_of[queue_offset] = mark
            self._owned_counts[mark] += 1

    def owned_count(self, mark: str) -> int:
        """Number of half messages that count for the account."""
        return self._owned_counts[mark]

    @property
    def owned_room(self) -> int:
        """Bound on the half messages of one account: as many as accounts leave. So one has half at most, a second one a
        quarter, and however many there are, the next one finds room."""
        return MAX_OPEN_COUNT - len(self._marks_of)

    def _disown(self, queue_offset: int) -> None:
        mark = self._marks_of.pop(queue_offset, "")
        if mark:
            self._owned_counts[mark] -= 1
            if not self._owned_counts[mark]:
                del self._owned_counts[mark]

    def _thin_out(self) -> None:
        """Merge pairs of entries; a start then reads a few more marks."""
        marks = list(self._marks)
        pairs = zip(marks[::2], [*marks[1::2], marks[-1]], strict=False)
        self._marks = deque((left[0], max(left[1], right[1])) for left, right in pairs)


def _remember(table: OrderedDict[int, int], queue_offset: int, value: int) -> None:
    table[queue_offset] = value
    if len(table) > MAX_REMEMBERED_COUNT:
        table.popitem(last=False)
