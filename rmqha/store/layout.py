"""Names in a store's directory, and its lock. Control plane."""

from __future__ import annotations

from collections.abc import Callable

from rmqha.model.error import UsageError
from rmqha.port import Disk
from rmqha.store.index.index import DIRECTORY as INDEX_DIRECTORY
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.meta import epoch_file, identity_file
from rmqha.store.meta.boot_file import ABORT_PATH
from rmqha.store.meta.checkpoint import CHECKPOINT_PATH
from rmqha.store.meta.problem import place, usage_errors
from rmqha.store.queue.batch_consume_queue import DIRECTORY as BATCH_DIRECTORY
from rmqha.store.queue.consume_queue import DIRECTORY as QUEUE_DIRECTORY

LOCK_PATH = "lock"
REPLACED = "replaced-"
OTHERS_DERIVED = ("timerlog", "timerwheel", "compaction")
"""Directories that RocketMQ makes from the log and we do not."""
_MARKS = (LOG_DIRECTORY, CHECKPOINT_PATH, LOCK_PATH, identity_file.PATH, identity_file.PENDING_PATH)
_KNOWN = (
    *_MARKS,
    *OTHERS_DERIVED,
    QUEUE_DIRECTORY,
    BATCH_DIRECTORY,
    INDEX_DIRECTORY,
    ABORT_PATH,
    epoch_file.PATH,
    "config",
    "rocksdbstore",
    "logs",
    "lost+found",
)
"""The last one stands at the root of every new ext4, which may be all the store's."""


def lock(disk: Disk) -> Callable[[], None]:
    """Lock the directory and return the function that unlocks it. Raises UsageError if the directory is foreign, not
    writable or in use."""
    refuse_foreign(disk)
    with usage_errors(disk, LOCK_PATH, "open the store"):
        disk.make_dirs("")
        release = disk.lock(LOCK_PATH)
    if release is None:
        raise UsageError(f"{place(disk, '')} is in use by another process; stop it or set storePathRootDir")
    return release


def refuse_foreign(disk: Disk) -> None:
    """UsageError for a directory that is not empty and no store. Writes nothing."""
    with usage_errors(disk, "", "read the directory"):
        names = disk.list("")
    strange = [name for name in names if name not in _KNOWN and not name.startswith(("rmqha.", REPLACED))]
    if strange and not any(name in _MARKS for name in names):
        raise UsageError(
            f"{place(disk, '')} is not empty and no message store (it holds {strange[0]}); choose another directory"
        )


def next_replaced(disk: Disk) -> str:
    """The first free name of a directory for an old log."""
    names = [name[len(REPLACED) :] for name in disk.list("") if name.startswith(REPLACED)]
    return f"{REPLACED}{1 + max((int(number) for number in names if number.isdigit()), default=0)}"


def set_others_aside(disk: Disk, directory: str) -> None:
    """Move what other programs derive from the log into `directory`."""
    for name in OTHERS_DERIVED:
        if disk.exists(name):
            disk.rename(name, f"{directory}/{name}")
