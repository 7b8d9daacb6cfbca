"""Numbers and tables in the answers of brokers and name servers; an error names who sent a wrong one. Control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rmqha.model.error import RemoteProtocolError

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_MAX_DIGITS = 19


def whole_number(word: str) -> int | None:
    """The number of 64 bits that `word` gives in decimal digits; None for any other word."""
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
        return None
    value = int(word)
    return value if _LOWEST <= value <= _HIGHEST else None


def number(ext: Mapping[str, str], name: str, whose: str, default: int | None = None, *, least: int = _LOWEST) -> int:
    """The number in a field of an answer; `default` if there is no such field. `whose`: the server that answered, for
    the error. Raises RemoteProtocolError for what is no number, or one below `least`."""
    word = ext.get(name)
    if word is None and default is not None:
        return default
    value = None if word is None else whole_number(word)
    if value is None or value < least:
        found = "nothing" if word is None else repr(word[:40])
        raise RemoteProtocolError(f"the answer of {whose} is not readable: it has {found} for the number {name}")
    return value


@contextmanager
def parsing(whose: str, what: str) -> Iterator[None]:
    """Context manager that makes an error of parsing inside a RemoteProtocolError, which names both arguments."""
    try:
        yield
    except (RemoteProtocolError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        why = str(error) if isinstance(error, RemoteProtocolError) else repr(error)
        raise RemoteProtocolError(f"{what} of {whose} is not readable: {why}") from error
