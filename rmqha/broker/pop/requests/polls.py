"""Long polls for messages of a group: pops and notification requests. Data plane, no trio."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from rmqha.broker.replication.waiter import Answer
from rmqha.broker.requests.record_access import denied, was_refused
from rmqha.broker.requests.request import Channel, Shares, Use, give_back_all, number, take_all
from rmqha.broker.requests.selectors import HeldFilters
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import DamagedError
from rmqha.model.message import PROPERTY_TAGS, find_property, tags_code
from rmqha.model.principal import Principal
from rmqha.port import Clock
from rmqha.store.log.record import SYS_INNER_BATCH, SYS_TRANSACTION, Located
from rmqha.wire.auth.accesses import refusal_now
from rmqha.wire.command import Command
from rmqha.wire.frame import encode_frame
from rmqha.wire.state.receipt import RETRY_V1, RETRY_V2, retry_topic

KINDS = (RETRY_V1, RETRY_V2)
"""Kinds of retry topics."""
MAX_POLL_COUNT = 100_000
MAX_POLL_COUNT_PER_KEY = 1024
"""RocketMQ's maxPopPollingSize and popPollingSize."""
MAX_POLL_BYTES = 64 * 1024 * 1024
"""Bound on the memory of all polls, without their filters: some 50,000 of short names."""
MAX_POLL_BYTES_OF_CHANNEL = MAX_POLL_BYTES // 4
KEPT_FIELDS = ("topic", "consumerGroup")
"""Fields of a request that are kept while it waits: a header may have 256 KiB."""
_POLL_BYTES, _POLL_BYTES_PER_CHAR = 1300, 4
"""Memory of a poll (measured), and of each character of its names, at most."""
_TAGS = PROPERTY_TAGS.encode()


def wait_ms(command: Command, wall_ms: int) -> int:
    """Time (ms) until the client's time-out, which it counts from its own clock at the request. Raises RequestError."""
    poll_ms, born_ms = number(command, "pollTime"), number(command, "bornTime", 0)
    return poll_ms if born_ms == 0 else born_ms + poll_ms - wall_ms


def poll_bytes(*names: str | None) -> int:
    """Upper bound on the memory of a poll with these names."""
    return _POLL_BYTES + _POLL_BYTES_PER_CHAR * sum(len(name) for name in names if name)


class PollKey(NamedTuple):
    """Key of polls that wait for the same messages; `queue_id` −1: any queue."""

    topic: str
    group: str
    queue_id: int
    kind: int
    """Request code."""


class NewRecord(NamedTuple):
    """Record of the log that is not in its queue yet."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    data: memoryview


def new_records(found: Iterable[tuple[memoryview, int, Located]], topics: Container[str]) -> list[NewRecord]:
    """Records of these topics that become one queue entry each."""
    records = []
    with suppress(DamagedError):  # who dispatches it tells of it
        for view, at, parts in found:
            size, sys_flag, queue_id, queue_offset, _, _, topic_at, topic_size, more_at, more_size, _ = parts
            topic = str(view[topic_at : topic_at + topic_size], "utf-8", "replace")
            if topic in topics and not sys_flag & (SYS_TRANSACTION | SYS_INNER_BATCH):
                tags = find_property(bytes(view[more_at : more_at + more_size]), _TAGS)
                code = tags_code(tags.decode("utf-8", "replace")) if tags else 0
                records.append(NewRecord(topic, queue_id, queue_offset, code, view[at : at + size]))
    return records


@lru_cache(maxsize=1024)
def sources(key: PollKey) -> tuple[str, ...]:
    """Topics whose growth a poll waits for: its own and the retry topics."""
    return (key.topic, *(retry_topic(key.topic, key.group, kind) for kind in KINDS))


class Poll:
    """A long poll. `answer(True)` answers if there are messages, and returns True if so; `answer(False)` answers in any
    case. `size_bytes`: its memory; `filter_chars`: length of the filter expression in `Polls.filters`. `take` takes
    uncommitted records, to be answered after their commit, and returns True if it took some; None: the poll waits for
    committed records."""

    __slots__ = ("answer", "channel", "command", "deadline_ms", "filter_chars", "is_over", "key", "size_bytes", "take")

    def __init__(
        self,
        channel: Channel,
        command: Command,
        key: PollKey,
        deadline_ms: int,
        answer: Callable[[bool], bool],
        size_bytes: int,
        filter_chars: int = 0,
        take: Callable[[Sequence[NewRecord]], bool] | None = None,
    ) -> None:
        self.channel = channel
        self.command = command
        self.key = key
        self.deadline_ms = deadline_ms
        self.answer = answer
        self.size_bytes = size_bytes
        self.filter_chars = filter_chars
        self.take = take
        self.is_over = False


class PendingPop(Answer):
    """Client that waits until the checkpoint of its messages counts. If its right is gone by then they are not given,
    and come again."""

    __slots__ = ("_command",)

    def __init__(self, channel: Channel, command: Command, frame: bytes) -> None:
        super().__init__(channel, command, frame)
        self._command = command.stub(*KEPT_FIELDS) if command.principal.is_restricted else None

    def held(self) -> bytes:
        if self._command is None or not (reason := refusal_now(self._command)):
            return self._frame
        refused = denied(self._command, reason)
        return encode_frame(self._command.reply(refused.code, {}, remark=reason))


class Polls:
    """All polls. `sources_of` names the topics whose growth a poll waits for."""

    def __init__(self, config: BrokerConfig, clock: Clock, sources_of: Callable[[PollKey], Iterable[str]]) -> None:
        self._clock = clock
        self._sources_of = sources_of
        self._by_key: dict[PollKey, deque[Poll]] = {}
        self._by_source: dict[str, dict[PollKey, None]] = {}
        self._by_channel: dict[Channel, dict[Poll, None]] = {}
        self._bytes_of: Counter[Channel] = Counter()
        self._due: list[tuple[int, int, Poll]] = []
        self._number = 0
        self.filters = HeldFilters()
        self._places, self._bytes = Shares(MAX_POLL_COUNT), Shares(MAX_POLL_BYTES)
        self.is_refusing = False
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        self._max_wait_ms = config.long_polling_max_ms

    @property
    def count(self) -> int:
        return self._places.used

    @property
    def size_bytes(self) -> int:
        return self._bytes.used

    def size_of(self, key: PollKey) -> int:
        return len(self._by_key.get(key, ()))

    def is_full(self, key: PollKey, channel: Channel, size_bytes: int) -> bool:
        """True if one more poll of that size exceeds a bound of its key or connection, which has a quarter of all."""
        return (
            self.size_of(key) > MAX_POLL_COUNT_PER_KEY
            or self._bytes_of[channel] + size_bytes > MAX_POLL_BYTES_OF_CHANNEL
        )

    def hold(
        self,
        channel: Channel,
        command: Command,
        key: PollKey,
        wait_ms: int,
        answer: Callable[[bool], bool],
        attempt_id: str | None,
        filter_chars: int = 0,
        take: Callable[[Sequence[NewRecord]], bool] | None = None,
    ) -> bool:
        """Hold a request, as `Poll` describes; False if it must be answered now."""
        size_bytes = poll_bytes(key.topic, key.group, attempt_id)
        is_full = self.is_refusing or self.is_full(key, channel, size_bytes)
        if wait_ms <= 0 or is_full or not take_all(self._uses(command.principal, size_bytes, filter_chars)):
            return False
        until_ms = self._clock.now_ms() + min(wait_ms, self._max_wait_ms)
        self._add(Poll(channel, command, key, until_ms, answer, size_bytes, filter_chars, take))
        return True

    def _uses(self, principal: Principal, size_bytes: int, filter_chars: int) -> list[Use]:
        """Uses that a poll makes: of a place, and of memory for itself and its filter."""
        return [
            (self._places, principal, 1),
            (self._bytes, principal, size_bytes),
            (self.filters, principal, filter_chars),
        ]

    def _add(self, poll: Poll) -> None:
        polls = self._by_key.get(poll.key)
        if polls is None:
            polls = self._by_key[poll.key] = deque()
            for topic in self._sources_of(poll.key):
                self._by_source.setdefault(topic, {})[poll.key] = None
        polls.append(poll)
        self._by_channel.setdefault(poll.channel, {})[poll] = None
        self._bytes_of[poll.channel] += poll.size_bytes
        self._number += 1
        heappush(self._due, (poll.deadline_ms, self._number, poll))

    # --- wake ---------------------------------------------------------------------------------------------------------
    def grown(self, queues: Iterable[tuple[str, int]]) -> None:
        """Wake the polls of queues that have grown."""
        keys: dict[PollKey, None] = {}
        for topic, queue_id in queues:
            for key in self._by_source.get(topic, ()):
                if key.queue_id in (-1, queue_id) or topic != key.topic:
                    keys[key] = None
        for key in keys:
            self._wake(key)

    def wake_group(self, topic: str, group: str) -> None:
        """Wake the polls of a group and topic."""
        self.wake_groups(topic, (group,))

    def wake_groups(self, topic: str, groups: Container[str]) -> None:
        for key in [key for key in self._by_source.get(topic, ()) if key.group in groups]:
            self._wake(key)

    def wake_all(self) -> None:
        for key in list(self._by_key):
            self._wake(key)

    def takers(self, topics: Iterable[str]) -> list[PollKey]:
        """Keys whose first poll takes uncommitted records of these topics."""
        found = []
        for topic in topics:
            for key in self._by_source.get(topic, ()):
                if key.topic == topic and self._by_key[key][0].take is not None:
                    found.append(key)
        return found

    def take(self, key: PollKey, records: Sequence[NewRecord]) -> None:
        """Give uncommitted records to the first polls, until one takes none."""
        self._serve(key, lambda poll: poll.take is not None and poll.take(records))

    def _wake(self, key: PollKey) -> None:
        """Answer the first polls, until one finds nothing."""
        self._serve(key, lambda poll: poll.answer(True))

    def _serve(self, key: PollKey, serve: Callable[[Poll], bool]) -> None:
        polls = self._by_key.get(key)
        while polls:
            poll = polls[0]
            if not self._try(poll, serve):
                return
            self._remove(poll)

    @staticmethod
    def _try(poll: Poll, serve: Callable[[Poll], bool]) -> bool:
        """Serve a poll; after an unexpected exception the poll and its session are closed."""
        try:
            return serve(poll)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            poll.channel.fail(error, [poll.command])
            return True

    # --- end ----------------------------------------------------------------------------------------------------------
    def timeout(self) -> None:
        """Answer polls whose time is over."""
        now_ms = self._clock.now_ms()
        while self._due and (self._due[0][2].is_over or self._due[0][0] <= now_ms):
            _, _, poll = heappop(self._due)
            if not poll.is_over:
                self._end(poll)

    def end_all(self) -> None:
        """Answer all polls, for which no more messages come here."""
        for poll in [poll for polls in self._by_key.values() for poll in polls]:
            self._end(poll)

    def _end(self, poll: Poll) -> None:
        self._remove(poll)
        self._try(poll, lambda poll: was_refused(poll.channel, poll.command) or poll.answer(False))

    def closed(self, channel: Channel) -> None:
        for poll in list(self._by_channel.get(channel, ())):
            self._remove(poll)

    def _remove(self, poll: Poll) -> None:
        if poll.is_over:
            return
        poll.is_over = True
        give_back_all(self._uses(poll.command.principal, poll.size_bytes, poll.filter_chars))
        polls = self._by_key[poll.key]
        if polls[0] is poll:
            polls.popleft()
        else:
            polls.remove(poll)
        if not polls:
            self._drop(poll.key)
        of_channel = self._by_channel[poll.channel]
        del of_channel[poll]
        self._bytes_of[poll.channel] -= poll.size_bytes
        if not of_channel:
            del self._by_channel[poll.channel], self._bytes_of[poll.channel]
        if len(self._due) > 2 * self.count + 1024:
            self._due = sorted((item for item in self._due if not item[2].is_over), key=lambda item: item[:2])

    def _drop(self, key: PollKey) -> None:
        del self._by_key[key]
        for topic in self._sources_of(key):
            keys = self._by_source.get(topic)
            if keys is not None:
                keys.pop(key, None)
                if not keys:
                    del self._by_source[topic]
