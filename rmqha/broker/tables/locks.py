"""Locks on queues for ordered consumption: requests 41 and 42. Kept in memory on the master, lost with its mastership.

A lock belongs to a client id and ends 60 s after its last renewal, as in RocketMQ: a live client renews it every 20 s
and stops consuming 30 s after its last success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmqha.broker.requests.request import Channel, Handler, QueueEnds, RequestError, ServingState, Shares
from rmqha.broker.tables.topics import TopicTable
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.port import Clock
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

LOCK_LIFETIME_MS = 60_000
DROP_INTERVAL_MS = 1000
"""Shortest interval (ms) between scans of a full table for expired locks."""
MAX_NAME_LENGTH = 255
"""Bound on the names of group, client, topic and broker in a lock."""
MAX_LOCK_COUNT = 100_000
"""Bound on all locks together, of which one account has half."""


class QueueKey(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.queue_id

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> QueueKey:
        """Raises KeyError, TypeError or ValueError."""
        return cls(str(value["topic"]), str(value["brokerName"]), int(value["queueId"]))


class _Lock:
    __slots__ = ("access_key", "client_id", "taken_at_ms")

    def __init__(self, client_id: str, taken_at_ms: int, access_key: str) -> None:
        self.client_id = client_id
        self.taken_at_ms = taken_at_ms
        self.access_key = access_key
        """Account whose share it counts for."""


class LockTable:
    """Locks of clients that consume queues in order, by consumer group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[tuple[str, int], _Lock]] = {}
        """By topic and queue id: all queues here are this broker's, whatever name a client calls it by."""
        self._places = Shares(MAX_LOCK_COUNT)
        self._dropped_at_ms = -DROP_INTERVAL_MS

    def lock(
        self, group: str, queues: Iterable[QueueKey], client_id: str, principal: Principal = UNRESTRICTED
    ) -> list[QueueKey]:
        """Lock queues for a client of that account. Returns those of `queues` that it holds now, in the order given."""
        now_ms = self._clock.now_ms()
        held = []
        for queue in queues:
            locks = self._groups.get(group, {})
            lock = locks.get(queue.place)
            if lock is not None and lock.client_id != client_id:
                if not _expired(lock, now_ms):
                    continue
                del locks[queue.place]
                self._places.give_back(lock.access_key)
                lock = None
            if lock is not None:
                lock.taken_at_ms = now_ms
            elif not self._add(group, queue.place, client_id, now_ms, principal):
                continue
            held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> None:
        """Release the client's locks; other clients' stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue.place)
            if lock is not None and lock.client_id == client_id:
                del locks[queue.place]
                self._places.give_back(lock.access_key)
        if not locks:
            self._groups.pop(group, None)

    def is_ordered(self, group: str) -> bool:
        """True if a lock of the group is held: its consumers take messages in order."""
        now_ms = self._clock.now_ms()
        return any(not _expired(lock, now_ms) for lock in self._groups.get(group, {}).values())

    def clear(self) -> None:
        """Drop all locks after a change of the role: only the master's table counts."""
        self._groups.clear()
        self._places = Shares(MAX_LOCK_COUNT)

    def _add(self, group: str, place: tuple[str, int], client_id: str, now_ms: int, principal: Principal) -> bool:
        if not self._places.take(principal):
            if now_ms - self._dropped_at_ms < DROP_INTERVAL_MS:
                return False
            self._dropped_at_ms = now_ms
            self._drop_expired(now_ms)
            if not self._places.take(principal):
                return False
        self._groups.setdefault(group, {})[place] = _Lock(client_id, now_ms, principal.access_key)
        return True

    def _drop_expired(self, now_ms: int) -> None:
        kept: dict[str, dict[tuple[str, int], _Lock]] = {}
        for group, locks in self._groups.items():
            for place, lock in locks.items():
                if _expired(lock, now_ms):
                    self._places.give_back(lock.access_key)
                else:
                    kept.setdefault(group, {})[place] = lock
        self._groups = kept


def _expired(lock: _Lock, now_ms: int) -> bool:
    return now_ms - lock.taken_at_ms > LOCK_LIFETIME_MS


class LockRequests:
    """Queues that are not there are not locked: the names that clients can make up would fill the table."""

    def __init__(self, locks: LockTable, serving: ServingState, topics: TopicTable, log: QueueEnds) -> None:
        self._locks = locks
        self._serving = serving
        self._topics = topics
        self._log = log

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOCK_BATCH_MQ: self._lock, RequestCode.UNLOCK_BATCH_MQ: self._unlock}

    def _lock(self, channel: Channel, command: Command) -> Command:
        if not self._serving.is_serving:
            # A slave's lock would not exclude another client at the master.
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is not the master; it gives no locks")
        group, queues, client_id = _parse(command)
        held = self._locks.lock(group, filter(self._is_there, queues), client_id, command.principal)
        return command.reply(body=lenient_json.dumps({"lockOKMQSet": [queue.to_json() for queue in held]}))

    def _is_there(self, queue: QueueKey) -> bool:
        """True of a queue that may hold messages, also of one that an operator has taken away from its topic."""
        topic = self._topics.get(queue.topic)
        if topic is None or queue.queue_id < 0:
            return False
        count = max(topic.read_queue_count, topic.write_queue_count)
        return queue.queue_id < count or self._log.queue_range(*queue.place)[1] > 0

    def _unlock(self, channel: Channel, command: Command) -> Command:
        self._locks.unlock(*_parse(command))
        return command.reply()


def _parse(command: Command) -> tuple[str, list[QueueKey], str]:
    """(consumer group, queues, client id)."""
    body = lenient_json.loads(command.body, is_strict=True)
    try:
        group, client_id = str(body["consumerGroup"]), str(body["clientId"])
        queues = [QueueKey.from_json(item) for item in body.get("mqSet") or []]
        if any(len(name) > MAX_NAME_LENGTH for queue in queues for name in (queue.topic, queue.broker_name)):
            raise ValueError
        if max(len(group), len(client_id)) > MAX_NAME_LENGTH:
            raise ValueError
        return group, queues, client_id
    except (AttributeError, KeyError, TypeError, ValueError):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the body of request {command.code} must be consumerGroup, clientId and mqSet"
        ) from None
