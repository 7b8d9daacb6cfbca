"""What an account is shown of lists and events."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.identity import Credentials
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.auth.shown import ADMINS_EVENTS, NAMING_FIELDS, events_shown, groups_shown, topics_shown

ROOT = Path(__file__).parents[3]
NAMES = ("topic", "producer", "consumer", "client", "properties", "body", "message")
"""Parts of the names of fields that hold what belongs to accounts."""


@dataclass
class Accounts:
    access: AccessList


def principal(key: str) -> Principal:
    accounts = [
        Account(
            credentials=Credentials(access_key="orders", secret_key="12345678"),
            topics={"Orders": Permission.PUB},
            groups={"billing": Permission.SUB},
        ),
        Account(credentials=Credentials(access_key="operator", secret_key="12345678"), admin=True),
    ]
    return Principal(Accounts(AccessList({item.credentials.access_key: item for item in accounts})), key)


ORDERS, OPERATOR, GONE = principal("orders"), principal("operator"), principal("gone")


def event(**fields: Any) -> dict[str, Any]:
    return {"at_ms": 1, "event": "x", **fields}


@pytest.mark.parametrize(
    ("found", "own"),
    [
        (event(), True),
        (event(topic="Orders", producer_group="billing"), True),
        (event(topic="Other"), False),
        (event(topic="Orders", producer_group="other"), False),
        (event(topics=["Orders"]), True),
        (event(topics=["Orders", "Other"]), False),
        *((event() | {"event": name}, False) for name in sorted(ADMINS_EVENTS)),
    ],
)
def test_events(found: dict[str, Any], own: bool) -> None:
    assert events_shown(ORDERS, [found]) == [found] * own
    for who in (OPERATOR, UNRESTRICTED):
        assert events_shown(who, [found]) == [found]


def test_lists() -> None:
    topics, groups = ["Orders", "Other", "%RETRY%billing", "%RETRY%other"], ["billing", "other"]
    assert topics_shown(ORDERS, topics) == ["Orders", "%RETRY%billing"]
    assert groups_shown(ORDERS, groups) == ["billing"]
    for who in (OPERATOR, UNRESTRICTED):
        assert (topics_shown(who, topics), groups_shown(who, groups)) == (topics, groups)
    assert (topics_shown(GONE, topics), groups_shown(GONE, groups)) == ([], [])


def traced(*roots: str) -> Iterator[tuple[str, str]]:
    """Events ("" if the name is not a text), each with each of its fields."""
    for root in roots:
        texts = [path.read_text() for path in (ROOT / root).rglob("*.py")]
        for text in (text for text in texts if ".event(" in text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                    name = str(getattr(node.args[0], "value", "")) if node.args else ""
                    yield from ((name, keyword.arg) for keyword in node.keywords if keyword.arg)


def test_each_field_that_names_what_belongs_to_accounts_is_known() -> None:
    """Whoever traces a new one says here what it names."""
    fields = {field for _, field in traced("rmqha", "controller", "nameserver")}
    assert fields >= NAMING_FIELDS and "traceback" in fields
    assert {field for field in fields if any(part in field for part in NAMES)} == NAMING_FIELDS


def test_findings_are_for_admins() -> None:
    """They name files, and those of a broker's queues have the names of their topics."""
    assert {name for name, field in traced("rmqha") if field == "finding"} <= ADMINS_EVENTS
