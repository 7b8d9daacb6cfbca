"""A growing log file on this machine, read as `tail -F` does. Control plane."""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

LOG_DECODER = getincrementaldecoder("utf-8")


class FollowedFile:
    """The text file at `path`, which may not exist yet. Rotations lose nothing: the old file is held open, and read to
    its end once a new one stands in its place; files that came between the two are read too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = LOG_DECODER("replace")
        self._file = _open_if_there(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def added(self) -> str:
        """The text that was added since the last call; with the first one, all of it. A file that was cut in place is
        read from its beginning."""
        current = _open_if_there(self._path)
        if current is None or (self._file is not None and _is_same(self._file, current)):
            if current is not None:
                current.close()
            return self._rest()
        text = self._rest()
        for file in [*self._begun_before(current), current]:
            if self._file is not None:
                text += self._decoder.decode(b"", final=True)
                self._file.close()
            self._file = file
            text += self._rest()
        return text

    def _begun_before(self, current: BinaryIO) -> list[BinaryIO]:
        """The files that were begun after the held one and rotated before `current`, the oldest first; none if the
        held one was moved elsewhere. A rotation meanwhile moves files on to numbers that are read later, never back."""
        from rmqha.host.tracer import KEPT_FILE_COUNT

        found: list[BinaryIO] = []
        for number in range(1, KEPT_FILE_COUNT + 1):
            old = _open_if_there(self._path.with_name(f"{self._path.name}.{number}"))
            if old is None:
                continue
            if self._file is not None and _is_same(self._file, old):
                old.close()
                return found[::-1]
            if any(_is_same(old, other) for other in (current, *found)):
                old.close()
            else:
                found.append(old)
        for file in found:
            file.close()
        return []

    def _rest(self) -> str:
        if self._file is None:
            return ""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
        return self._decoder.decode(self._file.read())


def _is_same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _open_if_there(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None
