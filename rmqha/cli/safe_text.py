"""Standard output and error of the command line, with control characters escaped: peers choose names.

All text of commands goes through here or through `rmqha.cli.render.console`; bytes that a user asks for unchanged are
written to the stream's buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rmqha.model.printable import printable


class SafeText:
    """A stream of text that escapes the control characters of terminals."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def raw(stream: TextIO) -> TextIO:
    """The stream that a SafeText writes to, for output with own styles."""
    return stream.stream if isinstance(stream, SafeText) else stream


@contextmanager
def safe_streams() -> Iterator[None]:
    """Context manager: both streams of this process escape control characters until it ends."""
    before = sys.stdout, sys.stderr
    if not isinstance(sys.stdout, SafeText):
        sys.stdout, sys.stderr = cast(TextIO, SafeText(sys.stdout)), cast(TextIO, SafeText(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
