"""The file system that a directory lies on, as the kernel tells it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs", "devtmpfs")
ESCAPED = re.compile(r"\\([0-7]{3})")
"""Pattern of an escaped character: the kernel escapes only a space, tab, line feed or backslash of a name."""
ON_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "9p", "afs", "lustre")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system. `kind`: its name, "?" if the kernel does not tell it."""

    point: str
    kind: str
    read_only: bool

    @property
    def in_memory(self) -> bool:
        return self.kind in IN_MEMORY

    @property
    def on_network(self) -> bool:
        return self.kind in ON_NETWORK or self.kind.startswith("fuse")


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def parse_mounts(text: str) -> list[Mount]:
    """Lines of /proc/self/mountinfo, in the order in which they were mounted."""
    found = []
    for line in text.split("\n"):
        head, _, tail = line.partition(" - ")
        fields, rest = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        options = {*fields[5].split(","), *rest[2].split(",")}
        found.append(Mount(point, rest[0], "ro" in options))
    return found


def mount_of(path: Path) -> Mount:
    """The mount that `path` lies on, or will."""
    try:
        mounts = parse_mounts(os.fsdecode(MOUNTS.read_bytes()))
    except OSError:
        mounts = []
    place = existing(path).resolve()
    best = Mount("/", "?", False)
    for mount in mounts:
        # of two mounts at one place the later one is seen
        if place.is_relative_to(mount.point) and len(mount.point) >= len(best.point):
            best = mount
    return best
