"""Arguments of callers without type checks: one of a wrong type is refused in a sentence before anything is sent."""

from __future__ import annotations

from rmqha.model.error import UsageError


def require_type(what: str, value: object, kind: type | tuple[type, ...], hint: str = "") -> None:
    """Raise UsageError, which names both types, unless the value is of the `kind` that isinstance() takes."""
    if not isinstance(value, kind):
        raise UsageError(f"{what} is {type(value).__name__}, not {_name(kind)}{hint}")


def _name(kind: type | tuple[type, ...]) -> str:
    return kind.__name__ if isinstance(kind, type) else " or ".join(map(_name, kind))
