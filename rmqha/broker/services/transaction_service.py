"""The end of a transaction (37), and checks (39) of those without an end. No trio.

Only the open master works. The offsets of TRANSACTION_GROUP advance past a checked half message when the confirm offset
covers its copy: the next master finds every waiting transaction, some perhaps twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rmqha.broker.replication.waiter import MessageAppender, Waiter, Waiting
from rmqha.broker.requests.record_access import require_owner, require_producer
from rmqha.broker.requests.request import Channel, RequestError, not_admitted, number, text, truth
from rmqha.broker.services.schedule import ScheduleLog
from rmqha.broker.services.traffic import Traffic
from rmqha.broker.services.transaction import (
    Reconciliation,
    TransactionRules,
    TransactionVerdict,
    given_up,
    is_too_late,
    judge,
    mark,
    mark_of,
    marked,
    parse_waiting_from,
    real_place,
    renewed,
    resumed,
    to_commit,
)
from rmqha.broker.tables.clients import ClientTable
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.ha.action import AckStatus
from rmqha.model.access import Needs, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError, UsageError
from rmqha.model.message import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_KEY,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    TRANSACTION_GROUP,
    are_whole,
    decode_properties,
    find_property,
    offset_message_id,
    parse_offset_message_id,
)
from rmqha.model.offset import PhyOffset
from rmqha.model.principal import Principal
from rmqha.port import Clock, Tracer
from rmqha.store.integrity.record_starts import StoredRecord
from rmqha.store.log.record import Host, Record, encode, topic_field
from rmqha.wire.command import FLAG_ONEWAY, Command

SLICE_COUNT = 256
"""Marks or half messages that one step reads."""
MAX_CHECK_COUNT = 64
MAX_CHECK_BYTES = 1024 * 1024
"""Bytes of bodies that one step stores again, at least one message."""
HOUR_MS = 3_600_000
MAX_COUNTED = 10_000
"""Half messages that one count of those without an end reads."""
COUNTED_SLICE = 16
MAX_COUNTED_BYTES = 256 * 1024
"""Bytes of bodies after which a step of such a count ends."""
MAX_GROUP_CHARS = 255
"""Characters of a producer group that such a count remembers: a message may say one of 30 KB."""
MAX_WITHHELD_COUNT = 1000
_NOT_FOUND = "Find prepared transaction message failed"


class TransactionLog(ScheduleLog, Protocol):
    """Log with half messages and marks; the store."""

    @property
    def confirm_offset(self) -> PhyOffset: ...

    def verified_record_at(self, phy_offset: int) -> StoredRecord | None: ...


class _NoAnswer(Waiting):
    """Channel of an end without an answer."""

    __slots__ = ()

    def finish(self, status: AckStatus) -> None:
        """Ignore the outcome: the half message is checked if the end is lost."""


class _Copies(Waiting):
    """Copies of one step, until the confirm offset covers them. `checks`: offsets of the copies to check."""

    __slots__ = ("_service", "checks", "end_offset", "is_acked")

    def __init__(self, service: TransactionService, end_offset: PhyOffset, checks: list[int]) -> None:
        self._service = service
        self.end_offset = end_offset
        self.checks = checks
        self.is_acked = False

    def finish(self, status: AckStatus) -> None:
        self._service.finished(self, status)


class _Due(NamedTuple):
    queue_offset: int
    half: Record
    verdict: TransactionVerdict


class OpenCount:
    """Half messages of one producer group for one topic: number, birth of the oldest (ms), most checks of one."""

    def __init__(self, born_at_ms: int) -> None:
        self.count = 0
        self.oldest_born_at_ms = born_at_ms
        self.check_count = 0


class OpenCounts:
    """Counts of half messages without an end. `read`: how many of them `rows` can have; `rows`: by producer group and
    topic."""

    def __init__(self) -> None:
        self.waiting = 0
        self.read = 0
        self.rows: dict[tuple[str, str], OpenCount] = {}

    def add(self, half: Record, topic: str | None) -> None:
        """Add a half message if it is for `topic`; None: for any."""
        properties = decode_properties(half.properties)
        name = properties.get(PROPERTY_REAL_TOPIC, "")
        if topic is not None and name != topic:
            return
        key = properties.get(PROPERTY_PRODUCER_GROUP, "")[:MAX_GROUP_CHARS], name
        row = self.rows.setdefault(key, OpenCount(half.born_at_ms))
        row.count += 1
        row.oldest_born_at_ms = min(row.oldest_born_at_ms, half.born_at_ms)
        times = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES, "")
        if times.isdecimal() and len(times) <= 9:
            row.check_count = max(row.check_count, int(times))


class TransactionShell(Protocol):
    """Port to the shell; a `BrokerShell` is one."""

    def wake_transactions(self) -> None:
        """Call `step` soon."""

    def hold(self, channel: Channel, commands: list[Command]) -> bool:
        """Hold or forward ends during or after a hand-over (`SendForwarder`)."""
        ...


class TransactionService:
    def __init__(
        self,
        config: BrokerConfig,
        log: TransactionLog,
        appends: MessageAppender,
        offsets: OffsetTable,
        topics: TopicTable,
        clients: ClientTable,
        clock: Clock,
        tracer: Tracer,
        store_host: Host,
        shell: TransactionShell,
    ) -> None:
        self._log = log
        self._appends = appends
        self._offsets = offsets
        self._topics = topics
        self._clients = clients
        self._clock = clock
        self._tracer = tracer
        self._store_host = store_host
        self._broker_name = config.broker_name
        self._state: Reconciliation | None = None
        """State of this mastership; None until its first step."""
        self.configure(config)
        self._next_round_ms = 0
        self._checked_at_ms = 0
        """Wall clock (ms)."""
        self._round: deque[int] | None = None
        """Half messages that this round must still check; None between rounds."""
        self._copies: _Copies | None = None
        self._turn = 0
        self._withheld: set[tuple[str, str]] = set()
        self._shell = shell
        self.traffic: Traffic | None = None

    def configure(self, config: BrokerConfig) -> None:
        self._interval_ms = config.transaction_check_interval
        self._rules = TransactionRules(
            config.transaction_time_out, config.transaction_check_max, config.file_reserved_time * HOUR_MS
        )
        if self._state is not None:
            self._state.judge_anew()

    def role_changed(self) -> None:
        """Forget the state, which is the new master's."""
        self._state = self._round = self._copies = None

    @property
    def waiting_count(self) -> int:
        """Number of waiting half messages; new ones count even if they have ended."""
        if self._state is None:
            return 0
        return len(self._state.open) + max(0, self._log.queue_range(HALF_TOPIC, 0)[1] - self._state.next_half)

    def half_refusal(self, principal: Principal) -> str:
        """Reason why the account may have no more half messages wait, else ""."""
        if self._state is None or not principal.mark:
            return ""
        own_count = self._state.owned_count(principal.mark)
        if own_count < self._state.owned_room:
            return ""
        remark = f"account {principal.access_key} has {own_count} transactions that have not ended"
        return f"{remark}, as many as are left of those that this broker follows: end some"

    def prepared(self, queue_offset: int, principal: Principal) -> None:
        """Take note of a half message of that account that was appended."""
        if self._state is not None:
            self._state.own(queue_offset, principal.mark)

    def count_open(self, topic: str | None, found: OpenCounts) -> Iterator[None]:
        """Count half messages without an end, of all topics or of one, the oldest first in slices; at most MAX_COUNTED
        are read. Raises RequestError if another replica is the master, DamagedError for a mark that cannot be read."""
        while self._read_marks(self._served()):
            yield
        state = self._served()
        self._read_halves(state)
        waiting = deque(state.unended)
        found.waiting = len(waiting) + self._log.queue_range(HALF_TOPIC, 0)[1] - state.next_half
        while waiting and found.read < MAX_COUNTED:
            yield
            size_bytes = 0
            for _ in range(COUNTED_SLICE):
                if not waiting or found.read == MAX_COUNTED or size_bytes > MAX_COUNTED_BYTES:
                    break
                found.read += 1
                try:
                    half = self._half(waiting.popleft())
                except DamagedError:
                    continue  # `step` tells, and a replica with a valid record is asked for it
                if half is not None:
                    size_bytes += len(half.body)
                    found.add(half, topic)

    def _served(self) -> Reconciliation:
        if not self._appends.is_serving:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "only a master that takes messages knows which have no end")
        return self._started()

    # --- the end of a transaction -------------------------------------------------------------------------------------
    def process(self, channel: Channel, command: Command) -> None:
        """Process request 37. Producers send it oneway; others are answered when the end is acknowledged."""
        if not self._shell.hold(channel, [command]):
            self.admit(channel, command)

    def admit(self, channel: Channel, command: Command) -> None:
        """Process an end that was held."""
        code, remark = self._appends.admission()
        if code is not ResponseCode.SUCCESS:
            if not command.is_oneway:
                channel.send(not_admitted(command, code, remark))
            return
        try:
            self._end(channel, command)
        except RequestError as refusal:
            if not command.is_oneway:
                channel.send(command.reply(refusal.code, {}, remark=str(refusal)))

    def _end(self, channel: Channel, command: Command) -> None:
        """End a transaction. Raises RequestError."""
        outcome = number(command, "commitOrRollback")
        if outcome not in (0, SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_ROLLBACK):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
        if not outcome:
            return  # the producer does not know yet, and expects no answer
        half = self._prepared(command)
        try:
            state = self._started()
        except DamagedError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        target = state.target(half.queue_offset)
        reply = command.reply(ResponseCode.SUCCESS, {})
        if target is None:
            if not command.is_oneway:
                # The earlier end is in the log of this epoch, but the group may not have it yet.
                self._appends.appended(self._log.max_phy_offset, Waiter(channel, [reply]))
            return
        messages = [mark([target], self._clock.wall_ms(), self._store_host, state.waiting_from)]
        if outcome == SYS_FLAG_TRANSACTION_COMMIT:
            commit = to_commit(half, self._store_host)
            if commit is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, "the prepared message does not say where it belongs")
            if self._topics.is_for_deleted(commit.topic, half.phy_offset):
                raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{commit.topic}] was deleted meanwhile")
            commit.queue_id = self._topics.read_queue(commit.topic, commit.queue_id)
            # In this order: a cut of the log may remove the mark alone, never the message alone.
            messages.insert(0, commit)
        try:
            end_offset = self._appends.append(messages).end_offset
        except UsageError as error:
            self._tracer.event("transaction_not_committed", phy_offset=half.phy_offset, reason=str(error))
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        state.end(target)
        if self.traffic is not None and (place := real_place(decode_properties(half.properties))) is not None:
            seconds = max(0, self._clock.wall_ms() - half.born_at_ms) / 1000
            self.traffic.note_ended(place[0], outcome == SYS_FLAG_TRANSACTION_COMMIT, seconds)
        self._appends.appended(end_offset, _NoAnswer() if command.is_oneway else Waiter(channel, [reply]))

    def _prepared(self, command: Command) -> Record:
        """Half message of the request, after RocketMQ's checks. Raises RequestError."""
        group, queue_offset = text(command, "producerGroup"), number(command, "tranStateTableOffset")
        found = self._log.verified_record_at(number(command, "commitLogOffset"))
        if found is None or found.record.topic != HALF_TOPIC or found.record.sys_flag & SYS_FLAG_TRANSACTION_MASK:
            raise RequestError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        half = found.record
        self._require_rights(command, half, group)
        if not truth(command, "fromTransactionCheck") and is_too_late(
            half, self._clock.wall_ms(), self._rules.timeout_ms
        ):
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "the producer will be asked: its end came too late")
        if find_property(half.properties, PROPERTY_PRODUCER_GROUP.encode()) != group.encode():
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != queue_offset:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        key, named = find_property(half.properties, PROPERTY_UNIQUE_KEY.encode()), command.ext.get("transactionId")
        if key and named and key not in (named.encode(), command.ext.get("msgId", "").encode()):
            # After a cut of the log (AP) another transaction's message may be at that offset.
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction id wrong")
        return half

    @staticmethod
    def _require_rights(command: Command, half: Record, group: str) -> None:
        """Check the rights of the peer that ends a transaction: the topic in the request is only a claim. Raises
        RequestError."""
        require_owner(command, half, Permission.PUB)
        require_producer(command, group)

    def resume(self, channel: Channel, command: Command) -> None:
        """Process request 323: check a given-up transaction again, by its id in CHECK_MAX_TOPIC. Raises
        RequestError."""
        code, remark = self._appends.admission()
        if code is not ResponseCode.SUCCESS:
            raise RequestError(code, remark)
        named = text(command, "msgId")
        try:
            _, phy_offset = parse_offset_message_id(named)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        found = self._log.verified_record_at(phy_offset)
        is_safe = found is not None and phy_offset + len(found.data) <= self._log.confirm_offset
        if found is None or not is_safe or found.record.topic != CHECK_MAX_TOPIC:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no message of {CHECK_MAX_TOPIC} has the id {named}")
        half = resumed(found.record, self._store_host)
        if half is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the message {named} does not say where it belongs")
        try:
            end_offset = self._appends.append([half]).end_offset
        except UsageError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._appends.appended(end_offset, Waiter(channel, [command.reply(ResponseCode.SUCCESS, {})]))
        self._shell.wake_transactions()

    # --- checks -------------------------------------------------------------------------------------------------------
    def step(self) -> bool:
        """Do a slice of the due work; True if more remains. Raises StoreError."""
        if not self._appends.is_serving or self._appends.admission()[0] is not ResponseCode.SUCCESS:
            return False
        if not self._are_copies_safe():
            return False
        try:
            state = self._started()
            if self._read_marks(state):
                return True
        except DamagedError:
            return False  # a mark that cannot be read may end what would be asked for: all waits until it is repaired
        self._read_halves(state)
        self._save(state)
        if self._round is None:
            if self._clock.now_ms() < self._next_round_ms:
                return False
            self._round = deque(state.open)
        due = self._take_due(state, self._round)
        if due:
            self._store_again(state, due)
        if not self._round:
            self._round = None
            self._next_round_ms = self._clock.now_ms() + self._interval_ms
        return bool(due or self._round)

    def _started(self) -> Reconciliation:
        if self._state is None:
            self._state = Reconciliation(*self._waiting_from())
            self._next_round_ms = self._clock.now_ms() + self._interval_ms
        return self._state

    def _waiting_from(self) -> tuple[int, int]:
        """Offsets of half messages and marks to begin with. Raises DamagedError if the last mark cannot be read."""
        (half_low, half_end), (op_low, op_end) = (self._log.queue_range(topic, 0) for topic in (HALF_TOPIC, OP_TOPIC))
        if not op_end:
            return half_low, 0
        told = None
        for unit in self._log.units(OP_TOPIC, 0, op_end - 1, 1) if op_end > op_low else ():
            told = parse_waiting_from(self._log.sound_record(OP_TOPIC, 0, op_end - 1, unit))
        half, op = told or (self._known(HALF_TOPIC), self._known(OP_TOPIC))
        return min(half, half_end), min(op, op_end)

    def _known(self, topic: str) -> int:
        return self._offsets.query(TRANSACTION_GROUP, topic, 0) or 0

    def _save(self, state: Reconciliation) -> None:
        """Save the offsets, that of half messages first: reading marks twice does no harm."""
        for topic, offset in ((HALF_TOPIC, state.half_offset), (OP_TOPIC, state.op_offset)):
            if offset != self._known(topic):
                self._offsets.commit(TRANSACTION_GROUP, topic, 0, offset)

    def _read_marks(self, state: Reconciliation) -> bool:
        """Read marks; True if more remain. Raises DamagedError."""
        low, high = self._log.queue_range(OP_TOPIC, 0)
        half_end = self._log.queue_range(HALF_TOPIC, 0)[1]
        state.next_op = max(state.next_op, low)
        for unit in self._log.units(OP_TOPIC, 0, state.next_op, SLICE_COUNT):
            if not state.may_read_marks:
                return False
            record = self._log.sound_record(OP_TOPIC, 0, state.next_op, unit)
            state.read_mark(state.next_op, marked(record), half_end)
        return state.next_op < high

    def _read_halves(self, state: Reconciliation) -> None:
        low, high = self._log.queue_range(HALF_TOPIC, 0)
        state.next_half = max(state.next_half, low)
        state.read_halves(min(high, state.next_half + max(0, state.room)))

    def _half(self, queue_offset: int) -> Record | None:
        """Half message at that offset, None if it was removed. Raises DamagedError."""
        units = self._log.units(HALF_TOPIC, 0, queue_offset, 1)
        return self._log.sound_record(HALF_TOPIC, 0, queue_offset, units[0], _has_destination) if units else None

    def _take_due(self, state: Reconciliation, left: deque[int]) -> list[_Due]:
        """Half messages that are due, a slice of them."""
        due: list[_Due] = []
        wall_ms, size_bytes = self._clock.wall_ms(), 0
        if wall_ms < self._checked_at_ms:
            # The clock was set back: with the earlier results the half messages would wait that much longer.
            state.judge_anew()
        self._checked_at_ms = wall_ms
        for _ in range(min(SLICE_COUNT, len(left))):
            if len(due) == MAX_CHECK_COUNT or size_bytes > MAX_CHECK_BYTES:
                break
            queue_offset = left.popleft()
            if queue_offset not in state.open or state.is_ended(queue_offset):
                continue
            until_ms = state.open[queue_offset]
            if until_ms is not None and wall_ms <= until_ms:
                continue
            try:
                half = self._half(queue_offset)
            except DamagedError as error:
                # It waits: a copy would hide the damage. A replica with a valid record is asked for it.
                self._tracer.event("half_message_damaged", queue_offset=queue_offset, phy_offset=error.phy_offset)
                continue
            place = None if half is None else real_place(decode_properties(half.properties))
            if half is None or place is None:
                self._tracer.event("half_message_unusable", queue_offset=queue_offset)
                state.close(queue_offset)
                continue
            older = find_property(half.properties, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET.encode())
            if older is not None and older.isdigit() and len(older) <= 18:
                state.copied(int(older), queue_offset)
            state.own(queue_offset, mark_of(half))
            verdict, later_ms = judge(half, wall_ms, self._rules)
            if self._topics.is_for_deleted(place[0], half.phy_offset):
                verdict = TransactionVerdict.GIVE_UP
            if verdict is TransactionVerdict.LATER:
                state.open[queue_offset] = later_ms
            else:
                due.append(_Due(queue_offset, half, verdict))
                size_bytes += len(half.body)
        return due

    def _store_again(self, state: Reconciliation, due: list[_Due]) -> None:
        """Store copies, then the mark of the originals."""
        stored, checks = list[int](), list[int]()
        for item in due:
            try:
                if item.verdict is TransactionVerdict.CHECK:
                    batch = self._appends.append([renewed(item.half, self._store_host)])
                    state.renew(item.queue_offset, batch.queue_offsets[0])
                    checks.append(batch.phy_offsets[0])
                else:
                    topic = self._topics.create_internal(CHECK_MAX_TOPIC, 1)
                    batch = self._appends.append([given_up(item.half, self._store_host)])
                    state.close(item.queue_offset)
                    self._tracer.event("transaction_given_up", topic=topic.name, queue_offset=item.queue_offset)
            except UsageError as error:
                # It stays and is tried again in the next round.
                self._tracer.event("half_message_not_renewed", queue_offset=item.queue_offset, reason=str(error))
                continue
            stored.append(item.queue_offset)
        if not stored:
            return
        made = mark(stored, self._clock.wall_ms(), self._store_host, state.waiting_from)
        end_offset = self._appends.append([made]).end_offset
        self._copies = _Copies(self, end_offset, checks)
        self._appends.appended(end_offset, self._copies)

    def finished(self, copies: _Copies, status: AckStatus) -> None:
        if self._copies is not copies:
            return
        if status is AckStatus.OK:
            copies.is_acked = True
            self._shell.wake_transactions()
        elif status is AckStatus.SERVICE_NOT_AVAILABLE:
            self.role_changed()
        else:
            # The copies are in the log of this epoch. They will be committed, or this mastership ends: no second copies
            # now.
            self._appends.appended(self._log.max_phy_offset, copies)

    def _are_copies_safe(self) -> bool:
        """True if no copies are pending; then check those that became safe."""
        copies = self._copies
        if copies is None:
            return True
        if not copies.is_acked or self._log.confirm_offset < copies.end_offset:
            return False
        self._copies = None
        for phy_offset in copies.checks:
            found = self._log.verified_record_at(phy_offset)
            if found is not None:
                self._ask(found.record)
        return True

    def _ask(self, half: Record) -> None:
        """Ask one connection of the producer group, in turn; without one the next round asks again. The request
        contains the message, so it goes only to a member of the group that may send to its topic."""
        properties = decode_properties(half.properties)
        group, place = properties.get(PROPERTY_PRODUCER_GROUP, ""), real_place(properties)
        members = self._clients.producer_group(group)
        if not members or place is None:
            return
        needs = Needs(topics=((place[0], Permission.PUB),))
        channels = [channel for channel, member in members.items() if not _refusal(member.principal, group, needs)]
        if not channels:
            self._withhold(group, place[0])
            return
        self._turn += 1
        ext = {
            "bname": self._broker_name,
            "commitLogOffset": str(half.phy_offset),
            "offsetMsgId": offset_message_id(half.store_host, half.phy_offset),
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(half.queue_offset),
        }
        if key := properties.get(PROPERTY_UNIQUE_KEY):
            ext |= {"msgId": key, "transactionId": key}
        command = Command(RequestCode.CHECK_TRANSACTION_STATE, ext, _for_producer(half, place), flag=FLAG_ONEWAY)
        channels[self._turn % len(channels)].send(command)

    def _withhold(self, group: str, topic: str) -> None:
        """Trace once for a group and a topic, while remembered."""
        if (group, topic) in self._withheld:
            return
        if len(self._withheld) >= MAX_WITHHELD_COUNT:
            self._withheld.clear()
        self._withheld.add((group, topic))
        self._tracer.event("transaction_check_withheld", producer_group=group, topic=topic)


def _refusal(principal: Principal, group: str, needs: Needs) -> str:
    """Reason why the peer may not get a message that needs `needs` to be sent; "" if it may."""
    return principal.producer_group_refusal(group) or principal.refusal(needs)


def _has_destination(half: Record) -> bool:
    """True if a record has the properties of every half message: no CRC covers properties."""
    return are_whole(half.properties) and real_place(decode_properties(half.properties)) is not None


def _for_producer(half: Record, place: tuple[str, int]) -> bytes:
    """Record with the producer's topic and queue."""
    message = half.as_new_message(*place, half.properties, half.store_host)
    topic, version = topic_field(place[0])
    return encode(message, topic, version, half.queue_offset, half.phy_offset, half.store_timestamp_ms)
