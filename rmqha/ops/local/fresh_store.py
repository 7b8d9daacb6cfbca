"""A broker's store moved aside whole, and an empty one in its place. Control plane.

DIR/store.fork-<n>   the old store
DIR/.store.fresh     the new one, until the old one has gone

Where the log is a link to another disk, the new one's is a link to a new directory there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rmqha.host.disk import directory_beside, make_directories, sync_directory
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY

KEPT_FILES = ("brokerIdentity", "rmqha.highestEpoch")
"""Files that are copied to the new store: the replica keeps its id, and the highest epoch that it has accepted."""


def put_aside(store: Path, number: int) -> Path:
    """Move the store aside and return its new path. A kill at any moment leaves the old store in its place, or a state
    that `finish_putting_aside` completes."""
    aside, fresh = store.with_name(f"{store.name}.fork-{number}"), _fresh(store)
    shutil.rmtree(fresh, ignore_errors=True)
    make_directories(fresh)
    for name in KEPT_FILES:
        if (store / name).exists():
            shutil.copy2(store / name, fresh / name)
            with (fresh / name).open("rb") as copied:
                os.fsync(copied.fileno())
    log = store / LOG_DIRECTORY
    if log.is_symlink() and log.is_dir():
        (fresh / LOG_DIRECTORY).symlink_to(directory_beside(log.resolve()))
    sync_directory(fresh)
    sync_directory(store.parent)
    store.rename(aside)
    sync_directory(store.parent)
    finish_putting_aside(store)
    return aside


def finish_putting_aside(store: Path) -> bool:
    """Put the new store in its place if a kill has left none there. False if there is nothing to finish."""
    if store.exists() or not _fresh(store).is_dir():
        return False
    _fresh(store).rename(store)
    sync_directory(store.parent)
    return True


def _fresh(store: Path) -> Path:
    return store.with_name(f".{store.name}.fresh")
