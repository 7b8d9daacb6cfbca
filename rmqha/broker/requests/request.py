"""Common parts of request processors: channels, types of handlers, fields with bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol

from rmqha.model.code import SEE_FAQ, ResponseCode
from rmqha.model.error import RmqhaError, StoreError
from rmqha.model.identity import parse_address
from rmqha.model.offset import QueueOffset
from rmqha.model.principal import Principal
from rmqha.port import Pause
from rmqha.wire.command import Command

FORWARDED = "forwardedBy"
"""Field of a request that another broker forwards for its client (`rmqha.broker.replication.forward`)."""
UNWRITTEN = "unwritten"
"""Field of an answer to such a request: it was refused before any write, so it may be repeated."""
Steps = Iterator[Pause | None]


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
