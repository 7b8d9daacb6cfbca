"""The part of an answer that an account may see: without topics and groups that it may not use. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from rmqha.model.access import Needs, Permission
from rmqha.model.principal import Principal

_EITHER = Permission.PUB | Permission.SUB
_TOPIC_FIELDS, _GROUP_FIELDS = ("topic", "topics"), ("producer_group",)
NAMING_FIELDS = frozenset((*_TOPIC_FIELDS, *_GROUP_FIELDS))
"""Fields of events that contain names of topics or groups."""
ADMINS_EVENTS = frozenset(
    {
        "request_failed",
        "recovery",
        "damaged",
        "index_dropped",
        "transaction_not_committed",
        "half_message_not_renewed",
    }
)
"""Events for admins only: a traceback may contain parts of a request, and other fields have paths with topic names."""

SHOWN_AT_A_TIME = 256
"""Names that are checked in one step, which takes about a millisecond."""


def topics_shown(principal: Principal, topics: Iterable[str]) -> list[str]:
    """Topics that the principal may send to or read."""
    if not principal.is_restricted:
        return list(topics)
    return [topic for topic in topics if not principal.refusal(Needs(topics=((topic, _EITHER),)))]


def groups_shown(principal: Principal, groups: Iterable[str]) -> list[str]:
    """Groups of consumers or producers on which the principal has a permission."""
    if not principal.is_restricted:
        return list(groups)
    return [group for group in groups if not principal.refusal(Needs(groups=((group, _EITHER),)))]


def shown_in_steps(
    shown: Callable[[Principal, Iterable[str]], list[str]], principal: Principal, names: list[str]
) -> Generator[None, None, list[str]]:
    """Apply `topics_shown` or `groups_shown` to many names, in steps."""
    if not principal.is_restricted:
        return names
    found: list[str] = []
    for start in range(0, len(names), SHOWN_AT_A_TIME):
        found += shown(principal, names[start : start + SHOWN_AT_A_TIME])
        yield
    return found


def events_shown(principal: Principal, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without those that contain a topic or group that the principal may not use; an admin sees all."""
    if not principal.is_restricted or principal.is_admin:
        return events
    return [event for event in events if event["event"] not in ADMINS_EVENTS and _is_shown(principal, event)]


def _is_shown(principal: Principal, event: Mapping[str, Any]) -> bool:
    topics, groups = _named(event, _TOPIC_FIELDS), _named(event, _GROUP_FIELDS)
    return topics == topics_shown(principal, topics) and groups == groups_shown(principal, groups)


def _named(event: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    values = [event[name] for name in fields if name in event]
    return [str(name) for value in values for name in (value if isinstance(value, list) else (value,))]
