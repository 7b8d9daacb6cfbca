"""A Python that was built for systems of 2013 (glibc 2.17, Linux 3.10), as uv's and conda's are, so that they run
everywhere. What came later it lacks, whatever system it runs on. Run as `sitecustomize` it makes a process such a one.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from typing import Any

LACKING: dict[Any, tuple[str, ...]] = {
    os: (
        "RWF_APPEND",
        "RWF_DSYNC",
        "RWF_HIPRI",
        "RWF_NOWAIT",
        "RWF_SYNC",
        "copy_file_range",
        "memfd_create",
        "pidfd_open",
    ),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"),
    signal: ("pidfd_send_signal",),
}


def make_old(delete: Callable[[Any, str], None], put: Callable[[Any, str, Any], None]) -> None:
    """`delete` and `put` are delattr and setattr, or those of a monkeypatch."""
    for module, names in LACKING.items():
        for name in names:
            if hasattr(module, name):
                delete(module, name)
    put(os, "preadv", _without("flags", os.preadv, 3))
    put(os, "pwritev", _without("flags", os.pwritev, 3))
    put(os, "posix_spawn", _without("setsid", os.posix_spawn, 3))


def _without(argument: str, call: Callable[..., Any], known_count: int) -> Callable[..., Any]:
    """The call as it is where the system's lacks this argument: an optional one, or a keyword."""

    def called(*given: Any, **named: Any) -> Any:
        if any(given[known_count:]) or named.get(argument):
            raise NotImplementedError(f"{call.__name__}: {argument} unavailable on this platform")
        return call(*given[:known_count], **{key: value for key, value in named.items() if key != argument})

    return called


if __name__ == "sitecustomize":
    make_old(delattr, setattr)
