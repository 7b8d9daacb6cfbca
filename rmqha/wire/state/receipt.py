"""Texts about popped messages between brokers and clients: receipts, offset lists, retry topics. Pure.

A receipt (RocketMQ: extraInfo, POP_CK) is eight words: start offset of the checkpoint, pop time, invisible time, revive
queue, kind of topic, broker, queue, and the message's offset, which the receipt of a checkpoint does not have.
RocketMQ's proxy adds a ninth, the message's physical offset, which the broker ignores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rmqha.model.message import RETRY_PREFIX

ORDERED_QUEUE_ID = 999
"""Revive queue id in receipts of ordered pops, whose checkpoints are in no revive queue."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Kinds of topics."""
_KINDS = (NORMAL, RETRY_V1, RETRY_V2)
_NUMBER = "([0-9]{1,18})"
_RECEIPT = re.compile(
    f"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([{''.join(_KINDS)}]) ([^ ]+) {_NUMBER}(?: {_NUMBER}(?: [^ ]*)?)?"
)
POPPED_IN_FLIGHT = "rmqhaPoppedInFlight"
"""Member of our own in the answer to request 208, if it is not empty: number of messages by topic that the group has
popped and not acknowledged. RocketMQ's tools ignore it."""


def retry_topic(topic: str, group: str, kind: str = RETRY_V1) -> str:
    """Retry topic of a group for popped messages of `topic`."""
    return f"{RETRY_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"


def real_topic(topic: str, group: str, kind: str) -> str:
    """Topic from which a message of `topic` was popped: itself, or its retry topic, by `kind`. Raises ValueError."""
    if kind not in _KINDS:
        raise ValueError(f"{kind[:40]!r} is no kind of topic: 0 to 2")
    return topic if kind == NORMAL else retry_topic(topic, group, kind)


def normal_topic(topic: str, group: str) -> str:
    """Original topic of the group's retry topic `topic`; any other topic is returned as it is."""
    for kind in (RETRY_V1, RETRY_V2):
        begin = retry_topic("", group, kind)
        if topic.startswith(begin):
            return topic.removeprefix(begin)
    return topic


def kind_of(topic: str) -> str:
    """Kind of a topic, by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


class Receipt(NamedTuple):
    """Receipt of popped messages. `queue_offset` None: the receipt of a whole checkpoint. Times in ms."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue_id: int
    kind: str
    broker_name: str
    queue_id: int
    queue_offset: int | None = None

    @property
    def is_ordered(self) -> bool:
        """True if the message was popped in order."""
        return self.revive_queue_id == ORDERED_QUEUE_ID

    @property
    def due_ms(self) -> int:
        """Wall time (ms) at which the messages are delivered again."""
        return self.pop_ms + self.invisible_ms

    def encode(self) -> str:
        """Text that clients keep."""
        words = [str(item) for item in self[:7]]
        return " ".join(words if self.queue_offset is None else [*words, str(self.queue_offset)])

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Parse a receipt. Raises ValueError for a text that is none."""
        found = _RECEIPT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text[:80]!r} is no receipt: it must have seven to nine words, numbers of 18 digits at most"
            )
        start, pop_ms, invisible_ms, revive_id, kind, name, queue_id, offset = found.groups()
        return cls(
            int(start),
            int(pop_ms),
            int(invisible_ms),
            int(revive_id),
            kind,
            name,
            int(queue_id),
            None if offset is None else int(offset),
        )


def start_offset_info(topic: str, queue_id: int, start_offset: int) -> str:
    """An entry of the field startOffsetInfo: the checkpoint of one queue."""
    return f"{kind_of(topic)} {queue_id} {start_offset}"


def message_offset_info(topic: str, queue_id: int, queue_offsets: Sequence[int]) -> str:
    """An entry of the field msgOffsetInfo: the messages of one queue."""
    return f"{kind_of(topic)} {queue_id} {','.join(map(str, queue_offsets))}"


def message_count_info(topic: str, queue_id: int, queue_offset: int, count: int) -> str:
    """An entry of the field orderCountInfo: how often one message was given before."""
    return f"{kind_of(topic)} qo{queue_id}%{queue_offset} {count}"


def queue_count_info(topic: str, queue_id: int, count: int) -> str:
    """An entry of the field orderCountInfo: how often all of a queue's were given before, for older clients."""
    return f"{kind_of(topic)} {queue_id} {count}"
