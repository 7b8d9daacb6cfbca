"""Waiting acknowledgements: the tokens that processors give to the replica machine. Data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqha.broker.requests.request import AdmittingState, Channel
from rmqha.ha.action import AckStatus, HandedOver
from rmqha.model.code import ResponseCode
from rmqha.model.offset import PhyOffset
from rmqha.store.appender import AppendedBatch
from rmqha.store.log.record import NewMessage
from rmqha.wire.command import FLAG_RESPONSE, Command
from rmqha.wire.frame import FrameParser

_CODES = {
    AckStatus.OK: (ResponseCode.SUCCESS, None),
    AckStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, "the message is written; its flush took too long"),
    AckStatus.FLUSH_SLAVE_TIMEOUT: (
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        "the message is written; its replicas took too long",
    ),
    AckStatus.SLAVE_NOT_AVAILABLE: (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        "the message is written; no slave is near enough to be waited for",
    ),
    AckStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "this broker is no longer the master; whether the message survives is not known",
    ),
}


class Waiting:
    """Base of waiting appends, which get their outcome. No ABC: the driver checks the type for each send."""

    __slots__ = ()

    def finish(self, status: AckStatus) -> None:
        raise NotImplementedError


class Waiter(Waiting):
    """Replies of one batch, all on one channel. They have SUCCESS already; another outcome rewrites them."""

    __slots__ = ("channel", "replies")

    def __init__(self, channel: Channel, replies: list[Command]) -> None:
        self.channel = channel
        self.replies = replies

    def finish(self, status: AckStatus) -> None:
        if status is not AckStatus.OK:
            code, remark = _CODES[status]
            for reply in self.replies:
                reply.code, reply.remark = code, remark
        send = self.channel.send
        for reply in self.replies:
            send(reply)


class Answer(Waiting):
    """Answer to one request, a frame with SUCCESS, b"" if oneway; another outcome makes an error of it."""

    __slots__ = ("_codec", "_frame", "_opaque", "channel")

    def __init__(self, channel: Channel, request: Command, frame: bytes) -> None:
        self.channel = channel
        self._opaque, self._codec = request.opaque, request.codec  # all of it may be large
        self._frame = frame

    def held(self) -> bytes:
        """Take note that the records count; returns the frame to send now."""
        return self._frame

    def finish(self, status: AckStatus) -> None:
        if status is AckStatus.OK:
            if frame := self.held():
                self.channel.send_frames(frame, 1)
        elif self._frame:
            code, remark = _CODES[status]
            reply = Command(code, flag=FLAG_RESPONSE, opaque=self._opaque, remark=remark, codec=self._codec)
            self.channel.send(reply)


class WaiterGroup(Waiting):
    """Several answers to records of one write, sent together for each channel."""

    __slots__ = ("_answers",)

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def finish(self, status: AckStatus) -> None:
        if status is not AckStatus.OK:
            for answer in self._answers:
                answer.finish(status)
            return
        found: dict[Channel, list[bytes]] = {}
        for answer in self._answers:
            if frame := answer.held():
                found.setdefault(answer.channel, []).append(frame)
        for channel, frames in found.items():
            channel.send_frames(b"".join(frames), len(frames))


class FramesWaiter(Waiting):
    """Answers to plain sends: for each channel its frames and their number. They have SUCCESS already; another outcome
    makes commands of them, as in `Waiter`."""

    __slots__ = ("_answers",)

    def __init__(self, answers: list[tuple[Channel, bytes, int]]) -> None:
        self._answers = answers

    def finish(self, status: AckStatus) -> None:
        for channel, frames, count in self._answers:
            if status is AckStatus.OK:
                channel.send_frames(frames, count)
            else:
                Waiter(channel, FrameParser(len(frames)).feed(frames)).finish(status)


class TopicWaiter(Waiting):
    """Waits of a batch whose first messages created their topic: acknowledged once the set has both
    (metadataSync=strict). It waits for both from the start, so a hand-over counts it until it is answered."""

    __slots__ = ("_fault", "_status", "_waiter")

    def __init__(self, waiter: Waiting, when_held: Callable[[Callable[[str], None]], None]) -> None:
        self._waiter = waiter
        self._status: AckStatus | None = None
        self._fault: str | None = None
        when_held(self._held)

    def finish(self, status: AckStatus) -> None:
        assert self._status is None, "the log's answer comes once"
        self._status = status
        if status is not AckStatus.OK:
            self._waiter.finish(status)
        elif self._fault is not None:
            self._end(self._fault)

    def _held(self, fault: str) -> None:
        self._fault = fault
        if self._status is AckStatus.OK:
            self._end(fault)

    def _end(self, fault: str) -> None:
        self._waiter.finish(AckStatus.FLUSH_SLAVE_TIMEOUT if fault else AckStatus.OK)


class HandOverWaiter:
    """Answer to one request to hand over (52012)."""

    __slots__ = ("_channel", "_request")

    def __init__(self, channel: Channel, request: Command) -> None:
        self._channel = channel
        self._request = request

    def finish(self, end: HandedOver) -> None:
        if self._request.is_oneway:
            return
        if end.refusal:
            self._channel.send(self._request.reply(ResponseCode.SYSTEM_ERROR, remark=end.refusal))
        else:
            self._channel.send(self._request.reply(ext={"maxOffset": str(end.max_offset)}))


class MessageAppender(AdmittingState, Protocol):
    """Port that appends a broker's own records and waits for their acknowledgement; `ReplicaDriver` is one."""

    def append(self, messages: list[NewMessage]) -> AppendedBatch: ...

    def appended(self, end_offset: PhyOffset, waiter: Waiting | None) -> None: ...


class GatheringAppender(MessageAppender, Protocol):
    """Appender that appends records of several requests together; `ReplicaDriver` is one."""

    def check(self, messages: Sequence[NewMessage]) -> None: ...

    def store_waiting(
        self, messages: list[NewMessage], stored: Callable[[PhyOffset], None], answer: Answer
    ) -> None: ...


class RecordGatherer(Protocol):
    """Port that gathers records of several requests; `ReplicaDriver` is one."""

    def gather(self) -> bool: ...

    def store_gathered(self) -> None: ...
