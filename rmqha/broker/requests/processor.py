"""A broker's requests: each code to its handler, the sends of one socket read together. No trio."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Protocol, cast

from rmqha.broker.replication.tail_room import NOMINAL_BYTES, TailRoom
from rmqha.broker.replication.waiter import RecordGatherer
from rmqha.broker.requests.consumer_requests import ConsumerRequests
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.query_requests import QueryRequests
from rmqha.broker.requests.request import Channel, Handler, PausingWork, RequestError, Steps, not_admitted
from rmqha.broker.requests.retry import SendBackProcessor
from rmqha.broker.requests.send import SendHolder, SendProcessor
from rmqha.broker.services.replies import ReplyProcessor
from rmqha.broker.services.transaction_service import TransactionService
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import DamagedError, RemoteProtocolError
from rmqha.wire.body_bound import body_fault
from rmqha.wire.command import Command

_REPLIES = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
_APPENDS = _REPLIES | frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RECALL_MESSAGE,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
"""Requests that append a record, most of them of one that was sent before."""
_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_HELD = _SENDS | _APPENDS - _REPLIES - {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RESUME_CHECK_HALF_MESSAGE}
"""Requests that wait for the end of a switch."""

_BESIDE_THE_LOG = frozenset(
    {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.RMQHA_HAND_OVER,
        RequestCode.RMQHA_GET_REPLICA_STATE,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    }
)
"""Answered while the log is being changed."""
_BESIDE_THE_QUEUES = _BESIDE_THE_LOG | _APPENDS | {RequestCode.UPDATE_CONSUMER_OFFSET}
"""Answered without a look at any queue."""

_POPS = frozenset({RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE})

Later = Callable[[Channel, Command], None]
"""Takes one request and answers it by itself, now or later; raises RequestError to refuse it."""


class Handlers(Protocol):
    """A part that answers requests at once."""

    def handlers(self) -> dict[int, Handler]: ...


class PopHandlers(Protocol):
    """The part that answers pops; `PopServices` is one."""

    @property
    def later(self) -> Mapping[int, Later]: ...

    @property
    def poll_count(self) -> int: ...

    def closed(self, channel: Channel) -> None: ...


class BrokerProcessor:
    """`parts` answer the requests that no processor of its own takes: `consumers` and `queries` too, which hear of
    connections that close."""

    def __init__(
        self,
        send: SendProcessor,
        pull: PullProcessor,
        send_back: SendBackProcessor,
        transactions: TransactionService,
        recalls: RecallProcessor,
        replies: ReplyProcessor,
        pops: PopHandlers,
        consumers: ConsumerRequests,
        queries: QueryRequests,
        parts: Iterable[Handlers],
        room: TailRoom,
        holder: SendHolder,
        is_log_free: Callable[[], bool],
        catch_up: Callable[[], None],
        gatherer: RecordGatherer,
    ) -> None:
        """While not `is_log_free` only what never looks at the log is answered, and sends wait with the `holder` if it
        takes them. `catch_up` comes before a look at the queues: who was told of a message finds it there."""
        self._is_log_free, self._catch_up = is_log_free, catch_up
        self._hold = holder.hold
        self._gatherer = gatherer
        self._room = room
        self._send = send
        self._pull = pull
        self._consumers, self._queries = consumers, queries
        self._pops = pops
        self._later: dict[int, Later] = {
            RequestCode.PULL_MESSAGE: pull.process,
            RequestCode.LITE_PULL_MESSAGE: pull.process,
            RequestCode.CONSUMER_SEND_MSG_BACK: send_back.process,
            RequestCode.END_TRANSACTION: transactions.process,
            RequestCode.RECALL_MESSAGE: recalls.process,
            RequestCode.SEND_REPLY_MESSAGE: replies.process,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.process,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: transactions.resume,
            **pops.later,
        }
        self._handlers = {code: handler for part in parts for code, handler in part.handlers().items()}

    @property
    def codes(self) -> frozenset[int]:
        """Request codes that are served."""
        return _SENDS | self._later.keys() | self._handlers.keys()

    @property
    def takes_any(self) -> bool:
        """False: `take` would leave all to `received` now."""
        return self._is_log_free() and not self._room.is_full

    def take(self, reads: Sequence[tuple[Channel, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Answer the plain sends at the front of what each channel has sent, `max_count` of each at most: for each the
        index behind them, and their number. Raises as `received`."""
        if not self._is_log_free():
            return [(0, 0)] * len(reads)
        taken = self._send.take(reads, max_count)
        self._wake_polls()
        return taken

    def received(self, channel: Channel, commands: list[Command]) -> None:
        """Answer `commands` by `channel.send`, now or later. Raises StoreError and OSError: the disk is unusable."""
        sends: list[Command] = []
        codes = {command.code for command in commands}
        if codes and codes <= _POPS:
            self._pops_received(channel, commands, codes)
            return
        for command in commands:
            if command.code not in _BESIDE_THE_LOG and not self._is_log_free():
                self._put_off(channel, command)
                continue
            if command.code in _SENDS:
                sends.append(command)
                continue
            if sends:
                self._send.process(channel, sends)
                sends = []
            if command.code not in _BESIDE_THE_QUEUES:
                self._catch_up()
            self._one(channel, command)
        if sends:
            self._send.process(channel, sends)
            self._wake_polls()

    def _wake_polls(self) -> None:
        """A pop that waits has what was sent in this turn: it does not wait for the task that dispatches."""
        if self._pops.poll_count:
            self._catch_up()

    def _pops_received(self, channel: Channel, commands: list[Command], codes: set[int]) -> None:
        """Pops and acknowledgements of one read: none puts anything into a queue that another looks at, or begins a
        change of the log, and what they store is appended and waited for together."""
        if RequestCode.POP_MESSAGE in codes:
            self._catch_up()
        is_gathering = self._gatherer.gather()
        try:
            for command in commands:
                if is_gathering or self._is_log_free():
                    self._one(channel, command)
                else:
                    self._put_off(channel, command)
        finally:
            if is_gathering:
                self._gatherer.store_gathered()

    def _put_off(self, channel: Channel, command: Command) -> None:
        """A switch writes its epoch: a client that is refused for that uses up its tries at once."""
        if command.code in _HELD and self._hold(channel, [command]):
            return
        if not command.is_oneway:
            channel.send(not_admitted(command, ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK))

    def _one(self, channel: Channel, command: Command) -> None:
        reply: Command | PausingWork | None
        try:
            if fault := body_fault(command):
                raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
            later = self._later.get(command.code)
            if later is not None:
                if command.code in _APPENDS and not self._room.takes(channel, NOMINAL_BYTES):
                    channel.work(self._in_turn(channel, command, later))
                else:
                    later(channel, command)
                return
            handler = self._handlers.get(command.code)
            if handler is None:
                code, remark = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
                reply = command.reply(code, remark=remark)
            else:
                reply = handler(channel, command)
        except (RequestError, RemoteProtocolError, DamagedError) as error:
            reply = _refused(command, error)
        if isinstance(reply, Generator):
            channel.work(self._in_steps(channel, command, reply))
        elif reply is not None and not command.is_oneway:
            channel.send(reply)

    def _in_turn(self, channel: Channel, command: Command, later: Later) -> Steps:
        """Once the log's tail has room; it may append a record as large as any."""
        turn = self._room.wait(channel, NOMINAL_BYTES)
        yield turn
        if not self._is_log_free():
            self._put_off(channel, command)
            self._room.took(turn)
            return
        try:
            later(channel, command)
        except (RequestError, RemoteProtocolError, DamagedError) as error:
            if not command.is_oneway:
                channel.send(_refused(command, error))
        self._room.took(turn)

    def _in_steps(self, channel: Channel, command: Command, work: PausingWork) -> Steps:
        """All steps, as long as what it looks at is not being changed by a thread."""
        try:
            reply = yield from work if command.code in _BESIDE_THE_LOG else self._while_log_free(work)
        except (RequestError, RemoteProtocolError, DamagedError) as error:
            reply = _refused(command, error)
        if reply is not None and not command.is_oneway:
            channel.send(reply)

    def _while_log_free(self, work: PausingWork) -> PausingWork:
        """Raises RequestError between two steps if the log is being changed; what of `work` is made then stays made."""
        try:
            while self._is_log_free():
                try:
                    pause = next(work)
                except StopIteration as end:
                    return cast("Command | None", end.value)
                yield pause
        finally:
            work.close()
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK)

    def closed(self, channel: Channel) -> None:
        self._room.left(channel)
        self._pull.closed(channel)
        self._pops.closed(channel)
        self._consumers.closed(channel)
        self._queries.closed(channel)


def _refused(command: Command, error: RequestError | RemoteProtocolError | DamagedError) -> Command:
    if isinstance(error, RequestError):
        return command.reply(error.code, error.ext, remark=str(error))
    return command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=str(error))
