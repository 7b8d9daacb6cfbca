"""Requests that wait for messages of a group: pops, and questions whether there are any. Data plane, no trio."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from rmqha.broker.requests.request import Channel
from rmqha.broker.requests.selectors import HeldFilters
from rmqha.port import Clock
from rmqha.wire.command import Command

MAX_POLL_COUNT = 100_000
MAX_POLL_COUNT_OF_LINE = 1024
"""RocketMQ's maxPopPollingSize and popPollingSize."""
MAX_POLL_BYTES = 64 * 1024 * 1024
"""Memory of all that wait, without their filters: some 50,000 of short names."""
MAX_POLL_BYTES_OF_CHANNEL = MAX_POLL_BYTES // 4
_POLL_BYTES, _POLL_BYTES_PER_CHAR = 1300, 4
"""Memory of one that waits (measured), and of each character of its names, at most."""


def poll_bytes(*names: str | None) -> int:
    """Memory of one that waits with these names, at most."""
    return _POLL_BYTES + _POLL_BYTES_PER_CHAR * sum(len(name) for name in names if name)


class Line(NamedTuple):
    """Polls that wait for the same; `queue_id` −1: for any queue."""

    topic: str
    group: str
    queue_id: int
    kind: int
    """Request code."""


class Poll:
    """`answer(True)` answers if there is something, and says whether it did; `answer(False)` in any case.
    `size_bytes`: memory that it takes; `filter_chars`: length of its filter's expression, which `Polls.filters`
    holds."""

    __slots__ = ("answer", "channel", "command", "deadline_ms", "filter_chars", "is_over", "line", "size_bytes")

    def __init__(
        self,
        channel: Channel,
        command: Command,
        line: Line,
        deadline_ms: int,
        answer: Callable[[bool], bool],
        size_bytes: int,
        filter_chars: int = 0,
    ) -> None:
        self.channel = channel
        self.command = command
        self.line = line
        self.deadline_ms = deadline_ms
        self.answer = answer
        self.size_bytes = size_bytes
        self.filter_chars = filter_chars
        self.is_over = False


class Polls:
    """`sources_of` names the topics whose growth a line waits for: its own, and where its messages come again."""

    def __init__(self, clock: Clock, sources_of: Callable[[Line], Iterable[str]]) -> None:
        self._clock = clock
        self._sources_of = sources_of
        self._lines: dict[Line, deque[Poll]] = {}
        self._by_source: dict[str, dict[Line, None]] = {}
        self._by_channel: dict[Channel, dict[Poll, None]] = {}
        self._bytes_of: Counter[Channel] = Counter()
        self._due: list[tuple[int, int, Poll]] = []
        self._number = 0
        self.filters = HeldFilters()
        self.count = 0
        self.size_bytes = 0
        self.is_refusing = False

    def size_of(self, line: Line) -> int:
        return len(self._lines.get(line, ()))

    def is_full(self, line: Line, channel: Channel, size_bytes: int) -> bool:
        """True if there is no room for one more of so many bytes: a connection has a quarter of all."""
        return (
            self.count >= MAX_POLL_COUNT
            or self.size_of(line) > MAX_POLL_COUNT_OF_LINE
            or self.size_bytes + size_bytes > MAX_POLL_BYTES
            or self._bytes_of[channel] + size_bytes > MAX_POLL_BYTES_OF_CHANNEL
        )

    def add(self, poll: Poll) -> None:
        line = self._lines.get(poll.line)
        if line is None:
            line = self._lines[poll.line] = deque()
            for topic in self._sources_of(poll.line):
                self._by_source.setdefault(topic, {})[poll.line] = None
        line.append(poll)
        self._by_channel.setdefault(poll.channel, {})[poll] = None
        self._bytes_of[poll.channel] += poll.size_bytes
        self.size_bytes += poll.size_bytes
        self._number += 1
        heappush(self._due, (poll.deadline_ms, self._number, poll))
        self.count += 1

    # --- wake ---------------------------------------------------------------------------------------------------------
    def grown(self, queues: Iterable[tuple[str, int]]) -> None:
        """These queues have grown."""
        lines: dict[Line, None] = {}
        for topic, queue_id in queues:
            for line in self._by_source.get(topic, ()):
                if line.queue_id in (-1, queue_id) or topic != line.topic:
                    lines[line] = None
        for line in lines:
            self._wake(line)

    def wake_group(self, topic: str, group: str) -> None:
        """There may be something for the group."""
        for line in [line for line in self._by_source.get(topic, ()) if line.group == group]:
            self._wake(line)

    def wake_all(self) -> None:
        for line in list(self._lines):
            self._wake(line)

    def _wake(self, name: Line) -> None:
        """Answer from the front until one finds nothing."""
        line = self._lines.get(name)
        while line:
            poll = line[0]
            if not self._answer(poll, wants_something=True):
                return
            self._remove(poll)

    def _answer(self, poll: Poll, *, wants_something: bool) -> bool:
        """One that cannot be answered is done with, and so is its session."""
        try:
            return poll.answer(wants_something)
        except Exception as error:  # noqa: BLE001  (told and counted, or raised again)
            poll.channel.fail(error, [poll.command])
            return True

    # --- end ----------------------------------------------------------------------------------------------------------
    def timeout(self) -> None:
        """Answer those whose time is up."""
        now_ms = self._clock.now_ms()
        while self._due and (self._due[0][2].is_over or self._due[0][0] <= now_ms):
            _, _, poll = heappop(self._due)
            if not poll.is_over:
                self._remove(poll)
                self._answer(poll, wants_something=False)

    def end_all(self) -> None:
        """Answer all: there is nothing to wait for here any more."""
        for poll in [poll for line in self._lines.values() for poll in line]:
            self._remove(poll)
            self._answer(poll, wants_something=False)

    def closed(self, channel: Channel) -> None:
        for poll in list(self._by_channel.get(channel, ())):
            self._remove(poll)

    def _remove(self, poll: Poll) -> None:
        if poll.is_over:
            return
        poll.is_over = True
        self.count -= 1
        self.size_bytes -= poll.size_bytes
        self.filters.drop(poll.filter_chars)
        line = self._lines[poll.line]
        if line[0] is poll:
            line.popleft()
        else:
            line.remove(poll)
        if not line:
            self._drop(poll.line)
        of_channel = self._by_channel[poll.channel]
        del of_channel[poll]
        self._bytes_of[poll.channel] -= poll.size_bytes
        if not of_channel:
            del self._by_channel[poll.channel], self._bytes_of[poll.channel]
        if len(self._due) > 2 * self.count + 1024:
            self._due = sorted((item for item in self._due if not item[2].is_over), key=lambda item: item[:2])

    def _drop(self, name: Line) -> None:
        del self._lines[name]
        for topic in self._sources_of(name):
            lines = self._by_source.get(topic)
            if lines is not None:
                lines.pop(name, None)
                if not lines:
                    del self._by_source[topic]
