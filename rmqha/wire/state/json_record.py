"""Dataclasses that are the schema of JSON objects: a server makes them, a client parses them. Pure.

A field `max_phy_offset` is the member `maxPhyOffset`. Unknown members are ignored. A missing member gets the field's
default; without a default, and for a member of another type, the object is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from enum import Enum
from functools import cache
from importlib import import_module
from inspect import get_annotations
from types import UnionType
from typing import Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin


class JsonRecord:
    """Base of these dataclasses, frozen or not, which are made with `eq=False, repr=False`. The base has both methods:
    making them for each class would take half of the import time of a client's command."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({shown})"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values by member. A None is left out if the field has an anchor and that is None too."""
        return {
            item.member: _encoded(value)
            for item in _plan(type(self))
            if (value := getattr(self, item.name)) is not None
            or not item.anchor
            or getattr(self, item.anchor) is not None
        }

    @classmethod
    def from_json(cls, found: object) -> Self:
        """Parse a decoded JSON value. Raises ValueError if it is no such object."""
        if not isinstance(found, Mapping):
            raise ValueError("it is no JSON object")
        values = {}
        for item in _plan(cls):
            if item.member in found:
                try:
                    values[item.name] = item.parse(found[item.member])
                except ValueError as error:
                    raise ValueError(f"{item.member}: {error}") from None
            elif item.is_needed:
                raise ValueError(f"it lacks {item.member}")
        return cls(**values)


def part(anchor: str = "") -> Any:
    """Field that not every server has: None by default. In JSON it is left out while it and the field `anchor` (by
    default itself) are None."""
    return field(default=None, metadata={"anchor": anchor})


class _Item(NamedTuple):
    name: str
    member: str
    anchor: str
    is_needed: bool
    parse: Callable[[object], object]


_plans: dict[type[Any], tuple[_Item, ...]] = {}


def _plan(cls: type[JsonRecord]) -> tuple[_Item, ...]:
    found = _plans.get(cls)
    if found is None:
        places = {name: base.__module__ for base in reversed(cls.__mro__) for name in get_annotations(base)}
        found = _plans[cls] = tuple(
            _Item(
                item.name,
                camel(item.name),
                item.metadata["anchor"] or item.name if item.metadata else "",
                item.default is MISSING and item.default_factory is MISSING,
                _parser_of(places[item.name], str(item.type)),
            )
            for item in fields(cls)
        )
    return found


@cache
def _parser_of(module: str, hint: str) -> Callable[[object], object]:
    """Parser for a type annotation in a module. It is cached: hundreds of fields have only a dozen types."""
    return _parser(eval(hint, vars(import_module(module))))


def camel(name: str) -> str:
    """A Python name in camelCase, as JSON has it."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def _encoded(value: object) -> object:
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, dict):
        return {str(name): _encoded(item) for name, item in value.items()}
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Enum):
        return value.value
    return [_encoded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _parser(hint: Any) -> Callable[[object], object]:
    origin, given = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (kind,) = (item for item in given if item is not type(None))
        inner = _parser(kind)
        return lambda value: None if value is None else inner(value)
    if origin in (list, Sequence):
        return _list_parser(_parser(given[0]))
    if origin in (tuple, frozenset):
        all_of, make = _list_parser(_parser(given[0])), origin
        return lambda value: make(all_of(value))
    if origin in (dict, Mapping):
        return _object_parser(given[0], _parser(given[1]))
    if isinstance(hint, type) and issubclass(hint, JsonRecord):
        return hint.from_json
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    assert hint in (str, bool, int, float), f"{hint} is not a type of JSON"
    return _scalar_parser((float, int) if hint is float else (hint,), hint.__name__)


def _scalar_parser(kinds: tuple[type, ...], name: str) -> Callable[[object], object]:
    def parse(value: object) -> object:
        if type(value) not in kinds:
            raise ValueError(f"it is {type(value).__name__}, not {name}")
        return value

    return parse


def _list_parser(parse: Callable[[object], object]) -> Callable[[object], list[object]]:
    def parse_all(value: object) -> list[object]:
        if not isinstance(value, list):
            raise ValueError(f"it is {type(value).__name__}, not list")
        return [parse(item) for item in value]

    return parse_all


def _object_parser(name_of: Callable[[str], object], parse: Callable[[object], object]) -> Callable[[object], object]:
    def parse_all(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"it is {type(value).__name__}, not an object")
        return {name_of(name): parse(item) for name, item in value.items()}

    return parse_all
