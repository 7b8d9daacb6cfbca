"""The part of a topic that a reader without a group reads. Values of the control plane; loads no event loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqha.client.route import MessageQueue
from rmqha.model.code import RequestCode


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The part of a topic that a standalone consumer reads: one queue or all (None), from a time (ms since 1970) or an
    offset on, else from its usual start. `known`: offsets at which queues go on that were read before."""

    queue: MessageQueue | None = None
    since_ms: int | None = None
    offset: int | None = None
    known: Mapping[MessageQueue, int] = field(default_factory=dict)


def first_offset_request(read_range: ReadRange) -> tuple[RequestCode, dict[str, str]]:
    """The request for a queue's first offset, and its fields beside those that name the queue."""
    if read_range.since_ms is not None:
        return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(read_range.since_ms)}
    return RequestCode.GET_MIN_OFFSET, {}
