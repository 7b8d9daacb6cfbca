"""The epoch history on disk: RocketMQ's text file, its `.bak`, and beside it our checksum and our copy. Control plane.

Source: formats.md §7 (epochFileCheckpoint). Line 1 is the number of entries, line 2 a CRC-32 over the entry lines
(0 = do not check), then `epoch-startOffset` per line. `.bak` is the file as it was before the newest entry, or it is
missing. It cannot stand in for a damaged file: without the newest entry the one before it seems to go on to the log's
end, and a handshake would leave bytes that another master wrote. It is used only if the file is missing, as after a
crash in `append`.

`rmqha.epochs` holds the same entries as the file. It is written before it, so it lacks none, unless another program
has written the file since: then `.bak` is no shorter than the copy. An appended entry costs five syncs: two for the
copy, one for the old file's new name, two for the new file.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import StoreError
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.port import Disk
from rmqha.store.meta import sidecar
from rmqha.store.meta.problem import damaged, disk_errors, place

PATH = "epochFileCheckpoint"
BACKUP_PATH = "epochFileCheckpoint.bak"
CHECKSUM_PATH = "rmqha.epochChecksum"
COPY_PATH = "rmqha.epochs"
MAX_NUMBER = 2**63 - 1
_CHOICES = (
    "restore it from a backup of this replica, or remove the whole store of this replica and let it copy the group's;"
    " where no other replica is left, rmqha fsck --repair takes the older one"
)


class BadEpochFileError(Exception):
    """The bytes are no epoch file. `at` is the byte, the text says what was expected and found."""

    def __init__(self, at: int, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.at = at
        self.expected = expected
        self.found = found


def encode(history: EpochHistory) -> bytes:
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in history).encode()
    return b"%d\n%d\n" % (len(history), crc32(lines) & 0x7FFFFFFF) + lines


def parse(data: bytes) -> EpochHistory:
    """Strict in everything but a checksum of 0, which means none. Raises BadEpochFileError."""
    lines = data.split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    if len(lines) < 3 or lines[-1] != b"":
        raise BadEpochFileError(len(data), "a count, a checksum and the entries, each ended by a newline", "the end")
    count, checksum = _number(lines[0], 0, "the number of entries"), _number(lines[1], starts[1], "a checksum")
    entry_lines = lines[2:-1]
    if len(entry_lines) != count:
        raise BadEpochFileError(0, f"{count} entries", f"{len(entry_lines)}")
    found = crc32(data[starts[2] :]) & 0x7FFFFFFF
    if checksum not in (0, found):
        raise BadEpochFileError(starts[1], f"entries with checksum {checksum}", f"entries with checksum {found}")
    entries: list[EpochEntry] = []
    for line, at in zip(entry_lines, starts[2:], strict=False):
        epoch, dash, start = line.partition(b"-")
        if not dash:
            raise BadEpochFileError(at, "epoch-startOffset", _shown(line))
        entry = EpochEntry(
            Epoch(_number(epoch, at, "an epoch")),
            PhyOffset(_number(start, at + len(epoch) + 1, "a start offset")),
        )
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset):
            raise BadEpochFileError(at, f"more than {entries[-1].epoch}-{entries[-1].start_offset}", _shown(line))
        entries.append(entry)
    return EpochHistory(entries)


def _checksum_of(data: bytes) -> int:
    return int(data.split(b"\n")[1])


def _number(text: bytes, at: int, what: str) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > MAX_NUMBER:
        raise BadEpochFileError(at, what, _shown(text))
    return int(text)


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("ascii", "backslashreplace"))


def decode_copy(fields: dict[str, Any]) -> EpochHistory:
    """Content of `rmqha.epochs`. Raises BadSidecarError."""
    entries = fields.get("entries")
    if not isinstance(entries, list):
        raise sidecar.BadSidecarError(f"expected entries, found {type(entries).__name__}")
    found: list[EpochEntry] = []
    for entry in entries:
        match entry:
            case [int(epoch), int(start)] if not found or (epoch > found[-1].epoch and start > found[-1].start_offset):
                found.append(EpochEntry(Epoch(epoch), PhyOffset(start)))
            case _:
                raise sidecar.BadSidecarError(f"expected a later epoch with its start, found {entry!r}")
    return EpochHistory(found)


def is_newer(copy: EpochHistory, backup: bytes | None) -> bool:
    """True if `backup` is what we have left of the history before the newest entry of `copy`: no other program has
    added one since."""
    try:
        return backup is None or list(parse(backup)) == list(copy)[:-1]
    except BadEpochFileError:
        return False


class EpochFile:
    """The history of this replica, durable whenever a method returns."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._has_checksum = False
        self.history = EpochHistory()

    def load(self, max_phy_offset: int, *, is_foreign: bool = False) -> list[str]:
        """Read the file, our copy if it is damaged or missing, or `.bak` if there is no copy, a crash has left no file,
        and `.bak` fits a log that ends at `max_phy_offset`. `is_foreign`: another program has used the store since,
        and our copy may be older.

        Returns one sentence per finding; raises StoreError with the choices if neither can be used.
        """
        self._has_checksum = self._read(CHECKSUM_PATH) is not None
        data = self._read(PATH)
        if data is None:
            return self._fall_back(BadEpochFileError(0, "a file", "none"), max_phy_offset, is_foreign)
        lines: list[str] = []
        try:
            self.history = parse(data)
            if not self._checksum_holds(data, lines):
                raise BadEpochFileError(0, f"the bytes that {CHECKSUM_PATH} was made for", "others")
        except BadEpochFileError as error:
            return lines + self._fall_back(error, max_phy_offset, is_foreign)
        if self.history and self._copy(lines) != self.history:
            self._write_copy(self.history)
        return lines

    def _copy(self, lines: list[str]) -> EpochHistory | None:
        """The history of our copy; None if there is none that can be read."""
        try:
            fields = sidecar.read(self._disk, COPY_PATH)
            return None if fields is None else decode_copy(fields)
        except sidecar.BadSidecarError as error:
            lines.append(f"{COPY_PATH}: {error}; it is made anew from {PATH}.")
            return None

    def _write_copy(self, history: EpochHistory) -> None:
        entries = [[entry.epoch, entry.start_offset] for entry in history]
        sidecar.write(self._disk, COPY_PATH, {"entries": entries})

    def _read(self, path: str) -> bytes | None:
        with disk_errors(self._disk, path, "read the file"):
            return self._disk.read(path) if self._disk.exists(path) else None

    def _checksum_holds(self, data: bytes, lines: list[str]) -> bool:
        """True unless the file has no checksum of its own and ours denies it."""
        if _checksum_of(data) != 0:
            return True
        try:
            fields = sidecar.read(self._disk, CHECKSUM_PATH)
            return fields is None or sidecar.number(fields, "crc32") == crc32(data)
        except sidecar.BadSidecarError as error:
            lines.append(f"{CHECKSUM_PATH}: {error}; {PATH} was read without it.")
            return True

    def _fall_back(self, error: BadEpochFileError, max_phy_offset: int, is_foreign: bool) -> list[str]:
        lines: list[str] = []
        data = self._read(BACKUP_PATH)
        copy = None if is_foreign else self._copy(lines)
        if copy is not None and not is_newer(copy, data):
            copy = None
        missing = error.found == "none" and error.expected == "a file"
        if copy is not None:
            self._write(copy)
            return [*lines, f"{PATH} at byte {error.at}: {error}; {COPY_PATH} with {len(copy)} entries was taken."]
        if data is None and missing:
            self.history = EpochHistory()
            return lines
        try:
            if data is None:
                raise BadEpochFileError(0, "a file", "none")
            if not missing:
                raise BadEpochFileError(0, "the newest entry", "those before it")
            history = parse(data)
            last = history.last
            if last is not None and last.start_offset > max_phy_offset:
                raise BadEpochFileError(0, f"epochs that start up to {max_phy_offset}", f"{last.start_offset}")
        except BadEpochFileError as second:
            choices = f"{BACKUP_PATH} cannot stand in ({second}); {_CHOICES}"
            raise damaged(self._disk, PATH, error.at, error.expected, error.found, choices) from None
        self._write(history)
        return [
            *lines,
            f"{PATH} at byte {error.at}: {error}; {BACKUP_PATH} with {len(history)} entries was taken instead.",
        ]

    def _write(self, history: EpochHistory) -> None:
        """Replace the file. Our checksum is kept only where RocketMQ's says nothing."""
        self._write_copy(history)
        self._write_main(history)

    def _write_main(self, history: EpochHistory) -> None:
        data = encode(history)
        with disk_errors(self._disk, PATH, "write the file"):
            self._disk.write_atomic(PATH, data)
        if _checksum_of(data) == 0:
            sidecar.write(self._disk, CHECKSUM_PATH, {"crc32": crc32(data)})
        elif self._has_checksum:
            with disk_errors(self._disk, CHECKSUM_PATH, "remove the file"):
                self._disk.remove(CHECKSUM_PATH)
        self._has_checksum = _checksum_of(data) == 0
        self.history = history

    def append(self, entry: EpochEntry) -> bool:
        """Append an entry; False, and nothing done, unless both its numbers exceed those of the last entry."""
        history = self.history.appended(entry)
        if history is None:
            return False
        self._write_copy(history)
        with disk_errors(self._disk, BACKUP_PATH, "keep the old file"):
            if self._disk.exists(PATH):
                self._disk.rename(PATH, BACKUP_PATH)
        self._write_main(history)
        return True

    def replace(self, history: EpochHistory) -> None:
        """Replace all entries by others of the same log. The old ones do not stay as a backup: they may contradict
        these."""
        with disk_errors(self._disk, BACKUP_PATH, "remove the file"):
            if self._disk.exists(BACKUP_PATH):
                self._disk.remove(BACKUP_PATH)
        self._write(history)

    def rewrite(self) -> None:
        """Make durable what was read: a sync may have failed on it."""
        if self.history or self._disk.exists(PATH):
            self._write(self.history)

    def truncate(self, end_offset: PhyOffset) -> int:
        """Drop the entries that start at or behind `end_offset`. Returns how many."""
        return self._shorten(self.history.truncated(end_offset))

    def drop_beyond(self, end_offset: PhyOffset) -> int:
        """Drop the entries that start behind the log's end; one that starts right there is legal. Returns how many."""
        return self._shorten(self.history.truncated(PhyOffset(end_offset + 1)))

    def drop_below(self, start_offset: PhyOffset) -> int:
        """Drop the entries that end before the log's start. Returns how many."""
        return self._shorten(self.history.trimmed(start_offset))

    def clear(self) -> int:
        """Drop all entries. Returns how many."""
        return self._shorten(EpochHistory())

    def _shorten(self, history: EpochHistory) -> int:
        dropped = len(self.history) - len(history)
        if dropped:
            with disk_errors(self._disk, BACKUP_PATH, "remove the file"):
                if self._disk.exists(BACKUP_PATH):
                    self._disk.remove(BACKUP_PATH)
            self._write(history)
        return dropped


class HighestEpochFile:
    """The highest master epoch this replica has accepted (ruling 4)."""

    PATH = "rmqha.highestEpoch"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.value = Epoch(0)

    def load(self) -> None:
        """Read the epoch. Raises StoreError if the file is damaged: a guess could let an old master's bytes in."""
        try:
            fields = sidecar.read(self._disk, self.PATH)
            self.value = Epoch(sidecar.number(fields, "highest_epoch") if fields is not None else 0)
        except sidecar.BadSidecarError as error:
            raise StoreError(
                f"{place(self._disk, self.PATH)} at byte 0: {error}; restore it from a backup of this replica,"
                " or remove it if the group's master is known to be the newest"
            ) from None

    def rewrite(self) -> None:
        """Make durable what was read: a sync may have failed on it."""
        if self.value:
            sidecar.write(self._disk, self.PATH, {"highest_epoch": self.value})

    def raise_to(self, epoch: Epoch) -> None:
        """Set the epoch if it is higher than the present one. Durable on return."""
        if epoch > self.value:
            sidecar.write(self._disk, self.PATH, {"highest_epoch": epoch})
            self.value = epoch
