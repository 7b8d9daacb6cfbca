"""Runs an `rmqha` server whose fdatasync and fsync calls hang for as long as a file is there: FILE and the server's
arguments. A disk whose writes still reach the page cache cannot be made hang from outside, so this one pretends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sync = Callable[[Any], None]
POLL_S = 0.01


def hanging(sync: Sync, flag: Path) -> Sync:
    def call(fd: Any) -> None:
        while flag.exists():
            time.sleep(POLL_S)
        sync(fd)

    return call


def main() -> None:
    flag = Path(sys.argv[1])
    for name in ("fdatasync", "fsync"):
        setattr(os, name, hanging(getattr(os, name), flag))
    sys.argv = ["rmqha", *sys.argv[2:]]
    from rmqha.cli.main import main as rmqha

    rmqha()


if __name__ == "__main__":
    main()
