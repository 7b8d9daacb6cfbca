"""The secret that the servers of one cluster share (haSecretFile): its creation, reading and file mode. Shell."""

from __future__ import annotations

import os
import secrets
import stat
from functools import partial
from pathlib import Path

from rmqha.host.access.live_files import LiveFiles, refuse_if_open_to_others
from rmqha.host.text_file import read_text
from rmqha.model.error import UsageError

MIN_CHARS = 32


def new_secret() -> str:
    return secrets.token_hex(32)


def secret_file(path: str) -> LiveFiles[bytes]:
    """Secret of a file, reloaded when it changes. Raises UsageError if the file cannot be used."""
    return LiveFiles("haSecretFile", (path,), partial(_read, path))


def _read(path: str) -> bytes:
    try:
        refuse_if_open_to_others(path, "the secret of haSecretFile")
    except OSError as error:
        raise UsageError(f"cannot read haSecretFile {path}: {error.strerror}") from None
    text = read_text(Path(path), "haSecretFile").strip()
    if len(text) < MIN_CHARS:
        raise UsageError(
            f"haSecretFile {path} must hold {MIN_CHARS} characters or more; make one with `rmqha generate secret`"
        )
    return text.encode()


def make_secret_file(path: Path) -> bool:
    """Create the file unless there is one; True if it was created. An existing one stays, since running servers use it;
    only an empty one, which a full disk or a kill has left, is replaced. Raises OSError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size:
            return False
        path.unlink()
        return make_secret_file(path)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(new_secret() + "\n")
    except OSError:
        path.unlink()
        raise
    return True
