"""Owners of the TCP listeners of this machine, as /proc tells it; sockets of other users have no known owner."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """A process; `pid` 0 if it cannot be seen."""

    pid: int
    command: tuple[str, ...]

    @property
    def label(self) -> str:
        if not self.pid:
            return "a process of another user"
        return f"pid {self.pid} ({' '.join(self.command)[:60] or 'no command line'})"

    def runs(self, server: str, config: Path | None) -> bool:
        """True if it is this server of ours, with this file."""
        names_file = config is None or any(Path(word).absolute() == config.absolute() for word in self.command)
        return server in self.command and any("rmqha" in word for word in self.command) and names_file


def parse_listeners(text: str) -> list[tuple[int, int]]:
    """(port, inode) of each listening socket in a table of /proc/net."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            found.append((int(fields[1].rpartition(":")[2], 16), int(fields[9])))
    return found


def listening(ports: Collection[int]) -> dict[int, list[SocketOwner]]:
    """The owners of the listening sockets on these ports."""
    inodes: dict[int, int] = {}
    for table in _TABLES:
        if table.exists():
            inodes |= {inode: port for port, inode in parse_listeners(table.read_text()) if port in ports}
    owners = _owners(inodes) if inodes else {}
    found: dict[int, list[SocketOwner]] = {}
    for inode, port in inodes.items():
        owner = owners.get(inode, SocketOwner(0, ()))
        if owner not in found.setdefault(port, []):
            found[port].append(owner)
    return found


def _owners(inodes: Collection[int]) -> dict[int, SocketOwner]:
    found: dict[int, SocketOwner] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        for link in _links(process / "fd"):
            match = _SOCKET.fullmatch(link)
            if match and int(match[1]) in inodes:
                found[int(match[1])] = SocketOwner(int(process.name), command_of(int(process.name)))
    return found


def _links(directory: Path) -> Iterator[str]:
    """Targets of a process's descriptors; none of another user's process or one that has ended."""
    try:
        entries = list(directory.iterdir())
    except OSError:
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:
            continue  # closed meanwhile


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process, () if there is none."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ()
    return tuple(text.rstrip("\0").split("\0"))
