"""Names that brokers take: of topics and of groups."""

from __future__ import annotations

import re

from rmqha.client.arguments import require_type
from rmqha.model.error import UsageError

MAX_TOPIC_CHARS = 127
MAX_GROUP_CHARS = 120
"""A retry topic has the group's name behind "%RETRY%"."""
_NAME = re.compile(r"[%a-zA-Z0-9_|-]+")


def check_topic(topic: str) -> None:
    """Raise UsageError unless brokers take `topic` as a name."""
    _check("topic", topic, MAX_TOPIC_CHARS)


def check_group(group: str) -> None:
    """Raise UsageError unless brokers take `group` as the name of a group: else it would have no members there, and no
    member would get a queue."""
    _check("group", group, MAX_GROUP_CHARS)


def _check(kind: str, name: str, max_chars: int) -> None:
    require_type(f"{kind} {name!r}", name, str)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{kind} {name!r} must consist of letters, digits, % | _ and -")
    if len(name) > max_chars:
        raise UsageError(f"{kind} {name!r} is longer than {max_chars} characters")
