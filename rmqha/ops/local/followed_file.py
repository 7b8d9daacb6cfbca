"""A server's log on this machine, read as it grows. Control plane."""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

LOG_DECODER = getincrementaldecoder("utf-8")


class FollowedFile:
    """The file of text at `path`, which may not be there yet. A rotation loses nothing: the old file is held open, and
    read to its end once the new one stands in its place."""

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
        if self._file is not None:
            text += self._decoder.decode(b"", final=True)
            self._file.close()
        self._file = current
        return text + self._rest()

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
