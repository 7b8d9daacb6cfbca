"""Keys of a terminal, one at a time, under trio. Shell."""

from __future__ import annotations

import os
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import trio

ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down"}


@contextmanager
def single_keys(handle: int) -> Iterator[None]:
    """Context manager: the terminal gives each key at once and shows none; its settings are restored at the end."""
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def parse_keys(data: bytes) -> list[str]:
    """The keys in bytes that were read: characters, "up", "down" and "esc"; other keys that send an escape are left
    out."""
    if data == b"\x1b":
        return ["esc"]
    if data.startswith(b"\x1b"):
        return [ARROWS[data[:3]], *parse_keys(data[3:])] if data[:3] in ARROWS else []
    return [*data.decode(errors="ignore")[:1], *parse_keys(data[1:])] if data else []


async def pressed(handle: int) -> AsyncIterator[str]:
    """Each key; ends with the terminal."""
    while True:
        await trio.lowlevel.wait_readable(handle)
        data = os.read(handle, 64)
        if not data:
            return
        for key in parse_keys(data):
            yield key
