"""Router of a broker's requests: each code to its handler, the sends of one socket read together. No trio."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Protocol, cast

from rmqha.broker.replication.append_throttle import NOMINAL_BYTES, AppendThrottle
from rmqha.broker.replication.waiter import RecordGatherer
from rmqha.broker.requests.consumer_requests import ConsumerRequests
from rmqha.broker.requests.pull import PullProcessor
from rmqha.broker.requests.query_requests import QueryRequests
from rmqha.broker.requests.record_access import was_refused
from rmqha.broker.requests.request import (
    Channel,
    Handler,
    PausingWork,
    RequestError,
    SendHolder,
    Steps,
    not_admitted,
)
from rmqha.broker.requests.retry import SendBackProcessor
from rmqha.broker.requests.send import SendProcessor
from rmqha.broker.services.replies import ReplyProcessor
from rmqha.broker.services.transaction_service import TransactionService
from rmqha.broker.timers.recall import RecallProcessor
from rmqha.ha.log_writes import WAITS_FOR_DISK
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import DamagedError, RemoteProtocolError
from rmqha.wire.body_bound import body_refusal
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
"""Requests that append a record, most of them a copy of an earlier one."""
_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_HELD = _SENDS | _APPENDS - _REPLIES - {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RESUME_CHECK_HALF_MESSAGE}
"""Requests that are held until the end of a switch."""

_BESIDE_THE_LOG = frozenset(
    {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.RMQHA_HAND_OVER,
        RequestCode.RMQHA_GET_REPLICA_STATE,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    }
)
"""Requests that are answered while the log is being changed."""
_BESIDE_THE_QUEUES = _BESIDE_THE_LOG | _APPENDS | {RequestCode.UPDATE_CONSUMER_OFFSET}
"""Requests that read no queue."""

_POPS = frozenset({RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE})

Later = Callable[[Channel, Command], None]
"""Handler that answers a request itself, now or later; raises RequestError to refuse it."""


class Handlers(Protocol):
    """Handlers of requests that are answered at once."""

    def handlers(self) -> dict[int, Handler]: ...


class PopHandlers(Protocol):
    """Handlers of pops; `PopServices` is one."""

    @property
    def later(self) -> Mapping[int, Later]: ...

    @property
    def poll_count(self) -> int: ...

    def closed(self, channel: Channel) -> None: ...


class BrokerProcessor:
    """Dispatch of a broker's requests to their processors. `parts` answer requests without a processor of their own;
    they include `consumers` and `queries`, which also get closed connections."""

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
        throttle: AppendThrottle,
        holder: SendHolder,
        is_log_free: Callable[[], bool],
        catch_up: Callable[[], None],
        gatherer: RecordGatherer,
    ) -> None:
        """Unless `is_log_free` only requests that never read the log are answered, and sends are held by the `holder`
        if possible. `catch_up` is called before a read of the queues, so that every message that a peer knows of is in
        its queue."""
        self._is_log_free, self._catch_up = is_log_free, catch_up
        self._hold = holder.hold
        self._gatherer = gatherer
        self._throttle = throttle
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
        """False if `take` would now leave everything to `received`."""
        return self._is_log_free() and not self._throttle.is_full

    def take(self, reads: Sequence[tuple[Channel, bytes]], max_count: int) -> list[tuple[int, int]]:
        """Answer the plain sends at the front of each channel's input, at most `max_count` of each. Returns for each
        the index after them and their number. Raises as `received`."""
        if not self._is_log_free():
            return [(0, 0)] * len(reads)
        taken = self._send.take(reads, max_count)
        self._wake_polls()
        return taken

    def received(self, channel: Channel, commands: list[Command]) -> None:
        """Answer `commands` by `channel.send`, now or later. Raises StoreError and OSError if the disk is unusable."""
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
        """Give waiting pops the records of this turn without the delay of the dispatch task."""
        if self._pops.poll_count:
            self._catch_up()

    def _pops_received(self, channel: Channel, commands: list[Command], codes: set[int]) -> None:
        """Answer pops and acknowledgements of one read together: none adds to a queue that another reads, or begins a
        change of the log, and one append and one wait serve all of them."""
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
        """Hold requests while a switch writes its epoch: a refused client would use up its retries at once."""
        if command.code in _HELD and self._hold(channel, [command]):
            return
        if not command.is_oneway:
            channel.send(not_admitted(command, ResponseCode.SERVICE_NOT_AVAILABLE, WAITS_FOR_DISK))

    def _one(self, channel: Channel, command: Command) -> None:
        reply: Command | PausingWork | None
        try:
            if fault := body_refusal(command):
                raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
            later = self._later.get(command.code)
            if later is not None:
                if command.code in _APPENDS and not self._throttle.takes(channel, NOMINAL_BYTES):
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
        """Handle a request when the throttle permits; it may append a record of any size."""
        turn = self._throttle.wait(channel, NOMINAL_BYTES)
        yield turn
        if not self._is_log_free():
            self._put_off(channel, command)
            self._throttle.took(turn)
            return
        try:
            if not was_refused(channel, command):
                later(channel, command)
        except (RequestError, RemoteProtocolError, DamagedError) as error:
            if not command.is_oneway:
                channel.send(_refused(command, error))
        self._throttle.took(turn)

    def _in_steps(self, channel: Channel, command: Command, work: PausingWork) -> Steps:
        """Run all steps, unless a thread begins to change the log that they read, or the account loses its right."""
        allowed = _while_allowed(channel, command, work)
        try:
            reply = yield from allowed if command.code in _BESIDE_THE_LOG else self._while_log_free(allowed)
        except (RequestError, RemoteProtocolError, DamagedError) as error:
            reply = _refused(command, error)
        if reply is not None and not command.is_oneway:
            channel.send(reply)

    def _while_log_free(self, work: PausingWork) -> PausingWork:
        """Run the steps. Raises RequestError between two of them if the log is being changed; earlier steps keep their
        effect."""
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
        self._throttle.remove(channel)
        self._pull.closed(channel)
        self._pops.closed(channel)
        self._consumers.closed(channel)
        self._queries.closed(channel)


def _while_allowed(channel: Channel, command: Command, work: PausingWork) -> PausingWork:
    """Run the steps. If the account has changed between two of them and lost its right, that is answered; earlier steps
    keep their effect."""
    principal = command.principal
    known = principal.account
    try:
        while True:
            try:
                pause = next(work)
            except StopIteration as end:
                return cast("Command | None", end.value)
            yield pause
            if principal.account is not known:
                known = principal.account
                if was_refused(channel, command):
                    return None
    finally:
        work.close()


def _refused(command: Command, error: RequestError | RemoteProtocolError | DamagedError) -> Command:
    if isinstance(error, RequestError):
        return command.reply(error.code, error.ext, remark=str(error))
    return command.reply(ResponseCode.SYSTEM_ERROR, {}, remark=str(error))
