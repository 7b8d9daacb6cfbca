"""Files that a user names: their paths, and their whole text up to a limit. Shell."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rmqha.model.error import UsageError

MAX_TEXT_BYTES = 4 * 1024 * 1024


def expanded(path: Path | str) -> Path:
    """The path with ~ and ~USER replaced by home directories. Raises UsageError if the machine knows none, as in a
    container with any uid and without $HOME."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise UsageError(
            f"cannot find {path}: this machine knows no home directory for {user}; write the path in full"
        ) from None


def user_directory(variable: str, beside_it: str) -> Path | None:
    """Directory of an XDG variable, else `beside_it` in the home directory; None if there is neither."""
    try:
        return expanded(os.environ.get(variable) or f"~/{beside_it}")
    except UsageError:
        return None


def read_text(path: Path | str, what: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """UTF-8 text of a regular file or a pipe. `what`: what the file is, for errors, such as "the configuration".

    Raises UsageError if there is no such file or its text is not UTF-8, for a device (its text may never end), and for
    more than `limit_bytes`."""
    try:
        # checked before the file is opened: opening some devices has side effects
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"cannot read {what} {path}: it is a device or a socket, not a file")
        with Path(path).open("rb") as file:
            data = file.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise UsageError(f"cannot read {what} {path}: it is longer than {limit_bytes} bytes")
        return data.decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {what} {path}: it is not UTF-8 text") from None
    except ValueError:
        raise UsageError(f"cannot read {what} {path!r}: no name of a file has a zero byte") from None
