"""The outcome of each message of `rmqha send`. Values of the control plane."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from rmqha.cli.messaging.send_input import InputMessage
from rmqha.client.producers.outgoing import OutgoingMessage
from rmqha.client.producers.result import SendResult
from rmqha.model.error import RemoteError, RmqhaError


@dataclass
class SendReport:
    """Counts of the outcomes of a run's messages. Gaps lie between two acknowledgements of the run."""

    total: int
    acked: TextIO | None = None
    started_ms: float = 0.0
    handed_over: int = 0
    acknowledged: int = 0
    failed: int = 0
    retried: int = 0
    duplicates_possible: int = 0
    longest_gap_ms: int = 0
    first_ack_after_gap_at_ms: int | None = None
    lines: dict[int, int] = field(default_factory=dict)
    reasons: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Count, lowest line and that line's text, by kind of error."""
    _last_ack_ms: float | None = None

    def note(
        self, position: int, message: OutgoingMessage, outcome: SendResult | RmqhaError, *, in_turn: bool = False
    ) -> None:
        """Note the outcome of a message. `in_turn`: it was sent only when the one before was acknowledged, so that the
        time between is no gap."""
        line = self.lines.pop(position)
        if not isinstance(outcome, SendResult):
            self.failed += 1
            code = outcome.code if isinstance(outcome, RemoteError) else ""
            kind = f"{type(outcome).__name__} {code}"
            count, first_line, first = self.reasons.get(kind, (0, line, ""))
            self.reasons[kind] = count + 1, min(line, first_line), str(outcome) if line <= first_line else first
            return
        now_ms, wall_ms = time.monotonic() * 1000, time.time_ns() // 1_000_000
        if not in_turn and self._last_ack_ms is not None and round(now_ms - self._last_ack_ms) > self.longest_gap_ms:
            self.longest_gap_ms = round(now_ms - self._last_ack_ms)
            self.first_ack_after_gap_at_ms = wall_ms
        self._last_ack_ms = now_ms
        self.acknowledged += 1
        self.retried += outcome.tries > 1
        self.duplicates_possible += outcome.copies_possible
        if self.acked is not None:
            self.acked.write(json.dumps(_acked_line(line, message, outcome, wall_ms), ensure_ascii=False) + "\n")

    def note_next(self, items: Sequence[InputMessage], outcome: SendResult) -> None:
        """Note the outcome of the first of `items` that was not handed over before."""
        item = items[self.handed_over]
        self.lines[self.handed_over] = item.line
        self.handed_over += 1
        self.note(self.handed_over - 1, item.message, outcome, in_turn=True)

    def finish(self) -> None:
        """End the run: a gap that no acknowledgement has ended counts too."""
        now_ms = time.monotonic() * 1000
        open_since = self._last_ack_ms or self.started_ms
        if self.acknowledged < self.total and round(now_ms - open_since) > self.longest_gap_ms:
            self.longest_gap_ms = round(now_ms - open_since)
            self.first_ack_after_gap_at_ms = None

    def as_dict(self, topic: str, elapsed_ms: float, blank_line_count: int) -> dict[str, Any]:
        return {
            "topic": topic,
            "messages": self.total,
            "sent": self.handed_over,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "not_sent": self.total - self.acknowledged - self.failed,
            "retried": self.retried,
            "duplicates_possible": self.duplicates_possible,
            "longest_gap_ms": self.longest_gap_ms,
            "first_ack_after_gap_at_ms": self.first_ack_after_gap_at_ms,
            "elapsed_ms": round(elapsed_ms),
            "messages_per_second": round(self.acknowledged * 1000 / elapsed_ms, 1) if elapsed_ms else 0.0,
            "blank_lines": blank_line_count,
            "reasons": [
                {"count": number, "first_line": line, "first": text} for number, line, text in self.reasons.values()
            ],
        }


def _acked_line(line: int, message: OutgoingMessage, result: SendResult, wall_ms: int) -> dict[str, Any]:
    handle = {"recallHandle": result.recall_handle} if result.recall_handle else {}
    return {
        "line": line,
        "msgId": result.msg_id,
        "offsetMsgId": result.offset_msg_id,
        "brokerName": result.broker_name,
        "queueId": result.queue_id,
        "queueOffset": result.queue_offset,
        "key": message.keys,
        "sha256": hashlib.sha256(message.body).hexdigest(),
        "ackedAtMs": wall_ms,
        "tries": result.tries,
        "duplicatePossible": result.duplicate_possible,
        **handle,
    }
