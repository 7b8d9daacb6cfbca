"""State that a consumer keeps of a queue that it reads. Values of the control plane."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from rmqha.client.answers import parsing
from rmqha.client.consumers.message import MessageBatch
from rmqha.client.route import MessageQueue
from rmqha.wire.lenient_json import loads

PULL_MAX_COUNT = 512


@dataclass(eq=False)
class ProcessQueue:
    """State of a queue that this member reads, as RocketMQ's. `pulled`: the next offset to ask the broker for;
    `finished`: the next offset that the application has not finished."""

    queue: MessageQueue
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    pull_scope: trio.CancelScope | None = None
    address: str = ""
    preferred_id: int = 0
    pulled: int = -1
    finished: int = -1
    committed: int = -1
    dropped: bool = False
    max_count: int = PULL_MAX_COUNT
    """Number of messages that are asked for at once; 1 to get a damaged one by itself."""


@dataclass(slots=True)
class PrefetchedMessages:
    """Messages that have been read ahead; `index` is the next one to give out."""

    assigned: ProcessQueue
    messages: MessageBatch
    next_offset: int
    index: int = 0


def reset_offsets(body: bytes, address: str) -> list[tuple[MessageQueue, int]]:
    """Contents of request 220: the queues and the offsets to go on from. Raises RemoteProtocolError."""
    with parsing(address, "a request to reset offsets"):
        return [
            (MessageQueue(str(place["topic"]), str(place["brokerName"]), int(place["queueId"])), int(offset))
            for place, offset in loads(body)["offsetTable"].items()
        ]
