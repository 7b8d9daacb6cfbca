"""JSON as RocketMQ's fastjson writes and reads it: strict JSON, plus integer map keys without quotes and objects as map
keys (formats.md §9, §15.3). Control plane.

`loads` accepts both kinds; an unquoted integer key becomes its text, an object key becomes an `ObjectKey`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from json.encoder import encode_basestring
from math import isinf
from typing import Any, NamedTuple

from rmqha.model.error import RemoteProtocolError

MAX_DEPTH = 64
STEP_COUNT = 32
"""Members that `dumps_in_steps` encodes in one step; for tables a step takes some 0.3 ms."""

_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:(?P<punctuation>[{}\[\],:])|(?P<quote>")|(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)"""
    r"""|(?P<word>true|false|null)|(?P<end>\Z))""",
    re.ASCII,
)
_BLANKS = re.compile(r"[ \t\n\r]*")
_WORDS = {"true": True, "false": False, "null": None}


class ObjectKey(Mapping[str, Any]):
    """JSON object used as a map's key, e.g. a MessageQueue. Immutable; two are equal if they have the same members, in
    any order."""

    __slots__ = ("_identity", "_members")

    def __init__(self, members: Mapping[str, Any]) -> None:
        self._members = dict(members)
        self._identity = dumps({name: self._members[name] for name in sorted(self._members)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self._identity == other._identity

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"ObjectKey({self._members!r})"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text} is beyond what a number can be")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def loads(data: bytes | bytearray | memoryview | str, *, integer_keys: bool = False, is_strict: bool = False) -> Any:
    """Decode a JSON text. With `integer_keys` an unquoted integer key becomes an int, else its text. With `is_strict`
    there may be no such key: to parse them takes ten times as long.

    Raises RemoteProtocolError, also for a string with half a surrogate pair and for nesting that is too deep."""
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
        try:
            value = _DECODER.decode(text)
        except json.JSONDecodeError:
            if is_strict:
                raise
            value = (_IntegerKeyParser if integer_keys else _LenientParser)(text).document()
        if "\\ud" in text or "\\uD" in text:
            dumps(value)  # half a surrogate pair cannot be encoded again
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    return value


WINDOW_CHARS = 256 * 1024
"""Characters of the window that is decoded at a time. A value of more than half of it must be an object."""
READ_AT_A_TIME = 256
"""Members of an object that are decoded in one step."""


def loads_in_steps(
    data: bytes, path: tuple[str, ...], take: Callable[[str, Any], None], *, max_member_count: int
) -> Generator[None, None, Any]:
    """Decode strict JSON in steps; returns the value. If the object at `path` is large, its members are given to `take`
    instead. Raises RemoteProtocolError, also if large objects have more than `max_member_count` members."""
    try:
        return (yield from _WindowReader(str(data, "utf-8"), take, max_member_count).document(path))
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None


class _WindowReader:
    """Decoder that decodes small values as a whole and large objects member by member."""

    def __init__(self, text: str, take: Callable[[str, Any], None], max_member_count: int) -> None:
        self._text = text
        self._take = take
        self._members_left = max_member_count
        self._start = self._at = 0
        """Position of the window in the text, and of the next character in the window."""
        self._window = text[:WINDOW_CHARS]
        self._has_moved = False
        """True if the window has moved since the last step began."""

    def document(self, path: tuple[str, ...]) -> Generator[None, None, Any]:
        self._next()
        value = yield from self._value(path, 0)
        if self._next():
            raise self._unexpected()
        return value

    def _unexpected(self) -> ValueError:
        return ValueError(f"unexpected text near character {self._start + self._at}")

    @property
    def _is_last(self) -> bool:
        return self._start + WINDOW_CHARS >= len(self._text)

    def _next(self) -> str:
        """Next character that is no blank, "" at the end; at least half a window follows it."""
        match = _BLANKS.match(self._window, self._at)
        assert match is not None
        self._at = match.end()
        if 2 * self._at > WINDOW_CHARS and not self._is_last:
            self._start += self._at
            self._at, self._has_moved = 0, True
            self._window = self._text[self._start : self._start + WINDOW_CHARS]
            return self._next()
        return self._window[self._at : self._at + 1]

    def _decoded(self) -> Any:
        """Decode the value at the present position. Raises ValueError if there is none, or if it exceeds the window."""
        value, end = _DECODER.raw_decode(self._window, self._at)
        if end == len(self._window) and not self._is_last:
            raise self._unexpected()
        self._at = end
        return value

    def _value(self, path: tuple[str, ...] | None, depth: int) -> Generator[None, None, Any]:
        """Decode the value at the present position. `path`: rest of the path below it, None if it is on another one."""
        try:
            return self._decoded()
        except ValueError:
            if self._is_last or self._window[self._at] != "{":
                raise self._unexpected() from None
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        yield  # the failed attempt has decoded half a window
        return (yield from self._object(path, depth))

    def _object(self, path: tuple[str, ...] | None, depth: int) -> Generator[None, None, dict[str, Any]]:
        members: dict[str, Any] = {}
        put = self._take if path == () else members.__setitem__
        mark = "{"
        while mark != "}":
            self._at += 1
            if self._next() != '"':
                raise self._unexpected()  # it is too large to be empty
            key = self._decoded()
            if self._next() != ":":
                raise self._unexpected()
            self._at += 1
            self._next()
            below = path[1:] if path and path[0] == key else None
            put(key, (yield from self._value(below, depth + 1)))
            mark = self._next()
            if mark not in ("}", ","):
                raise self._unexpected()
            self._members_left -= 1
            if self._members_left < 0:
                raise ValueError("it has too many members")
            if self._has_moved or self._members_left % READ_AT_A_TIME == 0:
                self._has_moved = False
                yield
        self._at += 1
        return members


def dumps(value: Any, *, unquoted_integer_keys: bool = False) -> bytes:
    """Compact JSON. ObjectKey keys are written as objects, as fastjson does and Java's admin tools require; integer
    keys are quoted unless `unquoted_integer_keys`. Keys keep the mapping's order."""
    if not unquoted_integer_keys:
        try:
            return _encode(value).encode()
        except TypeError:
            # an ObjectKey, or a mapping or sequence that the library's encoder does not support
            return _dumps_slowly(value, False)
    return _dumps_slowly(value, True)


class Entries(NamedTuple):
    """JSON object whose members are made one by one while it is encoded."""

    pairs: Iterable[tuple[Any, Any]]


class Items(NamedTuple):
    """JSON list whose items are made one by one while it is encoded."""

    values: Iterable[Any]


def dumps_in_steps(
    members: Mapping[str, Any], *, unquoted_integer_keys: bool = False, max_bytes: int | None = None
) -> Generator[None, None, bytes]:
    """Encode, as `dumps` does, an object of which some members are `Entries` or `Items`, with a step for each
    STEP_COUNT of their members. Raises RemoteProtocolError for more than `max_bytes`."""
    parts: list[bytes] = []  # joined once: a body may have tens of megabytes
    size_bytes = 0
    for name, value in members.items():
        parts += (b"," if parts else b"{", _encode(name).encode(), b":")
        if not isinstance(value, Entries | Items):
            parts.append(dumps(value, unquoted_integer_keys=unquoted_integer_keys))
            continue
        first, last = (b"{", b"}") if isinstance(value, Entries) else (b"[", b"]")
        parts.append(first)
        for chunk in _chunks(value):
            parts += (dumps(chunk, unquoted_integer_keys=unquoted_integer_keys)[1:-1], b",")
            size_bytes += len(parts[-2])
            if max_bytes is not None and size_bytes > max_bytes:
                raise RemoteProtocolError(f"the answer has more than {max_bytes} bytes, which no frame takes")
            yield
        if parts[-1] is not first:
            parts.pop()
        parts.append(last)
    return b"".join((*parts, b"}" if parts else b"{}"))


def _chunks(value: Entries | Items) -> Iterator[dict[Any, Any] | list[Any]]:
    if isinstance(value, Items):
        values = iter(value.values)
        while some := list(islice(values, STEP_COUNT)):
            yield some
        return
    pairs = iter(value.pairs)
    while chunk := dict(islice(pairs, STEP_COUNT)):
        yield chunk


_WRITTEN = {None: "null", True: "true", False: "false"}
_encode_float = json.JSONEncoder(allow_nan=False).encode


def _dumps_slowly(value: Any, unquoted_integer_keys: bool) -> bytes:
    parts: list[str] = []
    _write(value, parts.append, unquoted_integer_keys)
    return "".join(parts).encode()


def _write(value: Any, put: Callable[[str], object], unquoted: bool) -> None:
    if isinstance(value, str):
        put(encode_basestring(value))
    elif value is None or value is True or value is False:
        put(_WRITTEN[value])
    elif isinstance(value, int):
        put(int.__repr__(value))
    elif isinstance(value, float):
        put(_encode_float(value))
    elif isinstance(value, Mapping):
        separator = "{"
        for key, member in value.items():
            put(separator)
            separator = ","
            if isinstance(key, str):
                put(encode_basestring(key))
            elif isinstance(key, int):
                put(f"{int(key)}" if unquoted else f'"{int(key)}"')
            else:
                _write(key, put, unquoted)
            put(":")
            _write(member, put, unquoted)
        put("}" if separator == "," else "{}")
    else:
        separator = "["
        for member in value:
            put(separator)
            separator = ","
            _write(member, put, unquoted)
        put("]" if separator == "," else "[]")


def unquoted_members(data: bytes) -> list[str]:
    """Names of the top-level members that hold an unquoted integer key at any depth, in order.

    fastjson2 reads such keys only where its class says that keys are integers; in a member that it does not know it
    gives up on the whole document. Raises RemoteProtocolError for what `loads` refuses.
    """
    value = loads(data, integer_keys=True)
    members = value.items() if isinstance(value, dict) else ()
    return [str(name) for name, member in members if isinstance(name, int) or _has_integer_key(member)]


def _has_integer_key(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(key, int) or _has_integer_key(member) for key, member in value.items())
    return isinstance(value, list) and any(_has_integer_key(item) for item in value)


class _LenientParser:
    """Small recursive parser, used only after the strict one has failed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def document(self) -> Any:
        value = self._value(*self._token(), 0)
        kind, token = self._token()
        if kind != "end":
            raise self._unexpected(token)
        return value

    def _token(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            raise ValueError(f"unexpected character at position {self._position}")
        self._position = match.end()
        return match.lastgroup, match[match.lastgroup]

    def _unexpected(self, token: str) -> ValueError:
        return ValueError(f"unexpected {token or 'end'} before position {self._position}")

    def _string(self) -> str:
        """Parse the string whose opening quote was read last."""
        value, self._position = _DECODER.raw_decode(self._text, self._position - 1)
        assert isinstance(value, str)
        return value

    def _value(self, kind: str, token: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if kind == "quote":
            return self._string()
        if kind == "word":
            return _WORDS[token]
        if kind == "number":
            return _DECODER.decode(token)
        if token == "{":
            return self._object(depth)
        if token == "[":
            return self._array(depth)
        raise self._unexpected(token)

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        kind, token = self._token()
        while token != "]" or kind != "punctuation":
            items.append(self._value(kind, token, depth + 1))
            kind, token = self._token()
            if token == "," and kind == "punctuation":
                kind, token = self._token()
                if token == "]":
                    raise self._unexpected(token)
            elif token != "]":
                raise self._unexpected(token)
        return items

    def _object(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        kind, token = self._token()
        while token != "}" or kind != "punctuation":
            key = self._key(kind, token, depth)
            kind, token = self._token()
            if token != ":":
                raise self._unexpected(token)
            members[key] = self._value(*self._token(), depth + 1)
            kind, token = self._token()
            if token == ",":
                kind, token = self._token()
                if token == "}":
                    raise self._unexpected(token)
            elif token != "}":
                raise self._unexpected(token)
        return members

    def _key(self, kind: str, token: str, depth: int) -> str | int | ObjectKey:
        if kind == "quote":
            return self._string()
        if kind == "number" and token.lstrip("-").isdigit():
            return token
        if token == "{":
            if depth >= MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
            return ObjectKey(self._object(depth + 1))
        raise self._unexpected(token)


class _IntegerKeyParser(_LenientParser):
    """A parser that reads unquoted integer keys as int."""

    def _key(self, kind: str, token: str, depth: int) -> str | int | ObjectKey:
        key = super()._key(kind, token, depth)
        return int(str(key)) if kind == "number" else key
