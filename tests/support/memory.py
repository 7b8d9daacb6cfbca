"""Memory of a process."""

from __future__ import annotations

from pathlib import Path


def anonymous_rss_bytes(pid: int) -> int | None:
    """RssAnon: resident memory without mapped files, "idle memory" in our figures. None without such a process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None
