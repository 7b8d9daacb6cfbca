"""Messages that groups pop. Of a group that pops in any order: a message that is not acknowledged comes again after its
invisible time and not before, one whose acknowledgement was answered does not, none is passed over; in CP no place of a
queue is given twice, unless an operator has set the group back behind it: then all from there on is given again. In
order: nothing is given before what stands in front of it is done, whichever master gives.

Times are those of the brokers' wall clocks and of the last records of their logs: what lies before each of them lies
before it at all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rmqha.broker.pop.positions import PopQueue
from rmqha.model.message import PROPERTY_UNIQUE_KEY, find_property
from rmqha.store.log.record import decode
from rmqha.wire.state.receipt import RETRY_V1, Receipt, retry_topic
from tests.broker.pop.world import Popped
from tests.simulation.checkers.logs.records import entries
from tests.simulation.clients.client_process import TOPIC
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess

GROUP, IN_ORDER = "poppers", "poppers-in-order"
_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()


class Place(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Delivery:
    """One message that a client was given."""

    key: str
    place: Place
    level: int
    """How often it had come before."""
    receipt: Receipt
    is_tried: bool = False
    """A client has asked to acknowledge it."""
    acked_wall_ms: int | None = None
    """The latest wall clock when that was answered."""
    is_unclear: bool = False
    """Nobody knows whether its time was changed."""

    @property
    def due_ms(self) -> int:
        return self.receipt.due_ms


class Copy(NamedTuple):
    queue_id: int
    queue_offset: int
    stored_ms: int


@dataclass(slots=True, eq=False)
class SetBack:
    """An order that a group goes on at an offset of a queue of TOPIC."""

    group: str
    queue_id: int
    offset: int
    given_count: int
    """Deliveries before it was asked for."""
    is_answered: bool = False
    """By SUCCESS; else it may be carried out or not, and late."""

    def is_of(self, place: Place) -> bool:
        """True if that place is given again by it."""
        return place.topic == TOPIC and place.queue_id == self.queue_id and place.queue_offset >= self.offset


class SetBacks:
    """Those of one group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.asked: list[SetBack] = []
        self._last: dict[str, int] = {}
        """By key, which delivery was its last one."""
        self._count = 0

    def begins(self, queue_id: int, offset: int) -> SetBack:
        """Somebody asks for it."""
        found = SetBack(self._group, queue_id, offset, self._count)
        self.asked.append(found)
        return found

    def refused(self, asked: SetBack) -> None:
        """Nothing of it was carried out."""
        self.asked.remove(asked)

    def given(self, key: str) -> None:
        self._count += 1
        self._last[key] = self._count

    def verify(self, broker: BrokerProcess) -> int:
        """All from the last one on that was answered was given since. One that was not answered may have been carried
        out behind it: what lies before that place may be left out. Returns how many messages that was true of."""
        count = 0
        for queue_id in broker.store.queues().get(TOPIC, ()):
            asked = [item for item in self.asked if item.queue_id == queue_id]
            last = next((item for item in reversed(asked) if item.is_answered), None)
            if last is None:
                continue
            start = max(item.offset for item in asked if item is last or not item.is_answered)
            for entry in entries(broker, TOPIC, queue_id):
                if entry.queue_offset < start:
                    continue
                if self._last[entry.key] <= last.given_count:
                    raise InvariantError(
                        f"{self._group} was set back to {last.offset} of queue {queue_id} and not given {entry.key} of"
                        f" {entry.queue_offset} again"
                    )
                count += 1
        return count


class Found(NamedTuple):
    given_count: int
    again_count: int
    """Of these, such as had come before."""
    acked_count: int
    set_back_count: int = 0
    """Messages that had to be given again since the group was set back."""


class Popping:
    """What the group GROUP was given. `walls` are the times of all brokers."""

    def __init__(self, walls: Callable[[], Iterable[int]], *, cp: bool) -> None:
        self._walls = walls
        self._cp = cp
        self.given: dict[str, list[Delivery]] = defaultdict(list)
        self._places: dict[Place, Delivery] = {}
        self.ends: dict[int, int] = {}
        """For each queue of TOPIC the offset behind the last message that was given."""
        self.set_backs = SetBacks(GROUP)
        self._times: Counter[Place] = Counter()

    def deliver(self, message: Popped, address: str) -> Delivery:
        record = message.record
        key = (find_property(record.properties, _UNIQUE_KEY) or b"").decode()
        if message.body.rstrip(b".") != key.encode():
            raise InvariantError(f"{address} gives {key} as {message.body[:80]!r}")
        place = Place(message.topic, record.queue_id, record.queue_offset)
        found = Delivery(key, place, record.reconsume_times, message.receipt)
        before = self._places.get(place)
        self._times[place] += 1
        if before is not None and self._cp and self._times[place] > 1 + self._set_back_count(place):
            raise InvariantError(
                f"{address} gives {key} of {place} at {found.receipt.pop_ms}; {before.key} was given from there at"
                f" {before.receipt.pop_ms}"
            )
        self._places[place] = found
        self.given[key].append(found)
        self.set_backs.given(key)
        if place.topic == TOPIC:
            self.ends[place.queue_id] = max(self.ends.get(place.queue_id, 0), place.queue_offset + 1)
        return found

    def _set_back_count(self, place: Place) -> int:
        return sum(item.is_of(place) for item in self.set_backs.asked)

    def acknowledged(self, delivery: Delivery) -> None:
        delivery.acked_wall_ms = max(self._walls())

    # --- at the end ---------------------------------------------------------------------------------------------------
    def verify(self, broker: BrokerProcess) -> Found:
        """When nothing is on its way any more, on a replica that holds all of the log."""
        copies = self._copies(broker)
        waiting = [
            entry.key for queue_id in broker.store.queues().get(TOPIC, ()) for entry in entries(broker, TOPIC, queue_id)
        ]
        for key in waiting:
            deliveries = self.given.get(key)
            if not deliveries:
                raise InvariantError(f"{key} is in the log and was never given to {GROUP}")
            if not deliveries[-1].is_tried:
                raise InvariantError(
                    f"{key} of {deliveries[-1].place} was given at {deliveries[-1].receipt.pop_ms}, not acknowledged,"
                    f" and never came again; copies: {dict(copies[key])}"
                )
            if self._cp:
                for delivery in deliveries:
                    self._check(delivery, copies[key])
        every = [delivery for deliveries in self.given.values() for delivery in deliveries]
        again, acked = (
            (delivery.level > 0 for delivery in every),
            (delivery.acked_wall_ms is not None for delivery in every),
        )
        return Found(len(every), sum(again), sum(acked), self.set_backs.verify(broker) if self._cp else 0)

    def _check(self, delivery: Delivery, copies: dict[int, list[Copy]]) -> None:
        if len(copies[delivery.level]) != 1 or self._set_back_count(delivery.place):
            return  # it was sent, stored again or given twice: the next may be the other one's
        following = copies[delivery.level + 1]
        if delivery.acked_wall_ms is not None:
            if delivery.acked_wall_ms < delivery.due_ms and following:
                raise InvariantError(
                    f"{delivery.key} of {delivery.place}, due at {delivery.due_ms}, was acknowledged by"
                    f" {delivery.acked_wall_ms} and came again at {following[0].stored_ms}"
                )
            if following and following[0].stored_ms > delivery.acked_wall_ms:
                raise InvariantError(
                    f"{delivery.key} of {delivery.place}, due at {delivery.due_ms}, was acknowledged late, by"
                    f" {delivery.acked_wall_ms}, and then stored again at {following[0].stored_ms}"
                )
        early = [copy for copy in following if copy.stored_ms < delivery.due_ms]
        if early and not delivery.is_unclear:
            raise InvariantError(
                f"{delivery.key} of {delivery.place} was stored again at {early[0].stored_ms}, before {delivery.due_ms}"
            )

    def _copies(self, broker: BrokerProcess) -> dict[str, dict[int, list[Copy]]]:
        """By key and how often it had come before, the message itself included, in the log's order."""
        found: dict[str, dict[int, list[Copy]]] = defaultdict(lambda: defaultdict(list))
        for topic in (TOPIC, retry_topic(TOPIC, GROUP)):
            for queue_id in broker.store.queues().get(topic, ()):
                for entry in entries(broker, topic, queue_id):
                    times = decode(entry.view).reconsume_times
                    found[entry.key][times].append(Copy(queue_id, entry.queue_offset, entry.stored_ms))
        return found


@dataclass(slots=True)
class _Queue:
    """What IN_ORDER has of one queue."""

    tried: set[int] = field(default_factory=set)
    """Offsets that a client has asked to acknowledge."""
    done_offset: int = 0
    """All before it were acknowledged, and answered by a master who had given them and nothing since."""
    open_until_ms: int = 0
    open_offsets: set[int] = field(default_factory=set)
    standing: tuple[str, int, int] | None = None
    """Host, life and epoch of who gave what is open."""


class PoppingInOrder:
    """What the group IN_ORDER was given. `standing` names a broker, its life and its epoch by its address;
    `is_superseded` says of an address if another master has been since the one there."""

    def __init__(
        self,
        standing: Callable[[str], tuple[str, int, int]],
        is_superseded: Callable[[str], bool],
        *,
        cp: bool,
    ) -> None:
        self._standing = standing
        self._is_superseded = is_superseded
        self._cp = cp
        self._queues: dict[int, _Queue] = defaultdict(_Queue)
        self._last: dict[str, bool] = {}
        """By key, whether it was tried to acknowledge since it was given last."""
        self.set_backs = SetBacks(IN_ORDER)
        self.ends: dict[int, int] = {}
        """For each queue the offset behind the last message that was given."""
        self.given_count = 0

    def deliver(self, messages: Sequence[Popped], address: str, *, is_repeated: bool) -> None:
        """One pop's, of one or more queues. `is_repeated`: under the attempt of one whose answer was lost."""
        by_queue: dict[int, list[Popped]] = defaultdict(list)
        for message in messages:
            by_queue[message.record.queue_id].append(message)
            self._last[_key_of(message)] = False
            self.set_backs.given(_key_of(message))
        self.given_count += len(messages)
        for queue_id, given in by_queue.items():
            self._deliver(queue_id, given, address, is_repeated=is_repeated)

    def _deliver(self, queue_id: int, given: list[Popped], address: str, *, is_repeated: bool) -> None:
        queue, offsets = self._queues[queue_id], [message.record.queue_offset for message in given]
        first = offsets[0]
        self.ends[queue_id] = max(self.ends.get(queue_id, 0), offsets[-1] + 1)
        is_set_back = any(item.queue_id == queue_id for item in self.set_backs.asked)
        if offsets != list(range(first, first + len(offsets))):
            raise InvariantError(f"{address} gives {offsets} of queue {queue_id} in order")
        passed = [offset for offset in range(self._skipped(queue_id), first) if offset not in queue.tried]
        if passed:
            raise InvariantError(
                f"{address} gives {first} of queue {queue_id} in order; {passed[0]} was never acknowledged"
            )
        if self._cp and first < queue.done_offset and not (is_set_back or self._is_superseded(address)):
            raise InvariantError(
                f"{address} gives {first} of queue {queue_id} in order, though all before {queue.done_offset} was"
                " acknowledged"
            )
        receipt, standing = given[0].receipt, self._standing(address)
        still_open = queue.open_offsets.intersection(range(first + len(offsets))) or queue.open_offsets
        may_come = is_repeated or is_set_back or receipt.pop_ms >= queue.open_until_ms
        if still_open and standing == queue.standing and not may_come:
            raise InvariantError(
                f"{address} gives {first} of queue {queue_id} in order at {receipt.pop_ms};"
                f" {min(still_open)} may come again at {queue.open_until_ms}"
            )
        queue.open_offsets, queue.open_until_ms, queue.standing = set(offsets), receipt.due_ms, standing

    def _skipped(self, queue_id: int) -> int:
        """Whoever set the group back may have set it forward: what lies before was perhaps never done."""
        return max((item.offset for item in self.set_backs.asked if item.queue_id == queue_id), default=0)

    def trying(self, message: Popped) -> None:
        self._queues[message.record.queue_id].tried.add(message.record.queue_offset)
        self._last[_key_of(message)] = True

    def acknowledged(self, message: Popped, *, is_clear: bool) -> None:
        """`is_clear`: nobody can have been given it since."""
        queue, offset = self._queues[message.record.queue_id], message.record.queue_offset
        queue.open_offsets.discard(offset)
        if is_clear and offset == queue.done_offset:
            queue.done_offset += 1

    def delayed(self, message: Popped, until_ms: int) -> None:
        """Its time was changed, or may have been."""
        queue = self._queues[message.record.queue_id]
        queue.open_until_ms = min(queue.open_until_ms, until_ms)

    def verify(self, broker: BrokerProcess) -> int:
        """When nothing is left to give. Returns how many were given."""
        for queue_id in broker.store.queues().get(TOPIC, ()):
            for entry in entries(broker, TOPIC, queue_id):
                if entry.key not in self._last:
                    raise InvariantError(f"{entry.key} is in the log and was never given to {IN_ORDER}")
                if not self._last[entry.key] and entry.queue_offset >= self._skipped(queue_id):
                    raise InvariantError(f"{entry.key} was given to {IN_ORDER}, not acknowledged, and never came again")
        if self._cp:
            self.set_backs.verify(broker)
        return self.given_count


def _key_of(message: Popped) -> str:
    return (find_property(message.record.properties, _UNIQUE_KEY) or b"").decode()


def left(brokers: Sequence[BrokerProcess]) -> str:
    """What the serving master has still to give, or to store again, or ""."""
    for broker in brokers:
        if not broker.alive or not broker.core.driver.is_serving:
            continue
        pops, store = broker.core.pops, broker.store
        for group in (GROUP, IN_ORDER):
            for topic in (TOPIC, retry_topic(TOPIC, group, RETRY_V1)):
                for queue_id in store.queues().get(topic, ()):
                    end = store.queue_range(topic, queue_id)[1]
                    offset = pops.positions.next_offset(PopQueue(topic, group, queue_id)) or 0
                    if offset < end:
                        return f"{broker.host} has given {group} {offset} of {end} messages of {topic}/{queue_id}"
        if pops.positions.first_timer_offset() is not None:
            return f"{broker.host} has not committed all that pops took"
        if not pops.recovery.is_done:
            return f"{broker.host} has not looked through its checkpoints"
        if not pops.revive.is_read or pops.revive.in_flight():
            return f"{broker.host} has messages in flight: {dict(pops.revive.in_flight())}"
    return ""
