"""Search for the messages of a pop: in its queues and its group's retry topics. Data plane, no trio."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

from rmqha.broker.cold_reads import AwaitedRead, AwaitedReads
from rmqha.broker.pop.checkpoint import is_popped_of
from rmqha.broker.pop.order_table import OrderTable
from rmqha.broker.pop.positions import PopPositions, PopQueue
from rmqha.broker.pop.requests.polls import KINDS, NewRecord
from rmqha.broker.pop.requests.pop_request import PopRequest
from rmqha.broker.tables.offsets import OffsetTable
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError
from rmqha.model.message import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CRC32,
    PROPERTY_POP_CK,
    REVIVE_QUEUE_COUNT,
    decode_properties,
    encode_properties,
)
from rmqha.model.offset import PhyOffset, QueueOffset
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.port import Clock
from rmqha.store.cold_range import Bounds, ColdRange
from rmqha.store.integrity.damage import DamageTable
from rmqha.store.log.record import Located, decode, encode, topic_field
from rmqha.store.reader import PullResult, RecordPredicate
from rmqha.wire.state.receipt import ORDERED_QUEUE_ID, Receipt, kind_of, retry_topic

RETRY_SHARE = 5
"""One pop in so many reads the retry topic first."""
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
_Run: TypeAlias = "tuple[str, Sequence[int]]"
"""Queues of one topic: its name, their ids."""
PopPlace: TypeAlias = "tuple[PopQueue, int]"
"""A queue as one group pops from it, and the offset that it goes on at there."""


class PopLog(Protocol):
    """Port to the store that pops read; `Store` is one."""

    damage: DamageTable

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def queue_ends(self, topic: str, queue_ids: Iterable[int]) -> list[int]: ...

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]: ...

    def undispatched(self, start_offset: int) -> Iterator[tuple[memoryview, int, Located]]: ...

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        max_count: int,
        max_bytes: int,
        tags_codes: frozenset[int] | None,
        matches: RecordPredicate | None = None,
        *,
        from_memory: bool = False,
    ) -> PullResult: ...

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange: ...


class FoundPart(NamedTuple):
    """Messages of one queue."""

    place: PopQueue
    start_offset: int
    queue_offsets: tuple[int, ...]
    next_offset: int


@dataclass(slots=True)
class FoundMessages:
    """Messages of one pop."""

    pop_ms: int
    revive_queue_id: int
    parts: list[FoundPart] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    rest_count: int = 0
    counts: list[str] = field(default_factory=list)
    is_cold: bool = False
    """A queue gives nothing now: what comes next there is being read into memory."""
    trouble: str = ""
    """The reason why a queue gives nothing: what comes next there cannot be read."""

    def must_wait(self, read: AwaitedRead) -> bool:
        """True if a queue gives nothing now, which is noted."""
        self.is_cold = self.is_cold or read.part is not None
        self.trouble = read.trouble or self.trouble
        return read.part is not None or bool(read.trouble)


class PopFinder:
    """Search for the messages that a pop may give. `is_recovering` returns True while a new master has not recovered
    the groups' offsets: it gives no messages yet. `reads` knows queues whose next messages are not in memory, by the
    offset that a group goes on at."""

    def __init__(
        self,
        config: BrokerConfig,
        log: PopLog,
        topics: TopicTable,
        offsets: OffsetTable,
        positions: PopPositions,
        orders: OrderTable,
        clock: Clock,
        memory_bytes: int,
        is_recovering: Callable[[], bool],
        reads: AwaitedReads[PopPlace],
    ) -> None:
        self._log = log
        self._topics = topics
        self._offsets = offsets
        self._positions = positions
        self._orders = orders
        self._clock = clock
        self._memory_bytes = memory_bytes
        self.is_recovering = is_recovering
        self.reads = reads
        self._turn = 0
        self.blocked_until: dict[PopQueue, int] = {}
        """Times (ms) at which ordered queues give messages again."""
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._config = config
        self.max_bytes = config.max_transfer_bytes_on_message_in_memory

    # --- messages -----------------------------------------------------------------------------------------------------
    def nothing(self, pop: PopRequest, trouble: str = "") -> FoundMessages:
        """Result without messages, for a pop whose time is over."""
        return FoundMessages(self._clock.wall_ms(), self._revive_queue_id(pop), trouble=trouble)

    def _revive_queue_id(self, pop: PopRequest) -> int:
        return ORDERED_QUEUE_ID if pop.is_ordered else self._turn % REVIVE_QUEUE_COUNT

    def next_turn(self) -> None:
        """Begin the next search at another queue."""
        self._turn += 1

    def find(self, pop: PopRequest, principal: Principal = UNRESTRICTED) -> FoundMessages:
        """Messages of a pop of an account, which are not in the log as taken yet."""
        self._turn += 1
        found = FoundMessages(self._positions.pop_ms(self._clock.wall_ms()), self._revive_queue_id(pop))
        if self.is_recovering():
            return found
        if pop.matches is not None:
            pop.matches.begin()
        for topic, queue_ids in self.runs(pop):
            for step, queue_id in enumerate(queue_ids):
                if len(found.records) >= pop.max_count:
                    found.rest_count += self.rest_of(topic, pop.group, queue_ids[step:])
                    break
                self._search_queue(pop, PopQueue(topic, pop.group, queue_id), found, principal)
        return found

    def find_new(self, pop: PopRequest, records: Sequence[NewRecord]) -> FoundMessages:
        """Uncommitted records for a pop whose group has taken everything before them."""
        self._turn += 1
        found = FoundMessages(self._positions.pop_ms(self._clock.wall_ms()), self._revive_queue_id(pop))
        taken: dict[PopQueue, list[int]] = {}
        for topic, queue_id, offset, tags_code, data in records:
            if topic != pop.topic or queue_id >= pop.queue_count or 0 <= pop.queue_id != queue_id:
                continue
            place = PopQueue(topic, pop.group, queue_id)
            if place not in taken:
                self._take_reset(place)
            offsets = taken.setdefault(place, [])
            known = offsets[-1] + 1 if offsets else self._positions.next_offset(place)
            if known != offset or (pop.tags_codes is not None and tags_code not in pop.tags_codes):
                continue
            if len(found.records) < pop.max_count and found.size_bytes < self.max_bytes:
                offsets.append(offset)
                found.records.append(bytes(data))
                found.size_bytes += len(data)
            else:
                found.rest_count += 1
        for place, offsets in taken.items():
            if offsets:
                found.parts.append(FoundPart(place, offsets[0], tuple(offsets), offsets[-1] + 1))
        return found

    def rest_of(self, topic: str, group: str, queue_ids: Sequence[int]) -> int:
        """Messages of these queues that the group has not taken."""
        count, offsets = 0, self._positions.next_offsets(topic, group, queue_ids)
        for queue_id, high, offset in zip(queue_ids, self._log.queue_ends(topic, queue_ids), offsets, strict=True):
            if offset is None:
                offset = self._log.queue_range(topic, queue_id)[0]
            if offset < high:
                count += high - offset
        return count

    def runs(self, pop: PopRequest) -> list[_Run]:
        """Queues in the order of the search: by priority, or round-robin with the retry topic now and then. An answer
        cannot distinguish the two kinds of retry topics, so each has its turn."""
        count, turn = pop.queue_count, self._turn
        by_priority = not pop.is_ordered and turn % 100 < pop.priority_factor
        if pop.queue_id >= 0:
            own: _Run = pop.topic, (pop.queue_id,)
        elif by_priority:
            own = pop.topic, range(count - 1, -1, -1)
        else:
            first = turn % count if count else 0
            own = pop.topic, (*range(first, count), *range(first))
        retry = None if pop.is_ordered else self._retry_run(pop)
        if retry is None:
            return [own]
        return [own, retry] if by_priority or turn % RETRY_SHARE else [retry, own]

    def _retry_run(self, pop: PopRequest) -> _Run | None:
        for name in _retry_topics(pop.topic, pop.group)[:: 1 if self._turn % 2 else -1]:
            topic = self._topics.get(name)
            if topic is not None and self.rest_of(name, pop.group, queue_ids := range(topic.read_queue_count)):
                return name, queue_ids
        return None

    def _search_queue(self, pop: PopRequest, place: PopQueue, found: FoundMessages, principal: Principal) -> None:
        self._take_reset(place)
        if pop.is_ordered and (info := self._orders.get(place)) and info.blocks(pop.attempt_id, found.pop_ms):
            self.blocked_until[place] = info.free_ms()
            return
        offset = self._positions.next_offset(place)
        if offset is None:
            offset = self._first_offset(pop, place, found)
            if offset is None:
                return
            is_kept = self._offsets.commit(place.group, place.topic, place.queue_id, offset, principal)
            if not is_kept and self._offsets.has_half(principal):
                found.trouble = f"account {principal.access_key} has half of the offsets of groups that can be kept"
                return
        wanted = pop.max_count - len(found.records)
        result = self.pull(pop, place, offset, wanted, found)
        if result is None:
            return
        found.rest_count += max(0, result.max_offset - result.next_begin_offset)
        if result.records:
            self._take(pop, place, found, result)
        elif result.next_begin_offset > offset:
            self._positions.passed(place, result.next_begin_offset)

    def pull(
        self, pop: PopRequest, place: PopQueue, offset: int, count: int, found: FoundMessages, *, moves: bool = True
    ) -> PullResult | None:
        """Result of a pull; None if nothing can be read there now, and `found` has the reason if that is known.
        `moves`: a group that stands outside of the queue is moved."""
        read = self.reads.get((place, offset))
        if read is not None:
            if found.must_wait(read):
                return None  # others go on
            count = 1 if read.is_single else count
        bounds = count, max(1, self.max_bytes - found.size_bytes), pop.tags_codes, pop.matches
        from_memory = read is None or read.from_memory
        try:
            result = self._log.pull(place.topic, place.queue_id, QueueOffset(offset), *bounds, from_memory=from_memory)
            if moves and result.status is ResponseCode.PULL_OFFSET_MOVED:
                if self._positions.under_way_offset(place) > result.max_offset:
                    return None  # what it has taken last is not in the queue yet
                # the queue begins behind it, or ends before
                self._positions.forget(place)
                start = result.next_begin_offset
                self._offsets.commit(place.group, place.topic, place.queue_id, start)
                result = self._log.pull(place.topic, place.queue_id, start, *bounds, from_memory=True)
        except DamagedError as error:
            if not self._log.damage.is_awaited(error.phy_offset):
                found.trouble = str(error)
            return None  # others go on; it waits until a replica has given the record back
        if result.cold_range is not None:
            self._wait(place, int(result.next_begin_offset), result.cold_range, found)
            return None
        if read is not None:
            self.reads.done((place, offset))
        return result

    def _wait(self, place: PopQueue, offset: int, cold: ColdRange, found: FoundMessages) -> None:
        """AwaitedRead there again when this part has been read."""
        self.reads.want((place, offset), (place.topic, place.queue_id, cold))
        found.is_cold = True

    def _take_reset(self, place: PopQueue) -> None:
        offset = self._offsets.take_reset(place.group, place.topic, place.queue_id)
        if offset is not None:
            self._positions.forget(place)
            self._offsets.commit(place.group, place.topic, place.queue_id, offset)

    def _first_offset(self, pop: PopRequest, place: PopQueue, found: FoundMessages) -> int | None:
        """Start offset of a new group: that of the newest message if it asks for that and the queue is not entirely in
        memory, else the first. None while that is not known yet."""
        low, high = self._log.queue_range(place.topic, place.queue_id)
        if pop.from_min or kind_of(place.topic) in KINDS or low == high:
            return low
        if low == self._topics.begin_of(place.topic, place.queue_id):
            if not self._memory_bytes:
                return low
            read = self.reads.get((place, low))
            if read is not None and read.trouble:
                return max(low, high - 1)
            if read is not None and found.must_wait(read):
                return None
            bounds = self._log.memory_bounds(place.topic, place.queue_id, low, 1)
            if isinstance(bounds, ColdRange) and (read is None or read.from_memory):
                self._wait(place, low, bounds, found)
                return None
            if self._is_in_memory(place, low):
                return low
        return max(0, high - 1)

    def _is_in_memory(self, place: PopQueue, first_offset: int) -> bool:
        units = self._log.units(place.topic, place.queue_id, first_offset, 1)
        budget = self._memory_bytes * self._config.access_message_in_memory_max_ratio // 100
        return bool(units) and self._log.max_phy_offset - units[0][0] <= budget

    def _take(self, pop: PopRequest, place: PopQueue, found: FoundMessages, result: PullResult) -> None:
        records = result.records
        if place.topic != pop.topic:
            records = [record for record in records if is_for(pop.group, record)]
        if not records:
            self._positions.passed(place, int(result.next_begin_offset))
            return
        offsets = list[int]()
        for record in records:
            offsets += _QUEUE_OFFSET.unpack_from(record, _QUEUE_OFFSET_AT)
        start = offsets[0]
        found.parts.append(FoundPart(place, start, tuple(offsets), int(result.next_begin_offset)))
        for record in records:
            data = self._as_of(pop, place, found, start, record) if place.topic != pop.topic else bytes(record)
            found.records.append(data)
            found.size_bytes += len(data)

    def _as_of(self, pop: PopRequest, place: PopQueue, found: FoundMessages, start: int, data: memoryview) -> bytes:
        """Message of the retry topic for a client: with the topic of its subscription and a receipt."""
        record = decode(data)
        receipt = Receipt(
            start,
            found.pop_ms,
            pop.invisible_ms,
            found.revive_queue_id,
            kind_of(place.topic),
            self._config.broker_name,
            place.queue_id,
            record.queue_offset,
        )
        properties = decode_properties(record.properties)
        properties.pop(PROPERTY_CRC32, None)
        properties[PROPERTY_POP_CK] = receipt.encode()  # whatever an Apache broker has stored
        encoded = encode_properties(properties)
        if len(encoded) > MAX_PROPERTIES_BYTES:
            return bytes(data)
        message = record.as_new_message(pop.topic, record.queue_id, encoded, record.store_host)
        name, version = topic_field(pop.topic)
        return encode(message, name, version, record.queue_offset, record.phy_offset, record.store_timestamp_ms)


@lru_cache(maxsize=4096)
def _retry_topics(topic: str, group: str) -> tuple[str, ...]:
    return tuple(retry_topic(topic, group, kind) for kind in KINDS)


def is_for(group: str, data: memoryview) -> bool:
    """True if a record, in this topic, is for this group: `is_popped_of` by its properties."""
    return is_popped_of(group, decode(data).properties)
