"""Text files that a user names: read whole, but only as far as such a file can reasonably be. Shell."""

from __future__ import annotations

import stat
from pathlib import Path

from rmqha.model.error import UsageError

MAX_TEXT_BYTES = 4 * 1024 * 1024


def read_text(path: Path | str, what: str, limit_bytes: int = MAX_TEXT_BYTES) -> str:
    """The UTF-8 text of a regular file or a pipe. `what`, such as "the configuration", stands in the sentences.

    Raises UsageError for all that is none, also for a device, which may never end, and for more than `limit_bytes`."""
    try:
        # asked before it is opened: opening some devices does something
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"cannot read {what} {path}: it is a device or a socket, not a file")
        with Path(path).open("rb") as file:
            data = file.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise UsageError(f"cannot read {what} {path}: it is longer than {limit_bytes} bytes")
        return data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {what} {path}: it is not UTF-8 text") from None
    except ValueError:
        raise UsageError(f"cannot read {what} {path!r}: no name of a file has a zero byte") from None
