"""Parsing of servers' answers: a server whose answer has another form counts as unreachable. Control plane.

A port that an address file names may have gone to another program that speaks the same protocol, to a server of
another kind, or to a release whose answers have another form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rmqha.model.error import RemoteProtocolError, UnreachableError
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

UNREADABLE = (RemoteProtocolError, ValueError, TypeError, AttributeError, KeyError, IndexError)
"""Errors that parsing an answer of another form raises."""


@contextmanager
def readable_answer(address: str, whose: str) -> Iterator[None]:
    """Context manager that makes an error of parsing inside an UnreachableError. `whose`: "a controller's"."""
    try:
        yield
    except UNREADABLE as error:
        why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UnreachableError(
            f"the answer of {address} is not {whose} of rmqha ({why}): does another program, or another release, "
            "listen there?"
        ) from None


def json_object(reply: Command, address: str, whose: str) -> dict[str, Any]:
    """The JSON object that is the reply's body. Raises UnreachableError."""
    with readable_answer(address, whose):
        found = loads(bytes(reply.body))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    return found
