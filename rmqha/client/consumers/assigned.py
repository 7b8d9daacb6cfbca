"""State that a consumer keeps of a queue that it reads. Values of the control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import trio

from rmqha.client.consumers.message import MessageBatch
from rmqha.client.route import MessageQueue
from rmqha.model.error import RemoteProtocolError
from rmqha.wire.lenient_json import loads


@dataclass(eq=False)
class Assigned:
    """A queue that this member reads. `pulled` is the next offset to ask for, `finished` that of the reader."""

    queue: MessageQueue
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    pull_scope: trio.CancelScope | None = None
    address: str = ""
    preferred_id: int = 0
    pulled: int = -1
    finished: int = -1
    committed: int = -1
    dropped: bool = False


@dataclass(slots=True)
class PrefetchedMessages:
    """Messages that have been read ahead; `index` is the next one to give out."""

    assigned: Assigned
    messages: MessageBatch
    next_offset: int
    index: int = 0


def number(ext: Mapping[str, str], name: str, default: int) -> int:
    """A whole number of an answer's fields; `default` for anything else."""
    text = ext.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else default


def reset_offsets(body: bytes) -> Iterator[tuple[MessageQueue, int]]:
    """Contents of request 220: the queue and the offset to go on from. Raises RemoteProtocolError."""
    try:
        for place, offset in loads(body)["offsetTable"].items():
            yield MessageQueue(str(place["topic"]), str(place["brokerName"]), int(place["queueId"])), int(offset)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"a request to reset offsets is not readable: {error!r}") from error
