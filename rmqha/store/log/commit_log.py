"""Data plane: the CommitLog, bytes only. What a record is, is the business of its callers.

Offsets are physical and half-open: bytes [min_offset, end_offset) exist. Behind end_offset every file is zero: whoever
cuts the log writes zeros there, durably, so that nothing that was cut can come back (apache/rocketmq 10666).
"""

from __future__ import annotations

import errno
from threading import RLock

from rmqha.model.error import StoreError
from rmqha.model.offset import Buffer
from rmqha.port import Disk
from rmqha.store.log.mapped_file import MappedFile, MappedFiles, file_name
from rmqha.store.log.record import BLANK, BLANK_HEADER_BYTES, MIN_RECORD_BYTES, blank
from rmqha.store.meta import end_mark
from rmqha.store.meta.end_mark import EndMark
from rmqha.store.meta.problem import disk_errors, os_sentence, place

DIRECTORY = "commitlog"
SIZE_KEY = "mappedFileSizeCommitLog"
UNREADABLE = (
    "copy the store to a sound disk, or remove this replica's store and let it copy the group's; without another"
    " replica, what stands from this byte on is lost"
)
_MISSING = "restore it from a backup of this replica, or remove this replica's store and let it copy the group's"


class CommitLog:
    """The log's files and its end.

    With a pool (`pool_bytes` above 0) own appends wait in memory until `commit` writes them with one call, at the
    latest when so many bytes wait. The bytes [end_offset, write_offset) wait: only their writer knows of them, and a
    kill loses them.
    """

    __slots__ = (
        "_active",
        "_active_end",
        "_active_start",
        "_grow",
        "_pool",
        "_pool_bytes",
        "disk",
        "end_offset",
        "files",
        "mark",
        "opened_end",
        "write_offset",
    )

    def __init__(self, disk: Disk, file_size_bytes: int, pool_bytes: int = 0) -> None:
        self.disk = disk
        self.files = MappedFiles(disk, DIRECTORY, file_size_bytes, reserve=True)
        self.mark = EndMark(disk)
        """The end mark: how far the log was written, on disk."""
        self.end_offset = self.write_offset = 0
        self.opened_end = 0
        """End of the log when it was opened: this process has written the rest."""
        self._pool = bytearray()
        self._pool_bytes = pool_bytes
        self._grow = RLock()
        """Held while the run of files changes: the next one is allocated ahead in a thread of its own."""
        self._active: MappedFile | None = None
        self._active_start = 0
        self._active_end = 0

    def load(self) -> list[str]:
        """Find the files. Returns one sentence per finding; raises StoreError with the choices."""
        return self.files.load(SIZE_KEY, _MISSING) + self.mark.load()

    @property
    def short_offset(self) -> int | None:
        """Offset at which the last file had ended before it was completed with zeros, None if it was whole."""
        return self.files.short_offset

    @property
    def min_offset(self) -> int:
        files = self.files.files
        return files[0].start_offset if files else 0

    @property
    def file_size_bytes(self) -> int:
        return self.files.file_size_bytes

    def file_path(self, offset: int) -> str:
        """Path of the file that holds, or would hold, the byte at `offset`."""
        return f"{DIRECTORY}/{file_name(self.file_start(offset))}"

    def file_start(self, offset: int) -> int:
        return offset - (offset - self.min_offset) % self.file_size_bytes

    def end_at(self, end_offset: int) -> None:
        """Set the end after recovery or a cut: what lies behind is zero already. Nothing waits any more."""
        with disk_errors(self.disk, end_mark.PATH, "write the file"):
            self.mark.settle(end_offset)
        self._pool = bytearray()
        self.end_offset = self.write_offset = end_offset
        self._active = self.files.find(end_offset)
        if self._active is not None:
            self._active_start, self._active_end = self._active.start_offset, self._active.end_offset
        else:
            self._active_start = self._active_end = end_offset

    @property
    def is_active_empty(self) -> bool:
        return self.write_offset == self._active_start

    def _following_file(self) -> MappedFile:
        """The file that starts at the end of the active one."""
        with self._grow:
            return self.files.find(self._active_end) or self.files.add(self._active_end)

    def _go_on_in(self, file: MappedFile) -> None:
        self._active = file
        self._active_start, self._active_end = file.start_offset, file.end_offset

    def _left_bytes(self) -> int | None:
        """Bytes for which the last file has room; None without a file."""
        last = self.files.files[-1:]  # one step: a thread may be cutting the log
        return last[0].end_offset - self.end_offset if last else None

    @property
    def is_file_due(self) -> bool:
        """True if `allocate_ahead` would make a file now: the last one is more than half full."""
        left_bytes = self._left_bytes()
        return left_bytes is not None and 2 * left_bytes <= self.file_size_bytes

    @property
    def is_full(self) -> bool:
        """True if the next byte needs a file that is not there."""
        return not self._left_bytes()

    def is_nearly_full(self, record_bytes: int) -> bool:
        """True if an eighth of the active file is left at most, or two records of that size, and there is no next
        one."""
        left_bytes = self._left_bytes()
        if left_bytes is None or not self.is_file_due:
            return False
        return left_bytes <= max(self.file_size_bytes // 8, 2 * record_bytes)

    def allocate_ahead(self, *, first: bool) -> None:
        """Make the next file if one is due, so that no append and no sync has to wait for it; `first`: that of a log
        without files too. For a thread of its own."""
        with self._grow:
            files = self.files.files
            if self.is_file_due:
                self.files.add(files[-1].end_offset)
            elif first and not files:
                self.files.add(self.end_offset)

    def new_log_refusal(self) -> str:
        """The reason why no log can begin anew: its directory cannot be moved, or its first file has no room; "" if one
        can."""
        if self.files.files and self.disk.is_mount_point(DIRECTORY):
            return (
                f"{place(self.disk, DIRECTORY)} is where a disk is mounted, so the old log cannot be set aside: stop"
                " this replica, mount the disk elsewhere, and make a link to a directory of it in that place"
            )
        with disk_errors(self.disk, DIRECTORY, "ask how full the disk is"):
            used_bytes, free_bytes = self.disk.space(DIRECTORY)
        if not used_bytes + free_bytes or free_bytes >= self.file_size_bytes:
            return ""
        error = OSError(errno.ENOSPC, "No space left on device")
        return os_sentence(self.disk, DIRECTORY, f"begin another log by a file of {self.file_size_bytes} bytes", error)

    @property
    def room_end(self) -> int:
        """The highest offset at which a record in the active file may end."""
        return self._active_end - BLANK_HEADER_BYTES

    def room_for(self, size_bytes: int) -> int:
        """The position where a record of `size_bytes` will stand: the end, or the next file's start after a blank
        record that takes the rest of this one. Raises StoreError when the disk is full; nothing has changed then."""
        if self.write_offset + size_bytes + BLANK_HEADER_BYTES <= self._active_end:
            return self.write_offset
        if size_bytes + BLANK_HEADER_BYTES > self.file_size_bytes:
            raise StoreError(
                f"a record of {size_bytes} bytes does not fit a log file of {self.file_size_bytes} bytes;"
                f" send a smaller message or raise {SIZE_KEY} for the whole group"
            )
        self.roll()
        return self.end_offset

    def roll(self) -> None:
        """Go on in the next file, after a blank record that takes the rest of the active one. Raises StoreError when
        the disk is full, OSError when it fails; the log ends where it did then."""
        self.commit()
        active, end = self._active, self._active_end
        following, left = self._following_file(), end - self.end_offset
        if left and active is not None:
            active.region.write(self.end_offset - self._active_start, blank(left))
            self.mark.raise_to(end)
            self.end_offset = self.write_offset = end
        self._go_on_in(following)

    def append(self, data: Buffer) -> None:
        """Append `data` at the end, inside the active file (`room_for` made sure); with a pool it waits in memory.
        After an error nothing of it is appended."""
        if not self._pool_bytes:
            self._write(data)
            return
        self._pool += data
        self.write_offset += len(data)
        if len(self._pool) >= self._pool_bytes:
            try:
                self.commit()
            except BaseException:
                self._pool = self._pool[: -len(data)]
                self.write_offset -= len(data)
                raise

    def _write(self, data: Buffer) -> None:
        active = self._active
        assert active is not None
        end_offset = self.end_offset + len(data)
        active.region.write(self.end_offset - self._active_start, data)
        self.mark.raise_to(end_offset)
        self.end_offset = self.write_offset = end_offset

    def commit(self) -> bool:
        """Write the bytes that wait in memory; True if there were any. After an error all of them still wait; raises
        OSError."""
        if not self._pool:
            return False
        active = self._active
        assert active is not None
        active.region.write(self.end_offset - self._active_start, self._pool)
        self.mark.raise_to(self.write_offset)
        self.end_offset = self.write_offset
        self._pool.clear()
        return True

    def discard(self) -> bool:
        """Drop the bytes that wait in memory; True if there were any."""
        self.write_offset = self.end_offset
        dropped = bool(self._pool)
        self._pool = bytearray()
        return dropped

    def append_raw(self, data: Buffer) -> None:
        """Write bytes that may go on in the next files; they do not wait."""
        assert self.write_offset == self.end_offset, "appends of a master wait, a slave's would overtake them"
        rest = memoryview(data)
        while rest:
            if self.end_offset == self._active_end:
                self._go_on_in(self._following_file())
            size = min(len(rest), self._active_end - self.end_offset)
            self._write(rest[:size])
            rest = rest[size:]

    def view(self, offset: int, limit_bytes: int) -> memoryview:
        """View of at most `limit_bytes` from `offset` on, inside one file and below the end."""
        return self.files.view(offset, min(limit_bytes, self.end_offset - offset))

    def file_view(self, offset: int) -> tuple[memoryview, int, int]:
        """The whole file that holds `offset`, its start, and the index in it where the log ends."""
        file = self.files.find(offset)
        assert file is not None
        end = min(self.end_offset, file.end_offset)
        return file.region.view(0, file.end_offset - file.start_offset), file.start_offset, end - file.start_offset

    def probe(self, from_offset: int, to_offset: int) -> None:
        """Make sure that [from, to) can be read through the mappings. Raises StoreError."""
        for file in self.files.files:
            if file.end_offset > from_offset and file.start_offset < to_offset:
                file.probe(max(from_offset, file.start_offset), to_offset, UNREADABLE)

    def probe_record(self, offset: int) -> None:
        """Make sure that the record at `offset` can be read through the mapping. Raises StoreError."""
        file = self.files.find(offset)
        assert file is not None
        file.probe(offset, offset + MIN_RECORD_BYTES, UNREADABLE)
        if offset + MIN_RECORD_BYTES <= file.end_offset:
            (size_bytes, _) = BLANK.unpack_from(file.region.view(offset - file.start_offset, BLANK.size))
            file.probe(offset, offset + size_bytes, UNREADABLE)

    def cut(self, end_offset: int, used_end: int | None = None) -> int:
        """Remove or zero everything at and behind `end_offset`, durably, and make it the end. `used_end` is where zeros
        begin, if known. Returns the number of bytes that were zeroed or stood in removed files.

        The files behind go first, the last of them first, so that at every moment the log has no hole.
        """
        with self._grow:
            return self._cut(end_offset, used_end)

    def _cut(self, end_offset: int, used_end: int | None) -> int:
        cut = 0
        with disk_errors(self.disk, end_mark.PATH, "write the file"):
            self.mark.lower(end_offset)
        last = self.files.files[-1] if self.files.files else None
        first_removed = self.file_start(end_offset + self.file_size_bytes - 1)
        if first_removed == self.min_offset and last is not None:
            first_removed += self.file_size_bytes  # the first file's name is the log's min: it stays, empty
        cut += self.file_size_bytes * len(self.files.remove_from(first_removed))
        file = self.files.find(end_offset)
        if file is not None:
            used_end = file.used_end(end_offset) if used_end is None else min(used_end, file.end_offset)
            if used_end > end_offset:
                file.zero(end_offset, used_end)
                cut += used_end - end_offset
                file.sync()
        self.end_at(end_offset)
        return cut

    def set_aside(self, directory: str) -> None:
        """Move all files into `directory` and forget them."""
        with self._grow:
            self.mark.lower(0)
            self.files.close()
            if self.files.files or self.files.foreign_files:
                with disk_errors(self.disk, DIRECTORY, "move the old log aside"):
                    self.disk.set_aside(DIRECTORY, f"{directory}/{DIRECTORY}")
            self.files.files.clear()
            self.files.foreign_files.clear()
            self.end_at(0)

    def start_at(self, offset: int) -> None:
        """Begin an empty log at `offset`."""
        with self._grow:
            assert not self.files.files, f"a log that begins at {offset} has files already"
            self.files.add(offset)
            self.end_at(offset)

    def sync(self, from_offset: int, to_offset: int) -> None:
        """Make the bytes [from, to) durable."""
        for file in list(self.files.files):
            if file.end_offset > from_offset and file.start_offset < to_offset:
                file.sync()

    def rewrite(self, from_offset: int, to_offset: int) -> None:
        """Write the bytes [from, to) as they are and make them durable. After a failed sync the system holds pages for
        written that are not: only a page that is written again goes to the disk."""
        for file in list(self.files.files):
            if file.end_offset > from_offset and file.start_offset < to_offset:
                file.rewrite(max(from_offset, file.start_offset), min(to_offset, file.end_offset))
                file.sync()

    def rewrite_behind(self, end_offset: int) -> None:
        """Zero the rest of the file that holds `end_offset`, durably, whatever it shows."""
        file = self.files.find(end_offset)
        if file is not None:
            file.zero(end_offset, file.end_offset)
            file.sync()

    def close(self) -> None:
        with self._grow:
            self._active = None
            self.files.close()
            self.mark.close()
