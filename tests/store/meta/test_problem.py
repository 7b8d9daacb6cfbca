"""What a disk refuses becomes one sentence that says what to do."""

from __future__ import annotations

import errno
import os

import pytest

from rmqha.store.meta.problem import os_sentence
from tests.store.support import sim_disk


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space on that disk"),
        (errno.ENFILE, "raise the machine's limit of open files (sysctl fs.file-max)"),
        (errno.ENOMEM, "raise the limits of memory (ulimit -v) and of mapped files (sysctl vm.max_map_count)"),
        (errno.EFBIG, "raise the limit of a file's size (ulimit -f, or LimitFSIZE of its unit)"),
        (errno.ENODEV, "choose a directory on a file system that can map files"),
        (errno.ENOLCK, "choose a directory on a file system that can lock files"),
        (errno.EBUSY, "look at the disk and try again"),
    ],
)
def test_what_to_do(number: int, advice: str) -> None:
    error = OSError(number, os.strerror(number))
    told = os_sentence(sim_disk(), "commitlog/0", "create or map a file of 64 bytes", error)
    assert told == f"sim/commitlog/0: cannot create or map a file of 64 bytes: {os.strerror(number)}; {advice}"
