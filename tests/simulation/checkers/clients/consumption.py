"""What a consumer group is given: every place of a queue in turn, in CP always with the same record; nothing is passed
over but what retention has removed; and in CP all that was acknowledged is read in the end. Reads are monotonic across
masters and slaves: in CP no master moves a consumer back but one who has a successor and does
not know it, in either mode a slave moves nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from zlib import crc32

from rmqha.model.message import PROPERTY_UNIQUE_KEY, find_property
from rmqha.wire.command import Command
from tests.simulation.checkers.logs.records import located
from tests.simulation.history import History, InvariantError, Send
from tests.simulation.processes.broker_process import BrokerProcess

_UNIQUE_KEY = PROPERTY_UNIQUE_KEY.encode()


class Consumption:
    """`has_led` says of an address if the broker there has ever been a master, `is_superseded` if another one has been
    since."""

    def __init__(self, has_led: Callable[[str], bool], is_superseded: Callable[[str], bool], *, cp: bool) -> None:
        self._has_led = has_led
        self._is_superseded = is_superseded
        self._cp = cp
        self._read: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(key, checksum) of the record that was given for a (queue, offset)."""
        self._committed: dict[int, int] = {}
        """The highest offset of each queue that the group has ever told a broker."""
        self._removed: list[tuple[int, int, int]] = []
        """(queue, from, to) that were passed over because no broker had them any more."""

    @property
    def read_count(self) -> int:
        return len(self._read)

    def committed(self, queue_id: int, offset: int) -> None:
        """The group is about to tell a broker that it has read up to there."""
        self._committed[queue_id] = max(offset, self._committed.get(queue_id, 0))

    def begins(self, queue_id: int, offset: int, address: str) -> None:
        """A broker says where the group is to go on."""
        told = self._committed.get(queue_id, 0)
        if offset > told:
            raise InvariantError(
                f"{address} lets consumers of queue {queue_id} begin at {offset}; they have committed {told} at most"
            )

    def read(self, queue_id: int, asked: int, reply: Command, address: str) -> int:
        """Records came. Returns where the queue goes on."""
        body, offset = memoryview(reply.body), asked
        while len(body):
            _, parts = located(body)
            size, found = parts[0], parts[3]
            if found != offset:
                raise InvariantError(
                    f"{address} gives the record of offset {found} for {offset} of queue {queue_id}, asked at {asked}"
                )
            key = find_property(bytes(body[parts[8] : size]), _UNIQUE_KEY) or b""
            record = key, crc32(body[:size])
            known = self._read.setdefault((queue_id, offset), record)
            if known != record:
                if self._cp:
                    raise InvariantError(
                        f"{address} gives {key!r} at offset {offset} of queue {queue_id}, where {known[0]!r} was read"
                    )
                self._read[queue_id, offset] = record
            offset += 1
            body = body[size:]
        following = int(reply.ext["nextBeginOffset"])
        if following != offset or offset == asked:
            raise InvariantError(
                f"{address} gives records of queue {queue_id} from {asked} to {offset} and says to go on at {following}"
            )
        return following

    def waited(self, queue_id: int, asked: int, reply: Command, address: str) -> int:
        """There was nothing to read. Returns where the queue goes on: at the same place, since nothing is filtered."""
        following = int(reply.ext["nextBeginOffset"])
        if following != asked:
            raise InvariantError(
                f"{address} has nothing at {asked} of queue {queue_id} and lets its consumer go on at {following}"
            )
        return following

    def moved(self, queue_id: int, asked: int, reply: Command, address: str) -> int:
        """There is no such offset. Returns where the queue goes on."""
        following, low = int(reply.ext["nextBeginOffset"]), int(reply.ext["minOffset"])
        if not self._has_led(address):
            raise InvariantError(
                f"{address} has never been a master, and moves a consumer of queue {queue_id} from {asked} to"
                f" {following}"
            )
        if following > asked:
            if following != low:
                raise InvariantError(
                    f"{address} moves the consumer of queue {queue_id} from {asked} on to {following};"
                    f" its first record is {low}"
                )
            self._removed.append((queue_id, asked, following))
        elif following < asked and self._cp and not self._is_superseded(address):
            raise InvariantError(
                f"{address} moves the consumer of queue {queue_id} back from {asked}, up to where it has read, to"
                f" {following}"
            )
        return following

    # --- at the end -------------------------------------------------------------------------------------------------
    def verify(self, history: History) -> None:
        """When all has been read."""
        if not self._cp:
            return
        passed_over = [send for send in history.acked if self._is_missing(send)]
        if passed_over:
            send = passed_over[0]
            raise InvariantError(
                f"{len(passed_over)} acknowledged messages were never given to the consumers; the first is {send.key},"
                f" at offset {send.queue_offset} of queue {send.queue_id}"
            )

    def _is_missing(self, send: Send) -> bool:
        queue_id, offset = send.queue_id, send.queue_offset
        found = self._read.get((queue_id, offset))
        if found is not None:
            return found[0] != send.key.encode()
        return not any(queue == queue_id and low <= offset < high for queue, low, high in self._removed)


def behind(offsets: Iterable[Mapping[int, int]], brokers: Sequence[BrokerProcess], topic: str) -> str:
    """Which queue of the serving master a consumer has not read to its end, or ""."""
    masters = [broker for broker in brokers if broker.alive and broker.replica.is_master]
    for master in masters:
        for at in offsets:
            for queue_id in sorted(master.store.queues().get(topic, ())):
                end = int(master.store.queue_range(topic, queue_id)[1])
                if at.get(queue_id, -1) < end:
                    return f"a consumer is at {at.get(queue_id)} of queue {queue_id}, which ends at {end}"
    return "" if masters else "there is no master"
