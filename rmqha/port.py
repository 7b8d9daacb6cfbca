"""The ports: everything that pure code may ask of the world, as Protocols.

Control plane and data plane alike see the clock, the disk, the network and chance only through these types.
`rmqha.host` implements them over trio and the operating system, `rmqha.sim` over one seed, in files of the same names.
All paths are relative to the root that the Disk was opened on and use "/"; sizes and positions are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rmqha.model.epoch import EpochHistory
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset


class Clock(Protocol):
    """Two clocks. Deadlines use the monotonic one; only stamps that are stored or shown use the wall."""

    def now_ms(self) -> int:
        """Monotonic milliseconds since an arbitrary origin."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may step backwards."""
        ...


class Pause(Protocol):
    """A wait between two steps of a request, which holds `size_bytes` of memory meanwhile."""

    @property
    def size_bytes(self) -> int: ...

    def when_over(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, later than in this call; never if the connection was told to have closed before."""
        ...


class Tracer(Protocol):
    """One event per state transition, none per record."""

    def event(self, name: str, **fields: Any) -> None: ...


class Prng(Protocol):
    """Chance from one seed. `child(name)` gives an independent stream, so adding one draw moves no other."""

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        ...

    def chance(self, numerator: int, denominator: int) -> bool: ...

    def child(self, name: str) -> Prng: ...


class MappedRegion(Protocol):
    """One file of fixed size, mapped. Writes are seen by `view` at once and are durable only after `sync`."""

    @property
    def size_bytes(self) -> int: ...

    def write(self, position: int, data: Buffer) -> None:
        """Copy `data` to `position`. The caller keeps inside the region: leaving it is a programming error."""
        ...

    def zero(self, position: int, size_bytes: int) -> None:
        """Write zeros over the range. It needs no blocks, so it succeeds on a full disk where `write` may not."""
        ...

    def write_words(
        self, positions: Sequence[int], words: bytes, put: Callable[[memoryview, Sequence[int], bytes], None]
    ) -> None:
        """Write four bytes at each of many positions, all multiples of four, in this order. `put` does so where the
        file is memory (`IndexKernel.put_words`)."""
        ...

    def view(self, position: int, size_bytes: int) -> memoryview:
        """The bytes themselves, not a copy. A view that is held outlives `close` and the file's removal."""
        ...

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Ranges, from `position` on, where other bytes than zero may stand: rising half-open ranges. A file that was
        only reserved need not be read to know that it is empty."""
        ...

    def probe(self, position: int, size_bytes: int) -> int:
        """Read the first piece of a range as a file, not through the mapping; how many bytes that was, at least one.
        Raises OSError (EIO) if the byte at `position` cannot be read: through a view that would end the process."""
        ...

    def is_in_memory(self, position: int, size_bytes: int) -> bool:
        """True if a look at the range waits for no disk, as far as its first and its last byte tell."""
        ...

    def loader(self, position: int, size_bytes: int) -> Callable[[], None]:
        """A function for another thread that reads the range into memory. It may be called after `close`. It raises
        OSError for what the disk cannot read."""
        ...

    def sync(self) -> None:
        """Return when every write made before the call is durable. Blocks; raises OSError from the disk.
        May be called from another thread than the writes."""
        ...

    def close(self) -> bool:
        """Give the file up. False while somebody still holds a view: its bytes stay until that is dropped, and `close`
        may be called again to see whether it is."""
        ...


class AppendFile(Protocol):
    """A file that grows at its end."""

    @property
    def size_bytes(self) -> int: ...

    def append(self, data: Buffer) -> None: ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree. Everything raises OSError (with errno, e.g. ENOSPC, EACCES) as the system would.

    `write_atomic`, `rename`, `remove` and `create` are durable when they return: they sync the file and its directory.
    """

    @property
    def label(self) -> str:
        """The name of the root in a sentence to the user (an absolute path on the host)."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; [] if there is none."""
        ...

    def size_bytes(self, path: str) -> int: ...

    def modified_at_ms(self, path: str) -> int: ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace or create the file so that a crash leaves the old or the new content whole, never a mixture."""
        ...

    def map(
        self, path: str, size_bytes: int, *, create: bool = False, reserve: bool = True, durable: bool = True
    ) -> MappedRegion:
        """Map a file. With `create` a missing file is made, zero-filled, its blocks reserved; without, it must exist.
        A file shorter than `size_bytes` is extended with zeros, a longer one is an error (ValueError).
        Without `reserve` blocks are reserved in steps as writes reach them: then `write` may raise ENOSPC.
        Without `durable` a file that is made here may be missing or shorter after a loss of power until the region's
        first `sync`: nothing waits for the disk."""
        ...

    def open_append(self, path: str) -> AppendFile: ...

    def rename(self, old_path: str, new_path: str) -> None: ...

    def set_aside(self, path: str, new_path: str) -> None:
        """Move a directory, for another one that will be made in its place. Where it is a link to a directory of
        another disk, the new one is there too, and the link's new name leads to the old one."""
        ...

    def is_mount_point(self, path: str) -> bool:
        """True for a directory that cannot be moved, since another file system begins there."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all that is in it: a crash leaves it or nothing of it under that name. Nothing to do
        if it is not there."""
        ...

    def make_dirs(self, path: str) -> None: ...

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take the exclusive fcntl lock on byte 0 of `path` (ruling 22). Returns the release function, None if held
        elsewhere."""
        ...

    def space(self, path: str = "") -> tuple[int, int]:
        """(used, free) bytes of the file system that `path` lies on, or will, as an unprivileged user may use it."""
        ...

    def boot_id(self) -> str:
        """The kernel's boot id: it changes at every power loss or reboot (ruling 3); "" where the system hides it."""
        ...


class ReadFile(Protocol):
    """A file opened for reading. Nothing is mapped: a bad sector, or a file that another process cuts short, is an
    OSError or a short answer and not a signal."""

    @property
    def size_bytes(self) -> int:
        """Size of the file as it was when it was opened."""
        ...

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Fewer bytes than asked for only at the end of the file."""
        ...

    def close(self) -> None: ...


class ReadDisk(Protocol):
    """A directory tree that is only looked at: it may belong to a running broker. Everything raises OSError."""

    @property
    def label(self) -> str:
        """The name of the root in a sentence to the user."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; [] if there is none."""
        ...

    def open_read(self, path: str) -> ReadFile: ...

    def read(self, path: str, limit_bytes: int) -> bytes:
        """The first `limit_bytes` of a file."""
        ...

    def is_locked(self, path: str) -> bool:
        """True if another process holds the lock that `Disk.lock` takes; takes and makes nothing."""
        ...


class ReplicaLog(Protocol):
    """The part of the replica's store that `rmqha.ha` needs; `rmqha.store.store.Store` implements it.

    Offsets are physical and half-open: bytes [min_phy_offset, max_phy_offset) exist. Every method that changes
    metadata (truncate, append_epoch, accept_epoch, restart_at) is durable when it returns.
    """

    @property
    def min_phy_offset(self) -> PhyOffset: ...

    @property
    def max_phy_offset(self) -> PhyOffset: ...

    @property
    def synced_offset(self) -> PhyOffset:
        """Bytes below it are on stable storage. Moves when the shell's flusher reports, never above max."""
        ...

    @property
    def confirm_offset(self) -> PhyOffset:
        """Committed end: the limit of dispatch and so of what consumers see."""
        ...

    @property
    def confirmed_record_end(self) -> PhyOffset:
        """End of the last whole record at or below the confirm offset, which may lie inside one: slaves acknowledge
        bytes as they come. Nothing beyond it was acknowledged or seen. Raises StoreError."""
        ...

    @property
    def dispatched_offset(self) -> PhyOffset:
        """Records below it are in the ConsumeQueues."""
        ...

    @property
    def record_end_offset(self) -> PhyOffset:
        """End of the last whole record: below max_phy_offset after `append_raw` ended inside one. A new master cuts
        the log there before it takes its epoch's start, for nobody will send the rest."""
        ...

    @property
    def epochs(self) -> EpochHistory: ...

    @property
    def highest_epoch(self) -> Epoch:
        """Highest master epoch ever accepted, from its sidecar (ruling 4); 0 if none."""
        ...

    @property
    def unclean(self) -> bool:
        """True after an unclean boot until `mark_clean` (ruling 3)."""
        ...

    @property
    def lacks_queue_ends(self) -> bool:
        """True after `restart_at` behind 0, until the master has told where the queues end: as master this replica
        would give the offsets of idle queues again."""
        ...

    def append_raw(self, phy_offset: PhyOffset, data: Buffer) -> str:
        """Append a master's bytes; `phy_offset` must equal max_phy_offset. `data` may end inside a record and may span
        two files. "", and max_phy_offset moves by len(data); or what is wrong with a record: the log then ends where
        that one would begin. Raises NoRoomError if there is no room for the next file: what fits the last is
        appended."""
        ...

    def room_refusal(self, *, anew: bool = False) -> str:
        """The reason why not one more byte can be appended, "" if it may be; `anew`: after `restart_at`. It changes
        when the disk has room."""
        ...

    def view(self, phy_offset: PhyOffset, limit_bytes: int) -> memoryview:
        """View of at most `limit_bytes` from `phy_offset`, inside one mapped file and below max_phy_offset; empty at
        the end."""
        ...

    def truncate(self, end_offset: PhyOffset) -> None:
        """Cut the log, everything derived from it and the epoch history to `end_offset`, durably (ruling on issue
        10666: no byte past the cut can come back). Lowers confirm, synced and dispatched offsets to it if higher.
        `end_offset` must be a record boundary within [min, max]. A log without any byte left has no epochs either."""
        ...

    def restart_at(self, phy_offset: PhyOffset) -> None:
        """Case 1-1: set the old files aside and start an empty log at `phy_offset`."""
        ...

    def append_epoch(self, epoch: Epoch, start_offset: PhyOffset) -> bool:
        """Add an epoch entry; False (and nothing done) unless both numbers exceed those of the last entry."""
        ...

    def clear_epochs(self) -> None:
        """Forget all entries, durably: those of a log without bytes whose master knows others."""
        ...

    def accept_epoch(self, epoch: Epoch) -> None:
        """Raise the sidecar of the highest accepted epoch; a lower or equal value does nothing. Raises StoreError if it
        is not durable."""
        ...

    def set_confirm_offset(self, offset: PhyOffset) -> None:
        """Record the committed end, clamped to [min, max]. May move down (a slave after truncation)."""
        ...

    def dispatch(self, limit_bytes: int) -> bool:
        """Put records below the confirm offset into the ConsumeQueues, about `limit_bytes` of log at a time.
        True if more remains."""
        ...

    def mark_unclean(self) -> None:
        """This replica gives up bytes that it may have acknowledged (a full copy begins): as after an unclean boot,
        durably, until `mark_clean`."""
        ...

    def mark_clean(self) -> None:
        """The replica has followed a master to its end (or an operator insisted): clear `unclean` durably."""
        ...


class LogWriter(Protocol):
    """Makes durable changes of the log so that a disk that hangs holds nobody but the replica's machine."""

    def write(self, work: Callable[[], None]) -> bool:
        """True if `work` has been done; what it raises is raised. False if it is being done in a thread: the machine's
        `log_written` follows, and nothing else reads or changes the log until then."""
        ...


class IdentityStore(Protocol):
    """The controller-issued id on disk, applied for in two phases: `begin` before the controller is asked to apply
    the id, `confirm` once it has. Each is durable when it returns."""

    def broker_id(self) -> BrokerId | None:
        """The confirmed id, None before the first confirm."""
        ...

    def pending(self) -> tuple[BrokerId, str] | None:
        """(id, check code) of an application whose outcome is unknown."""
        ...

    def begin(self, broker_id: BrokerId, check_code: str) -> None: ...

    def confirm(self) -> None: ...

    def abandon(self) -> None:
        """Forget a pending application that the controller refused."""
        ...
