"""Control plane: a check that the members of a stopped group hold the same log, so that the group may become static or
get a controller without a loss. Offline; only `give_epochs` writes.

The longest log is the reference: every record of it is checked by its CRC, and the others are compared with it byte for
byte, from where all of them begin to where each ends. Bytes behind a blank record's header have no meaning and are not
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rmqha.inspect.epoch_comparison import ReplicaHistory, compare, read_history
from rmqha.inspect.log_reader import WINDOW_BYTES, LogReader, StopReason
from rmqha.inspect.store_inspection import StoreInspection, inspect_store, read_or_empty
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.offset import Epoch, PhyOffset
from rmqha.port import Disk, ReadDisk
from rmqha.store.layout import lock
from rmqha.store.log.record import BLANK_HEADER_BYTES, verify
from rmqha.store.meta import sidecar
from rmqha.store.meta.boot_file import PATH as BOOT_PATH
from rmqha.store.meta.config_file import unreadable_tables
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.meta.identity_file import PATH as IDENTITY_PATH

SIDECAR_LIMIT_BYTES = 4096
Progress = Callable[[int, int], None]
"""Callback with the bytes that are done, and those in all."""


class MigrationTarget(Enum):
    CONTROLLER = "controller"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must be settled before the switch, and how."""

    words: str
    to_do: str


@dataclass(slots=True)
class StoreCopy:
    """One member's store. `same_until`: where its log ends or first differs from the reference's."""

    store: StoreInspection
    epochs: ReplicaHistory
    unclean: bool
    same_until: int = 0
    differs: bool = False
    copies_again: bool = False
    """True if the member would cut right bytes, or set its log aside, and copy the master's, because their epochs
    differ."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.epochs.label

    @property
    def start_offset(self) -> int:
        return self.epochs.min_offset

    @property
    def end_offset(self) -> int:
        assert self.epochs.end_offset is not None, "a store knows where its log ends"
        return self.epochs.end_offset

    @property
    def is_empty(self) -> bool:
        return self.epochs.is_empty


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of the check of a group. `reference` is the member that must be the first master."""

    target: MigrationTarget
    members: tuple[StoreCopy, ...]
    reference: StoreCopy

    @property
    def is_safe(self) -> bool:
        return not any(member.problems for member in self.members)

    @property
    def needs_epochs(self) -> bool:
        return any(member.copies_again for member in self.members)


def check(disks: Sequence[ReadDisk], target: MigrationTarget, progress: Progress) -> Migration:
    """Check the members of a group. UsageError or StoreError for what is no store or cannot be read."""
    members = tuple(_inspect(disk) for disk in disks)
    reference = max(members, key=lambda item: (not item.is_empty, item.end_offset, item.epochs.seniority))
    for member in members:
        member.problems += _problems(member, reference)
        if target is MigrationTarget.CONTROLLER:
            member.problems += _elected_short(member, reference)
    filled = [member for member in members if not member.is_empty]
    _compare(reference, [member for member in filled if member is not reference], progress)
    if target is MigrationTarget.CONTROLLER:
        for member in filled:
            follows = compare(reference.epochs, member.epochs).b_follows_a
            same = member.same_until == member.end_offset
            member.copies_again = member is not reference and same and follows.loses
    return Migration(target, members, reference)


def _inspect(disk: ReadDisk) -> StoreCopy:
    epochs = read_history(disk)
    unclean = False
    data = read_or_empty(disk, BOOT_PATH, SIDECAR_LIMIT_BYTES)
    if data:
        try:
            unclean = sidecar.decode(data, f"{disk.label}/{BOOT_PATH}").get("unclean") is True
        except sidecar.BadSidecarError:
            unclean = True
    return StoreCopy(inspect_store(disk), epochs, unclean)


def _problems(member: StoreCopy, reference: StoreCopy) -> list[Problem]:
    """Problems that one store shows by itself, beside the reference."""
    label, store = member.label, member.store
    found = []
    if member.epochs.live:
        found.append(Problem("a broker runs on it", "stop it in order (SIGTERM, or rmqha stop NODE), then check again"))
    elif not store.stopped_cleanly:
        found.append(
            Problem(
                "its broker did not stop in order: abort is there",
                "start it once more in the group as it was, and stop it in order",
            )
        )
    if member.unclean:
        found.append(
            Problem(
                "it may have lost its end with a power failure",
                "start it in the group as it was until it has followed the master, then stop it in order",
            )
        )
    found += [Problem(note, f"rmqha fsck {label}") for note in member.epochs.notes]
    found += [Problem(words, f"rmqha fsck --repair {label}") for words in unreadable_tables(store.disk)]
    sizes = (store.log.file_size_bytes, reference.store.log.file_size_bytes)
    if all(sizes) and sizes[0] != sizes[1]:
        found.append(
            Problem(
                f"its log files have {sizes[0]} bytes, those of {reference.label} {sizes[1]}",
                "one mappedFileSizeCommitLog for the group: move its directory away and start it empty",
            )
        )
    return found


def _elected_short(member: StoreCopy, reference: StoreCopy) -> list[Problem]:
    """The problem of a shorter log that controllers may elect: those that know the group take the set of the time
    before it was static, and wait for no other replica."""
    short_bytes = reference.end_offset - member.end_offset
    if not short_bytes or not member.store.disk.exists(IDENTITY_PATH):
        return []
    words = f"it ends {short_bytes} bytes before {reference.label}, and controllers that know it may elect it"
    to_do = (
        "start it in the group as it was until it has followed the master, then stop all in order; or move its"
        " directory away and start it empty: it copies the log"
    )
    return [Problem(words, to_do)]


# --- comparison -------------------------------------------------------------------------------------------------------
def _compare(reference: StoreCopy, others: list[StoreCopy], progress: Progress) -> None:
    """Set `same_until` and `differs` of each member, and add its problems."""
    reader = reference.store.reader()
    start, end = reference.start_offset, reference.end_offset
    total = (end - start) * (1 + len(others))
    for position, *_ in reader.records(start, end, verify):
        progress(position - start, total)
    stop = reader.stop
    if stop.why is not StopReason.END and start < end:
        found = f"expected {stop.expected}, found {stop.found}"
        reference.problems.append(Problem(f"{stop.path} at byte {stop.at}: {found}", f"rmqha fsck {reference.label}"))
        end = stop.position
    reference.same_until = end
    for number, member in enumerate(others, 1):
        _compare_one(reader, end, reference, member)
        progress(total * (number + 1) // (len(others) + 1), total)
    reader.close()


def _compare_one(reader: LogReader, end: int, reference: StoreCopy, member: StoreCopy) -> None:
    """Compare one member with the reference, which is sound up to `end`."""
    first, last = max(reference.start_offset, member.start_offset), min(end, member.end_offset)
    to_do = (
        "decide whose messages count; save the other's (rmqha log export), move its directory away and start it empty:"
        " it copies the log"
    )
    if first >= last:
        member.same_until, member.differs = member.start_offset, True
        words = f"its log, {member.start_offset} to {member.end_offset}, shares no offset with {reference.label}"
        member.problems.append(Problem(words, to_do))
        return
    other = member.store.reader()
    member.same_until = _same_until(reader, other, first, last)
    other.close()
    if member.same_until < last:
        member.differs = True
        words = f"its log differs from that of {reference.label} from {member.same_until} on"
        member.problems.append(Problem(words, to_do))


def _same_until(a: LogReader, b: LogReader, start: int, end: int) -> int:
    """The end of the records from `start` on that are the same in both, `end` if all of them are."""
    position = start
    while position < end:
        piece, other = a.find(position), b.find(position)
        if piece is None or other is None:
            return position
        size = min(WINDOW_BYTES, end - position, piece.end_offset - position, other.end_offset - position)
        ours = a.read(piece, position - piece.start_offset, size)
        theirs = b.read(other, position - other.start_offset, size)
        if ours == theirs and ours:
            position += len(ours)
            continue
        at = position + next((n for n, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), 0)
        record, is_padding = _record_of(a, start, at)
        if not is_padding or not ours:
            return record
        position = piece.end_offset  # behind a blank record's header stands what happened to be there
    return end


def _record_of(reader: LogReader, start: int, offset: int) -> tuple[int, bool]:
    """Start of the record that holds `offset`, and True if `offset` lies in a blank record's padding."""
    piece = reader.find(offset)
    assert piece is not None, "a byte that was read lies in a file"
    found, blank = start, False
    for position, _, _, parts in reader.records(max(start, piece.start_offset), piece.end_offset, verify):
        if position > offset:
            break
        found, blank = position, parts is None
    return found, blank and offset >= found + BLANK_HEADER_BYTES


# --- epochs -----------------------------------------------------------------------------------------------------------
def common_history(migration: Migration) -> EpochHistory:
    """The history that the members' epoch files should hold: their logs are the same, so one history is true of all.

    It is the reference's, or the newest of any; below its first entry stands epoch 0, which no controller gives."""
    histories = [migration.reference.epochs.history, *(member.epochs.history for member in migration.members)]
    chosen = max(histories, key=lambda item: item.last.epoch if item.last else -1)
    chosen = chosen.truncated(PhyOffset(migration.reference.end_offset))
    if not len(chosen):
        return EpochHistory([EpochEntry(Epoch(0), PhyOffset(0))])
    if chosen[0].start_offset > migration.reference.start_offset and chosen[0].epoch > 0:
        return EpochHistory([EpochEntry(Epoch(0), PhyOffset(0)), *chosen])
    return chosen


def give_epochs(disk: Disk, member: StoreCopy, history: EpochHistory) -> bool:
    """Write the epoch file of a member whose log has been compared; False if it holds this history already. Raises
    UsageError if the store is in use, StoreError if the disk fails."""
    assert not member.problems, "only a log that is the same gets the same history"
    release = lock(disk)
    try:
        file = EpochFile(disk)
        file.load(member.end_offset)
        wanted = history.truncated(PhyOffset(member.end_offset))
        if member.is_empty or file.history == wanted:
            return False
        file.replace(wanted)
        return True
    finally:
        release()
