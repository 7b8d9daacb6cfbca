"""A subscription's expression: the tags that a consumer wants, and the names of the two kinds. Pure."""

from __future__ import annotations

from rmqha.client.arguments import require_type
from rmqha.model.error import UsageError

TAG, SQL92 = "TAG", "SQL92"


def parse_tags(expression: str) -> frozenset[str] | None:
    """The tags of "A || B"; None means all ("*" or empty). Raises UsageError for an empty alternative."""
    require_type(f"the argument tags, {expression!r},", expression, str, '; write "TAG1 || TAG2"')
    if expression.strip() in ("", "*"):
        return None
    tags = [part.strip() for part in expression.split("||")]
    if not all(tags):
        raise UsageError(f"tags {expression!r}: an alternative is empty; write TAG or TAG1 || TAG2")
    return frozenset(tags)
