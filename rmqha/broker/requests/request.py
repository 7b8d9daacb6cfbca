"""Common parts of request processors: channels, types of handlers, fields with bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, KeysView, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from types import MappingProxyType
from typing import Protocol

from rmqha.model.code import SEE_FAQ, ResponseCode
from rmqha.model.error import RmqhaError, StoreError
from rmqha.model.identity import parse_address
from rmqha.model.message import DLQ_PREFIX, RETRY_PREFIX
from rmqha.model.offset import QueueOffset
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.port import Pause
from rmqha.wire.command import Command
from rmqha.wire.registration import MAX_TOPIC_COUNT

FORWARDED = "forwardedBy"
"""Field of a request that another broker forwards for its client (`rmqha.broker.replication.forward`)."""
UNWRITTEN = "unwritten"
"""Field of an answer to such a request: it was refused before any write, so it may be repeated."""
Steps = Iterator[Pause | None]
NO_ENDS: Mapping[str, Mapping[int, int]] = MappingProxyType({})


class Channel(Protocol):
    """Connection of a client, hashable by identity; `rmqha.host.net.remoting.Session` is one."""

    peer: str
    waited_ms: int
    """Time (ms) for which the present input has waited to be read."""

    def send(self, command: Command) -> None: ...

    def send_frames(self, frames: bytes, count: int) -> None:
        """Send `count` encoded answers, in this turn of the event loop unless others are queued before them."""
        ...

    def send_at_once(self, command: Command) -> None:
        """Send an answer without waiting for others of this turn."""
        ...

    def work(self, steps: Steps) -> None:
        """Run the steps of a request, with other connections' turns in between and nothing else of this connection
        before the end. After a step that yields a pause the next one follows the end of the pause."""
        ...

    def fail(self, error: Exception, commands: Sequence[Command]) -> None:
        """Close, trace and count after an unexpected exception in a request that was kept for later. Raises `error` if
        that does not suffice."""
        ...


Work = Generator[None, None, Command | None]
"""Costly request in steps of at most a millisecond; it returns the answer. The state may change between steps."""
PausingWork = Generator[Pause | None, None, Command | None]
"""Costly request whose steps may also yield a pause."""
Handler = Callable[[Channel, Command], Command | PausingWork | None]
"""Answers one request; None: by `channel.send`, perhaps later. Raises RequestError to refuse it."""


class QueueEnds(Protocol):
    """Port to the ends of queues; `Store` is one."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset]: ...

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset: ...


def is_beyond(log: QueueEnds, topic: str, queue_id: int, offset: int) -> bool:
    """True of an offset beyond the queue: it is from a tail that was lost with another master, and new messages get
    these offsets. Raises RequestError."""
    if offset <= log.queue_range(topic, queue_id)[1]:
        return False
    try:
        return offset > log.queue_end(topic, queue_id)
    except StoreError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None


def is_of_lost_tail(log: QueueEnds, known: int | None, topic: str, queue_id: int, offset: int) -> bool:
    """True of a commit of such an offset, if the group's offset `known` is within the queue: it would skip new
    messages. Raises RequestError."""
    return known is not None and is_beyond(log, topic, queue_id, offset) and not is_beyond(log, topic, queue_id, known)


class RequestError(RmqhaError):
    """Refusal of a request: the router answers with `code`, the text and the fields `ext`."""

    def __init__(self, code: ResponseCode, remark: str, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.ext = dict(ext or {})


def no_topic(name: str) -> RequestError:
    """Refusal of a read from an unknown topic."""
    return RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {SEE_FAQ}")


def no_group(name: str) -> RequestError:
    """Refusal of a read for an unknown group."""
    remark = f"subscription group [{name}] does not exist, {SEE_FAQ}"
    return RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)


def not_admitted(command: Command, code: ResponseCode, remark: str) -> Command:
    """Answer to a request that the group does not take now, with nothing written."""
    return command.reply(code, {UNWRITTEN: "true"} if FORWARDED in command.ext else {}, remark=remark)


def text(command: Command, name: str) -> str:
    """Required text field."""
    value = command.ext.get(name)
    if not value:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code} lacks the field {name}")
    return value


def number(command: Command, name: str, default: int | None = None) -> int:
    """Integer field, 64 bits signed; `default` if missing."""
    value = command.ext.get(name)
    if value is None or value == "":
        if default is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code} lacks the field {name}")
        return default
    try:
        found = int(value)
    except ValueError:
        found = 1 << 63
    if not -(1 << 63) <= found < 1 << 63:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code}: {name} is not a 64 bit integer")
    return found


def require_version(command: Command, version: int) -> None:
    """Raise RequestError for a request of rmqha that is not of this version."""
    if command.ext.get("version") != str(version):
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"request {command.code} has version {version} here")


def truth(command: Command, name: str) -> bool:
    return command.ext.get(name, "").lower() == "true"


class SendHolder(Protocol):
    """Holder of sends during or after a hand-over; a `BrokerShell` is one."""

    def is_holding(self, channel: Channel) -> bool: ...

    def hold(self, channel: Channel, commands: list[Command]) -> bool: ...


@lru_cache(maxsize=4096)
def record_host(address: str) -> tuple[bytes, int]:
    """Address bytes (4 or 16) and port of a numeric "host:port", as records hold them. Raises ValueError."""
    host, port = parse_address(address)
    return ip_address(host).packed, port


class MetadataReplication(Protocol):
    """Waits until the members of the SyncStateSet have a change; `MetadataLeader` is one. Each method calls `done` with
    "" or the reason of a failure, at once if there is nothing to wait for."""

    def wait(self, done: Callable[[str], None]) -> None: ...

    def wait_reset(self, done: Callable[[str], None]) -> None: ...

    def wait_commit(self, done: Callable[[str], None]) -> None: ...


def answer_when(wait: Callable[[Callable[[str], None]], None], channel: Channel, reply: Command) -> None:
    """Send `reply` after a change has been replicated; else an error saying that the outcome is unknown."""

    def done(fault: str) -> None:
        if fault:
            reply.code, reply.remark = ResponseCode.SYSTEM_ERROR, fault
        channel.send(reply)

    wait(done)


class ServingState(Protocol):
    """Port to the serving state; `ReplicaDriver` is one."""

    @property
    def is_serving(self) -> bool: ...


class AdmittingState(ServingState, Protocol):
    """A `ServingState` that also returns the admission of a message: code and sentence of a refusal, or SUCCESS."""

    def admission(self) -> tuple[ResponseCode, str]: ...


def require_admission(state: AdmittingState) -> None:
    """Raises RequestError if no message is taken now."""
    code, remark = state.admission()
    if code is not ResponseCode.SUCCESS:
        raise RequestError(code, remark)


class Shares:
    """Use of what all accounts share. One that is no admin has half of it at most, so that others find room."""

    def __init__(self, most: int) -> None:
        """`most`: for all of them together."""
        self.most = most
        self.used = 0
        self._used_by: Counter[str] = Counter()
        """By access key."""

    def most_of(self, principal: Principal) -> int:
        """The share of an account."""
        return (self.most + 1) // 2 if principal.is_restricted and not principal.is_admin else self.most

    def take(self, principal: Principal, amount: int = 1) -> bool:
        """Count the use by an account; False, and nothing is counted, where there is no room for it."""
        key = principal.access_key
        if self.used + amount > self.most or self._used_by[key] + amount > self.most_of(principal):
            return False
        self.used += amount
        self._used_by[key] += amount
        return True

    def give_back(self, access_key: str, amount: int = 1) -> None:
        """Undo `take` of that account's principal."""
        self.used -= amount
        self._used_by[access_key] -= amount
        if not self._used_by[access_key]:
            del self._used_by[access_key]


class Shared(Protocol):
    """Part of what all accounts share; `Shares` is one."""

    def take(self, principal: Principal, amount: int) -> bool: ...

    def give_back(self, access_key: str, amount: int) -> None: ...


Use = tuple[Shared, Principal, int]
"""An account's use of what all share."""


def take_all(uses: Sequence[Use]) -> bool:
    """Count several uses; False, and none is counted, where there is no room for all of them."""
    for place, (shares, principal, amount) in enumerate(uses):
        if not shares.take(principal, amount):
            give_back_all(uses[:place])
            return False
    return True


def give_back_all(uses: Iterable[Use]) -> None:
    for shares, principal, amount in uses:
        shares.give_back(principal.access_key, amount)


class Makers:
    """Accounts that have made entries of a table since this broker is its master. One that is no admin makes half of
    what the table takes at most, so that others find room."""

    def __init__(self, max_chars: int = 0) -> None:
        """`max_chars`: characters of names that the table takes; 0: any."""
        self.most = 0
        """Entries that the table takes."""
        self.max_chars = max_chars
        self._made_by: dict[str, str] = {}
        """Access key by name of an entry."""
        self._counts: Counter[str] = Counter()
        self._chars: Counter[str] = Counter()
        """Characters of the names of what each account has made."""

    def has_half(self, principal: Principal) -> bool:
        """True if the account can make no more."""
        has_half = self._has_half_of_count(principal) or self._has_half_of_chars(principal)
        return has_half and bool(principal.mark)

    def _has_half_of_count(self, principal: Principal) -> bool:
        return self._counts[principal.access_key] >= (self.most + 1) // 2

    def _has_half_of_chars(self, principal: Principal) -> bool:
        return 0 < self.max_chars <= 2 * self._chars[principal.access_key]

    def refusal(self, principal: Principal, what: str, key: str = "") -> str:
        """Reason why the account can make no more of `what`, which the configuration's `key` bounds, or ""."""
        if not self.has_half(principal):
            return ""
        account = f"account {principal.access_key} has made"
        if not self._has_half_of_count(principal):
            chars = f"half of the characters that this broker takes, {self.max_chars}"
            return f"{account} {what} whose names have {chars}: delete some"
        if key:
            return f"{account} half of the {what} that {key} allows, {self.most}: delete some or raise it"
        return f"{account} half of the {what} that this broker takes, {self.most}: delete some"

    def made(self, name: str, principal: Principal) -> None:
        """Take note of a new entry."""
        if principal.mark:
            self.removed(name)
            self._made_by[name] = principal.access_key
            self._counts[principal.access_key] += 1
            self._chars[principal.access_key] += len(name)

    def removed(self, name: str) -> None:
        """Take note that there is no such entry any more."""
        if (access_key := self._made_by.pop(name, None)) is not None:
            self._counts[access_key] -= 1
            self._chars[access_key] -= len(name)

    def clear(self) -> None:
        self._made_by.clear()
        self._counts.clear()
        self._chars.clear()


MAX_NAMES_CHARS = 12 * 1024 * 1024
"""Characters of the names of all topics, half of them for those of groups: compressed, so many names of any kind fit
into one frame of a registration."""
MAX_EXPECTED_COUNT = 100_000


_GROUP_PREFIXES = RETRY_PREFIX, DLQ_PREFIX


def is_group_topic(name: str) -> bool:
    """True of a topic of a group: one of its retries or dead letters."""
    return name.startswith(_GROUP_PREFIXES)


class TopicRoom:
    """Room of a table of topics. Name servers take MAX_TOPIC_COUNT of one broker. Those of retries and dead letters
    have what maxTopicCount leaves of that, half at least: they take no room from others, nor others from them."""

    def __init__(self) -> None:
        self.makers, self.group_makers = Makers(MAX_NAMES_CHARS // 2), Makers(MAX_NAMES_CHARS // 2)
        self.max_count = self.max_group_count = 0
        """Topics that there is room for: others, and those of groups."""
        self._counts: Counter[bool] = Counter()
        """Topics by `is_group_topic`."""
        self._chars: Counter[bool] = Counter()
        """Characters of their names, in the same way."""
        self._expected: dict[str, Principal] = {}
        """Accounts whose pops may make the retry topic of that name."""

    def configure(self, max_topic_count: int) -> None:
        self.max_count = self.makers.most = max_topic_count
        self.max_group_count = self.group_makers.most = MAX_TOPIC_COUNT - min(max_topic_count, MAX_TOPIC_COUNT // 2)

    @property
    def most(self) -> int:
        """Topics of both kinds that there is room for."""
        return self.max_count + self.max_group_count

    def recount(self, names: Collection[str]) -> None:
        """Count the topics of a table anew."""
        of_groups = [name for name in names if name.startswith(_GROUP_PREFIXES)]
        count, chars = len(of_groups), sum(map(len, of_groups))
        self._counts = Counter({True: count, False: len(names) - count})
        self._chars = Counter({True: chars, False: sum(map(len, names)) - chars})

    def added(self, name: str) -> None:
        """Count a topic that no account has made here."""
        of_group = is_group_topic(name)
        self._counts[of_group] += 1
        self._chars[of_group] += len(name)

    def refusal(self, name: str, principal: Principal) -> str:
        """Reason why the account can make no topic of that new name, or ""."""
        of_group = is_group_topic(name)
        makers, most = (self.group_makers, self.max_group_count) if of_group else (self.makers, self.max_count)
        what = "topics of retries and dead letters" if of_group else "topics"
        if self._counts[of_group] >= most:
            if of_group:
                return f"this broker has {most} {what}, as many as it takes: delete some"
            return f"this broker has as many {what} as maxTopicCount allows, {most}: delete some or raise it"
        if self._chars[of_group] + len(name) > MAX_NAMES_CHARS // 2:
            most = MAX_NAMES_CHARS // 2
            return f"the names of this broker's {what} have as many characters as it takes, {most}: delete some"
        return makers.refusal(principal, what, "" if of_group else "maxTopicCount")

    def expect(self, name: str, principal: Principal) -> None:
        """Take note that the retry topic of that name will be made for a pop of this account."""
        if principal.mark:
            if len(self._expected) >= MAX_EXPECTED_COUNT:
                self._expected.clear()
            self._expected[name] = principal

    def expected_for(self, name: str) -> Principal:
        """The account of the last such pop."""
        return self._expected.get(name, UNRESTRICTED)

    def made(self, name: str, principal: Principal) -> None:
        """Take note of a topic that an account has made."""
        self._expected.pop(name, None)
        (self.group_makers if is_group_topic(name) else self.makers).made(name, principal)
        self.added(name)

    def removed(self, name: str) -> None:
        of_group = is_group_topic(name)
        (self.group_makers if of_group else self.makers).removed(name)
        self._counts[of_group] -= 1
        self._chars[of_group] -= len(name)

    def clear(self) -> None:
        """Forget who made what."""
        self.makers.clear()
        self.group_makers.clear()
        self._expected.clear()


LOG_END = -1
"""Key, among the ends or first offsets of a topic's queues, of the end that the log had when the topic was deleted."""
MAX_DELETED_COUNT = 100_000
MAX_DELETED_BYTES = 8 * 1024 * 1024
"""Bound on the JSON of what is remembered of deleted topics: slaves get it in a frame with a part of the topics."""
_END_BYTES = 24
"""JSON of one queue's end, nearly always."""

Ends = Mapping[int, int]
"""Ends of a deleted topic's queues by queue id, and of the log (LOG_END)."""


class DeletedNames:
    """Names of deleted topics, with their `Ends`. Beyond MAX_DELETED_COUNT, or MAX_DELETED_BYTES, the oldest of those
    whose queues held nothing are forgotten, then the oldest of the others."""

    def __init__(self, names: Iterable[str] = (), ends: Mapping[str, Ends] = NO_ENDS) -> None:
        found = {name: ends.get(name, {}) for name in names}
        self.ends = {name: found[name] for name in sorted(found, key=lambda name: (found[name].get(LOG_END, 0), name))}
        """The oldest first."""
        self._empty = dict.fromkeys(name for name, of_name in self.ends.items() if not _has_queues(of_name))
        self._size_bytes = sum(map(_deleted_bytes, self.ends.keys(), self.ends.values()))
        self._changed: dict[str, Ends | None] = {}
        self._forget_the_oldest()

    @property
    def names(self) -> KeysView[str]:
        """All of them, the oldest first."""
        return self.ends.keys()

    def add(self, name: str, ends: Ends) -> None:
        self.discard(name)
        self.ends[name] = self._changed[name] = ends
        self._size_bytes += _deleted_bytes(name, ends)
        if not _has_queues(ends):
            self._empty[name] = None
        self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        while len(self.ends) > MAX_DELETED_COUNT or self._size_bytes > MAX_DELETED_BYTES:
            self.discard(next(iter(self._empty or self.ends)))

    def discard(self, name: str) -> Ends:
        """Forget a name, if it is known. Returns its ends."""
        ends = self.ends.pop(name, None)
        if ends is None:
            return {}
        self._empty.pop(name, None)
        self._size_bytes -= _deleted_bytes(name, ends)
        self._changed[name] = None
        return ends

    def clamp(self, log_end: int) -> list[str]:
        """Lower the ends of the log to `log_end`. Returns the names of those that were higher."""
        names = [name for name, ends in self.ends.items() if ends.get(LOG_END, 0) > log_end]
        for name in names:
            self.ends[name] = self._changed[name] = {**self.ends[name], LOG_END: log_end}
        return names

    def take_changed(self) -> dict[str, Ends | None]:
        """Names that were added, with their ends, or forgotten (None), since the last call."""
        changed, self._changed = self._changed, {}
        return changed


def _has_queues(ends: Ends) -> bool:
    """True if any queue of the topic has held messages."""
    return len(ends) > (LOG_END in ends)


def _deleted_bytes(name: str, ends: Ends) -> int:
    """JSON of a deleted topic: its name is told twice."""
    return 2 * (len(name) + len('"",')) + _END_BYTES * len(ends)


class _Turn:
    """Waiting request; `rmqha.port.Pause`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.resume: Callable[[], None] | None = None

    def when_over(self, resume: Callable[[], None]) -> None:
        self.resume = resume


class LargeRequestQueue:
    """Queue of requests that need much memory: one connection's request is processed, the others wait."""

    def __init__(self) -> None:
        self._working: Channel | None = None
        self._waiting: dict[Channel, _Turn] = {}
        """Waiting requests in the order of arrival."""

    def enter(self, channel: Channel, size_bytes: int) -> Iterator[Pause]:
        """Wait for the turn of a request, which has `size_bytes` meanwhile; `leave` must follow."""
        assert channel is not self._working and channel not in self._waiting, "a connection has one request at a time"
        if self._working is None:
            self._working = channel
            return
        turn = self._waiting[channel] = _Turn(size_bytes)
        yield turn
        assert self._working is channel, "it was called"

    def leave(self, channel: Channel) -> None:
        """End the turn after the request is done or its connection closed. No effect without a turn."""
        self._waiting.pop(channel, None)
        if self._working is not channel:
            return
        self._working = None
        if self._waiting:
            self._working = next(iter(self._waiting))
            resume = self._waiting.pop(self._working).resume
            assert resume is not None, "who stands in line has begun to wait"
            resume()
