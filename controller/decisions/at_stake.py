"""Bytes at stake where a replica leads that need not hold everything. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.decisions.elect_master import LogEnd


def lacking_bytes(own: LogEnd, other: LogEnd) -> int:
    """Bytes of the log `other` that a master with the log `own` would have cut, at least. Epochs count before ends: of
    a newer epoch the last byte is missing for sure, however far the own log reaches."""
    if other.max_offset > own.max_offset:
        return other.max_offset - own.max_offset
    return 1 if other.epoch > own.epoch else 0


def bytes_at_stake(own: LogEnd, others: Iterable[LogEnd]) -> int:
    """Number of bytes that may be lost, at least: those that any of `others` has reported and `own` does not have."""
    return max((lacking_bytes(own, other) for other in others), default=0)
