"""Storages of a store's files: this machine's directories, or anything fsspec knows (data plane, read only).

A path with a scheme, such as s3://bucket/broker-a or memory://archive/a, is fsspec's, which must be installed then; a
plain path and file:// are local. Files are read by ranges and never mapped: a file that is cut or removed while it is
read gives an error, not a signal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from rmqha.model.error import StoreError, UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class StorageFile(Protocol):
    """Port: an open file of a storage."""

    def seek(self, position: int, /) -> int:
        """Go to `position` (bytes)."""

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into `buffer`; the number of bytes, 0 at the end."""

    def close(self) -> None:
        """Close the file."""


class Storage(Protocol):
    """Port: a storage of files. Paths are strings with `/`. OSError where something cannot be read."""

    def entries(self, path: str) -> list[tuple[str, int | None]] | None:
        """Entries of a directory: (name, size in bytes or None of a directory). None if there is no such directory.

        StoreError for a file whose size cannot be told."""
        ...

    def content(self, path: str) -> bytes | None:
        """Content of a file; None if there is no such file."""
        ...

    def matching(self, pattern: str) -> list[str]:
        """The directories that a pattern of *, ? and [ab] stands for, in order."""
        ...

    def open(self, path: str) -> StorageFile:
        """Open a file for reading. Raises FileNotFoundError."""
        ...


class LocalStorage:
    """Files of this machine. Implements `Storage`."""

    def entries(self, path: str) -> list[tuple[str, int | None]] | None:
        """Entries of a local directory."""
        if not Path(path).is_dir():
            return None
        with os.scandir(path) as found:
            return [(item.name, None if item.is_dir() else item.stat().st_size) for item in found]

    def content(self, path: str) -> bytes | None:
        """Bytes of a local file; None if there is no such file."""
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def matching(self, pattern: str) -> list[str]:
        """Local directories that a pattern stands for."""
        anchor = Path(pattern).anchor
        return sorted(str(path) for path in Path(anchor or ".").glob(pattern[len(anchor) :]) if path.is_dir())

    def open(self, path: str) -> StorageFile:
        """Open a local file, unbuffered."""
        return Path(path).open("rb", buffering=0)


class FsspecStorage:
    """Files of an fsspec file system, read by ranges without read-ahead: the readers ask for whole windows."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def entries(self, path: str) -> list[tuple[str, int | None]] | None:
        """Entries of a directory of the file system, asked anew each time."""
        try:
            found = self._filesystem.ls(path, detail=True, refresh=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        own = self._filesystem._strip_protocol(path).rstrip("/")
        listed = []
        for item in found:
            name = item["name"].rstrip("/")
            if name != own:
                size = None if item["type"] == "directory" else self._size(name, item.get("size"))
                listed.append((name.rpartition("/")[2], size))
        return listed

    def _size(self, path: str, listed: int | None) -> int:
        """Size of a file; asked for if the listing has none, as one of web pages."""
        size = self._filesystem.info(path).get("size") if listed is None else listed
        if size is None:
            raise StoreError(f"{path} cannot be read: its server does not tell its size")
        return int(size)

    def content(self, path: str) -> bytes | None:
        """Bytes of a file; None if there is no such file."""
        try:
            return bytes(self._filesystem.cat_file(path))
        except (FileNotFoundError, IsADirectoryError):
            return None

    def matching(self, pattern: str) -> list[str]:
        """Directories of the file system that a pattern stands for."""
        found = self._filesystem.glob(pattern, detail=True)
        scheme = pattern.partition("://")[0]
        return sorted(f"{scheme}://{name.lstrip('/')}" for name, item in found.items() if item["type"] == "directory")

    def open(self, path: str) -> StorageFile:
        """Open a file without read-ahead."""
        opened: StorageFile = self._filesystem.open(path, "rb", cache_type="none")
        return opened


Options = Mapping[str, Any]
"""Options of fsspec's file system of a scheme: for s3 key, secret, token, endpoint_url, anon, client_kwargs, …"""
_given: dict[str, str] = {}
"""Options that were given for a root, as JSON, by root."""


def use_options(root: str, options: Options) -> None:
    """Set the options with which this process opens the address and all below it; without any, fsspec's own
    configuration counts."""
    key = root.rstrip("/")
    if options:
        _given[key] = json.dumps(options, sort_keys=True)
    else:
        _given.pop(key, None)


def _options_of(path: str) -> str:
    """Options of the longest address that the path is below."""
    while path and path not in _given:
        path = path.rpartition("/")[0]
    return _given.get(path, "{}")


def storage_of(root: str) -> Storage:
    """The storage of a path, by its scheme. UsageError if fsspec, or what it needs for the scheme, is missing."""
    scheme = _SCHEME.match(root)
    if scheme is None or scheme[1] == "file":
        return LocalStorage()
    return _fsspec_storage(root, _options_of(root.rstrip("/")))


@lru_cache(maxsize=64)
def _fsspec_storage(root: str, options: str) -> Storage:
    return FsspecStorage(file_system(root, json.loads(options))[0])


def file_system(address: str, options: Options) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path there. UsageError if a package is missing, or if the scheme does
    not take the address or an option."""
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        extra = "s3" if address.startswith(("s3://", "s3a://")) else "fsspec"
        raise UsageError(f"{address} needs a package: {error}; run `pip install 'rmqha[{extra}]'`") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{address} cannot be opened: {error}") from None
    return filesystem, path


S3A = "fs.s3a."
_S3A_SECRETS = {"access.key": "key", "secret.key": "secret", "session.token": "token"}


def of_s3a(settings: Mapping[str, str]) -> dict[str, Any]:
    """fsspec's options of s3 for Hadoop's settings (fs.s3a.access.key, …secret.key, …session.token, …endpoint,
    …endpoint.region, …path.style.access, …connection.ssl.enabled, and an anonymous credentials provider). The others
    tune Hadoop's own client and mean nothing here."""
    given = {name.lower().removeprefix(S3A): value for name, value in settings.items() if name.lower().startswith(S3A)}
    found: dict[str, Any] = {name: given[key] for key, name in _S3A_SECRETS.items() if given.get(key)}
    endpoint = given.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if given.get('connection.ssl.enabled', '').lower() == 'false' else 'https'}://{endpoint}"
    if endpoint:
        found["endpoint_url"] = endpoint
    if given.get("endpoint.region"):
        found["client_kwargs"] = {"region_name": given["endpoint.region"]}
    if given.get("path.style.access", "").lower() == "true":
        found["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    if "Anonymous" in given.get("aws.credentials.provider", ""):
        found["anon"] = True
    return found


def read_exactly(file: StorageFile, position: int, target: bytearray | memoryview) -> int:
    """Fill `target` with the bytes from `position` on. Returns the number of bytes that were there."""
    done = 0
    if isinstance(file, FileIO) and hasattr(os, "preadv"):
        # of small pieces half the cost is the call
        done = os.preadv(file.fileno(), (target,), position)
        if done == len(target) or not done:
            return done
    view = memoryview(target)
    file.seek(position + done)
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            break
        done += count
    return done


def expect(file: StorageFile, position: int, size: int) -> None:
    """Let the system fetch these bytes of a local file into its cache, without waiting for them."""
    if isinstance(file, FileIO) and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), position, size, os.POSIX_FADV_WILLNEED)
