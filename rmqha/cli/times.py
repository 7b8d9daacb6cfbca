"""Parsing of times in options, and times and ages as tables show them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rmqha.model.error import UsageError

if TYPE_CHECKING:
    import click

_AGE_STEPS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def parse_time(text: str) -> int | None:
    """Milliseconds since 1970 of ISO 8601 (local time unless it says otherwise); None for anything else."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def moment(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of an option: milliseconds since 1970, from a number of them or ISO 8601."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return int(value)
    found = parse_time(value)
    if found is None:
        raise UsageError(f"{parameter.opts[0]} {value!r} is no time: write 2026-11-21T14:00:00 or milliseconds")
    return found


def local_time(at_ms: int) -> str:
    """Date and time of this machine's zone, to the millisecond; "" for 0 and less, which stand for no time; the number
    of what is no date."""
    if at_ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def short_time(at_ms: int) -> str:
    """Month, day and time of this machine's zone; "" for no time."""
    text = local_time(at_ms)
    return text[5:19] if " " in text else text


def age_text(age_ms: int | None) -> str:
    """The two largest units, such as 3d 4h or 12s; "" for None."""
    if age_ms is None:
        return ""
    if age_ms < 1_000:
        return f"{age_ms}ms"
    left = age_ms // 1_000
    parts: list[str] = []
    for unit, size in _AGE_STEPS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part[:-1] != "0")
