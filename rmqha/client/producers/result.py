"""Results of sends. Plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from rmqha.client.answers import number
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.route import MessageQueue
from rmqha.model.code import ResponseCode
from rmqha.model.error import RmqhaError
from rmqha.wire.command import Command


class SendStatus(IntEnum):
    """Outcome of a send, as in the Java client. Only SEND_OK keeps the group's promise; the others are stored, but
    perhaps not copied."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


STATUS_OF_CODE = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
NOTHING_WRITTEN = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST))
"""Answers of a broker that has not stored the message."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """Result of a send. `msg_id` is the UNIQ_KEY, `offset_msg_id` the broker's id (several joined by commas for a
    batch). `tries` counts requests; `copies_possible` counts earlier requests whose message may have been stored
    too."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    tries: int
    copies_possible: int
    recall_handle: str = ""
    """Handle by which `Producer.recall` takes back a message that waits for its time; "" of any other message."""

    @property
    def duplicate_possible(self) -> bool:
        """True if the log may hold the message more than once."""
        return self.copies_possible > 0


def result_of(
    answer: Command,
    status: SendStatus,
    unique_key: str,
    queue: MessageQueue,
    address: str,
    *,
    tries: int,
    copies_possible: int,
) -> SendResult:
    """The result of a send to `queue`, by the answer of the broker at `address`. Raises RemoteProtocolError."""
    ext = answer.ext
    return SendResult(
        status,
        unique_key,
        ext.get("msgId", ""),
        queue.broker_name,
        number(ext, "queueId", address, queue.queue_id),
        number(ext, "queueOffset", address, -1),
        tries,
        copies_possible,
        ext.get("recallHandle", ""),
    )


@dataclass(slots=True)
class SendTally:
    """Counts of one `send_many`. `retried` counts acknowledged messages that were tried again, `duplicates_possible`
    the further copies that lost answers, and those of another status, may have left in the log: several for one
    message."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    retried: int = 0
    duplicates_possible: int = 0

    def add(self, result: SendResult) -> None:
        """Count an acknowledged message."""
        self.acknowledged += 1
        self.retried += result.tries > 1
        self.duplicates_possible += result.copies_possible


OnResult = Callable[[int, OutgoingMessage, "SendResult | RmqhaError"], None]
