"""Files that hold keys: the accounts of a server, the credentials of a client. Shell.

Apart from `security` so that a process without accounts does not load a YAML parser.
"""

from __future__ import annotations

import stat
from pathlib import Path

import yaml

from rmqha.model.access import AccessList, Credentials, parse_access_list
from rmqha.model.config import parse_properties
from rmqha.model.error import ConfigError, UsageError


class AccessFile:
    """The accounts of a file, read again when the file has changed. A file that cannot be read leaves the last good
    accounts in force; `problem` says why."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError, one sentence, if there is nothing to begin with."""
        self._path = path
        self._seen: tuple[int, int] = (0, 0)
        self.problem = ""
        self.access: AccessList = AccessList({})
        self.refresh()
        if self.problem:
            raise UsageError(self.problem)

    def refresh(self) -> bool:
        """True if the file has changed."""
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return False
            self._seen = seen
            self.access = parse_access_list(yaml.safe_load(self._path.read_text()), str(self._path))
            self.problem = ""
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self.problem = f"cannot read the accounts {self._path}: {reason}"
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            self.problem = f"{self._path}: not YAML{f', line {mark.line + 1}' if mark else ''}"
        except ConfigError as error:
            self.problem = str(error)
        return True


def read_credentials(path: str) -> Credentials:
    """accessKey and secretKey, as properties or as RocketMQ's tools.yml. Raises UsageError."""
    text = read_secret_text(path)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        found = parse_properties(text, path)
    return credentials({str(key): str(value) for key, value in found.items()}, path)


def credentials(found: dict[str, str], path: str) -> Credentials:
    missing = [name for name in ("accessKey", "secretKey") if not found.get(name)]
    if missing:
        raise UsageError(f"{path}: {missing[0]} is missing")
    return Credentials(access_key=found["accessKey"], secret_key=found["secretKey"])


def read_secret_text(path: str) -> str:
    file = Path(path)
    try:
        if file.stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise UsageError(f"{path} holds a secret key and others may open it: chmod 600 {path}")
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from None
