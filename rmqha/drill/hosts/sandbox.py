"""Namespaces of this process's own: mounts and networks that no other process sees, and that end with it.

A user who is not root becomes root inside a user namespace, where the kernel allows that.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
from pathlib import Path

from rmqha.drill.error import FaultUnavailableError

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _failed(what: str) -> FaultUnavailableError:
    number = ctypes.get_errno()
    return FaultUnavailableError(
        f"{what} is not permitted here ({os.strerror(number)}); run it as root, or where user namespaces are allowed"
    )


def enter_own(*, network: bool = False) -> None:
    """Move this process into a mount namespace of its own; it must have one thread. With `network` it may make network
    namespaces afterwards, and must not count on its own loopback. Raises FaultUnavailableError."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc().unshare(CLONE_NEWNS):
        if _libc().unshare(CLONE_NEWUSER | CLONE_NEWNS | (CLONE_NEWNET if network else 0)):
            raise _failed("a mount namespace")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if _libc().mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise _failed("a private mount tree")


def mount_tmpfs(place: Path, size_bytes: int) -> None:
    """Mount an empty tmpfs of that size at `place`, which is made. Only after `enter_own`. Raises
    FaultUnavailableError."""
    place.mkdir(parents=True, exist_ok=True)
    if _libc().mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size_bytes},mode=0755".encode()):
        raise _failed(f"mounting a file system at {place}")


def mount_image(place: Path, image: Path, size_bytes: int) -> None:
    """Mount an empty ext4, which is in the file `image` and can be frozen, at `place`. Only after `enter_own`, only for
    root. Raises FaultUnavailableError."""
    place.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            words = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            said = next(iter(words.strip().splitlines()), "it said nothing")
            raise FaultUnavailableError(f"`{' '.join(command)}` failed, so no disk can be made here: {said}") from None


def set_frozen(place: Path, frozen: bool) -> None:
    """Freeze or thaw the file system at `place`: writes wait until it is thawed; reads go on. Raises
    FaultUnavailableError."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(handle, FIFREEZE if frozen else FITHAW, 0)
    except OSError as error:
        raise FaultUnavailableError(f"{place} cannot be {'frozen' if frozen else 'thawed'}: {error.strerror}") from None
    finally:
        os.close(handle)


def cover_read_only(place: Path) -> None:
    """Make paths below `place` read-only; open files stay writable. Raises FaultUnavailableError."""
    target = os.fsencode(place)
    if _libc().mount(target, target, None, MS_BIND, None):
        raise _failed(f"covering {place}")
    if _libc().mount(b"none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY, None):
        raise _failed(f"making {place} read-only")


def uncover(place: Path) -> None:
    """Unmount the topmost mount at `place`, though files of it may be open. Raises FaultUnavailableError."""
    if _libc().umount2(os.fsencode(place), MNT_DETACH):
        raise _failed(f"unmounting {place}")
