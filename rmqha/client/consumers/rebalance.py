"""Assignment of queues to the members of a consumer group. Pure decisions, the same as the Java client's default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rmqha.model.error import UsageError

Q = TypeVar("Q")


def allocate_averagely(queues: Sequence[Q], members: Sequence[str], member: str) -> list[Q]:
    """The share of `member`: both lists sorted and equal for all members, each gets one run of neighbours, the first
    ones a queue more if they do not divide evenly. [] for someone who is no member."""
    if member not in members or not queues:
        return []
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def parse_tags(expression: str) -> frozenset[str] | None:
    """The tags of "A || B"; None means all ("*" or empty). Raises UsageError for an empty alternative."""
    if expression.strip() in ("", "*"):
        return None
    tags = [part.strip() for part in expression.split("||")]
    if not all(tags):
        raise UsageError(f"tags {expression!r}: an alternative is empty; write TAG or TAG1 || TAG2")
    return frozenset(tags)
