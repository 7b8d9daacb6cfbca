"""Runs an `rmqha` server on a device that remembers what it has really made durable: DIRECTORY, the server's arguments.

Each sync of a file of the store keeps its content in DIRECTORY, each sync of a folder the names in it. While a file
`lies` is there the device says that it has synced, and keeps nothing. `cut_power` gives the store of a dead server what
the device had kept, and another boot id.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

Sync = Callable[[Any], None]
LIES, BOOT_ID, FILES, FOLDERS = "lies", "boot_id", "files", "folders"
STORE, LOG = "store", "commitlog"


def keep_file(device: Path, path: Path) -> None:
    """By its inode: it keeps its content under another name."""
    kept = device / FILES / str(path.stat().st_ino)
    part = kept.with_suffix(f".{threading.get_native_id()}")
    shutil.copyfile(path, part)
    part.replace(kept)


def keep_names(device: Path, folder: Path) -> None:
    names = {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file()}
    kept = device / FOLDERS / str(folder).replace("/", "%")
    part = kept.with_suffix(f".{threading.get_native_id()}")
    part.write_text(json.dumps(names))
    part.replace(kept)


def keeping(sync: Sync, device: Path) -> Sync:
    def call(fd: Any) -> None:
        sync(fd)
        path = Path(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}").readlink()
        if STORE in path.parts and not (device / LIES).exists():
            if path.is_dir():
                keep_names(device, path)
            elif path.is_file():
                keep_file(device, path)

    return call


def prepare_device(device: Path) -> None:
    for folder in (FILES, FOLDERS):
        (device / folder).mkdir(parents=True, exist_ok=True)
    if not (device / BOOT_ID).exists():
        (device / BOOT_ID).write_text("boot-0")


def cut_power(device: Path, store: Path) -> int:
    """Of a server that is dead. How many bytes of its log it had written and the device had not kept."""
    before = log_bytes(store)
    found = [path for path in store.rglob("*") if path.is_file()]
    content = {path.name: path.read_bytes() for path in (device / FILES).iterdir()}
    names: dict[Path, int] = {}
    for listing in (device / FOLDERS).iterdir():
        folder = Path(listing.name.replace("%", "/"))
        names |= {folder / name: inode for name, inode in json.loads(listing.read_text()).items()}
    for path in found:
        path.unlink()
    for path, inode in names.items():
        if str(inode) in content:
            path.write_bytes(content[str(inode)])
    for kept in (device / FILES).iterdir():
        kept.unlink()
    for path in names:
        if path.exists():
            keep_file(device, path)
    for folder in {path.parent for path in names}:
        keep_names(device, folder)
    boot_id = device / BOOT_ID
    boot_id.write_text(f"boot-{int(boot_id.read_text().partition('-')[2]) + 1}")
    return before - log_bytes(store)


def log_bytes(store: Path) -> int:
    """Written ones: behind them a file of the log holds zeros."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in (store / LOG).iterdir())


def main() -> None:
    device = Path(sys.argv[1])
    prepare_device(device)
    sys.argv = ["rmqha", *sys.argv[2:]]
    with (
        patch.object(os, "fdatasync", keeping(os.fdatasync, device)),
        patch.object(os, "fsync", keeping(os.fsync, device)),
        patch("rmqha.host.disk._BOOT_ID", device / BOOT_ID),
    ):
        from rmqha.cli.main import main as rmqha

        rmqha()


if __name__ == "__main__":
    main()
