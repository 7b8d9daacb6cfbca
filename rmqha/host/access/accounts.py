"""Files that hold keys: the accounts of a server, the credentials of a client. Shell.

Separate from `security`, so that a process without accounts does not load this module and the YAML parser.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmqha.host.access.live_files import LiveFiles, refuse_if_open_to_others
from rmqha.host.text_file import read_text
from rmqha.model.config.base import parse_properties
from rmqha.model.error import UsageError
from rmqha.model.identity import Credentials

if TYPE_CHECKING:
    from rmqha.model.access import AccessList


class AccessFile(LiveFiles["AccessList"]):
    """The accounts of a file, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Read the accounts. Raises UsageError with one sentence if the file cannot be used."""
        super().__init__("aclFile", (str(path),), partial(_read_access_list, path))

    @property
    def access(self) -> AccessList:
        return self.current


def _read_access_list(path: Path) -> AccessList:
    import yaml

    # a process that only signs does not need it
    from rmqha.model.access import parse_access_list

    try:
        refuse_if_open_to_others(str(path), "secret keys")
        return parse_access_list(yaml.safe_load(read_text(path, "the accounts")), str(path))
    except OSError as error:
        raise UsageError(f"cannot read the accounts {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(f"{path}: not YAML{f', line {mark.line + 1}' if mark else ''}") from None
    except RecursionError:
        raise UsageError(f"{path}: not YAML that anybody needs, it is nested too deeply") from None


def credentials_file(key: str, path: str) -> LiveFiles[Credentials]:
    """The account that the configuration's `key` names. Raises UsageError."""
    return LiveFiles(key, (path,), partial(read_credentials, path))


def read_credentials(path: str) -> Credentials:
    """Read accessKey and secretKey from a properties file or a file like RocketMQ's tools.yml. Raises UsageError."""
    import yaml

    text = read_secret_text(path)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
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
    try:
        refuse_if_open_to_others(path, "a secret key")
    except OSError as error:
        raise UsageError(f"cannot read the keys {path}: {error.strerror}") from None
    return read_text(path, "the keys")
