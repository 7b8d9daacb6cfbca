"""Control plane: the epoch history of a store or of an epoch file alone, read offline; and a comparison of two.

Nothing is locked or written. The comparison is the one that a slave makes at its handshake
(`rmqha.ha.stream.alignment`). Beside it stands what only an observer of both stores knows: the master's first offset,
and which of the two would be elected.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.ha.stream.alignment import Alignment, AlignmentVerdict, align, consistent_point
from rmqha.inspect.log_reader import StopReason
from rmqha.inspect.store_inspection import EPOCHS_LIMIT_BYTES, inspect_store
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import StoreError, UsageError
from rmqha.model.offset import OPEN_END, Epoch, PhyOffset
from rmqha.port import ReadDisk
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.log.record import verify
from rmqha.store.meta.boot_file import PATH as BOOT_PATH
from rmqha.store.meta.epoch_file import BACKUP_PATH, PATH, BadEpochFileError, parse


@dataclass(frozen=True, slots=True)
class ReplicaHistory:
    """One replica's history. `end_offset` and `committed_end` are None where an epoch file alone does not tell."""

    label: str
    history: EpochHistory
    min_offset: PhyOffset
    end_offset: PhyOffset | None
    committed_end: PhyOffset | None
    live: bool
    notes: tuple[str, ...]
    """Sentences on what is not as it should be."""

    @property
    def is_empty(self) -> bool:
        """True of a log without bytes."""
        return self.end_offset == self.min_offset

    @property
    def max_offset(self) -> PhyOffset:
        return OPEN_END if self.end_offset is None else self.end_offset

    @property
    def seniority(self) -> tuple[int, int]:
        """Sort key by which an election prefers logs: the highest epoch that has bytes, then the longest log."""
        return (self.history.last.epoch if self.history.last else -1, self.max_offset)


def read_history(disk: ReadDisk) -> ReplicaHistory:
    """The history of the store on `disk`. UsageError for what is no store, StoreError for an epoch file that cannot be
    used."""
    if not disk.is_directory(LOG_DIRECTORY) and disk.exists(BOOT_PATH):
        # a replica of ours that never held a byte
        return ReplicaHistory(disk.label, EpochHistory(), PhyOffset(0), PhyOffset(0), PhyOffset(0), False, ())
    store = inspect_store(disk)
    notes: list[str] = []
    path = PATH if disk.exists(PATH) or not disk.exists(BACKUP_PATH) else BACKUP_PATH
    history = EpochHistory() if not disk.exists(path) else _history(disk, path, notes)
    if path == BACKUP_PATH:
        notes.append(f"{PATH} is missing; its older copy {BACKUP_PATH} is shown")
    committed_end = store.committed_end
    reader = store.reader()
    for _ in reader.records(committed_end, max(reader.max_offset, committed_end), verify):
        pass
    reader.close()
    stop = reader.stop
    end_offset = max(stop.position, committed_end)
    if stop.why in (StopReason.BAD, StopReason.UNREADABLE):
        found = f"expected {stop.expected}, found {stop.found}"
        notes.append(f"{stop.path} at byte {stop.at}: {found}; the log counts as ending there, see rmqha fsck")
    last = history.last
    if last is not None and last.start_offset > end_offset:
        notes.append(f"epoch {last.epoch} starts at {last.start_offset}, behind the log's end; see rmqha fsck")
    return ReplicaHistory(
        disk.label,
        history,
        PhyOffset(store.min_offset),
        PhyOffset(end_offset),
        PhyOffset(committed_end),
        store.live,
        tuple(notes),
    )


def read_history_file(disk: ReadDisk, name: str, end_offset: int | None) -> ReplicaHistory:
    """The history in the epoch file `name` of `disk`. `end_offset`: where its log ends, if that is known.

    UsageError for a file that is none or cannot be read."""
    label = f"{disk.label.rstrip('/')}/{name}"
    try:
        history = parse(disk.read(name, EPOCHS_LIMIT_BYTES))
    except OSError as error:
        raise UsageError(f"{label} cannot be read: {error.strerror or error}; check the path") from None
    except BadEpochFileError as error:
        raise UsageError(f"{label} at byte {error.at}: {error}; give a store directory or an {PATH}") from None
    start = history[0].start_offset if len(history) else PhyOffset(0)
    last = history.last
    if end_offset is not None and last is not None and end_offset < last.start_offset:
        raise UsageError(f"{label}: its epoch {last.epoch} starts at {last.start_offset}, behind {end_offset}")
    end = None if end_offset is None else PhyOffset(end_offset)
    return ReplicaHistory(label, history, start, end, None, False, ())


def _history(disk: ReadDisk, path: str, notes: list[str]) -> EpochHistory:
    try:
        return parse(disk.read(path, EPOCHS_LIMIT_BYTES))
    except OSError as error:
        raise StoreError(f"{disk.label}/{path} cannot be read: {error.strerror or error}; check the disk") from None
    except BadEpochFileError as error:
        if path == PATH and disk.exists(BACKUP_PATH):
            history = _history(disk, BACKUP_PATH, notes)
            notes.append(f"{PATH} at byte {error.at}: {error}; its older copy {BACKUP_PATH} is shown")
            return history
        raise StoreError(
            f"{disk.label}/{path} at byte {error.at}: {error}; rmqha fsck {disk.label} says what can be done"
        ) from None


# --- comparison -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Following:
    """The outcome if one replica followed the other, which was elected now. `case` places the slave's min and max
    against the master's log: first digit min, second max; 1 below it, 2 inside it, 3 beyond its end."""

    case: str
    ap: Alignment
    cp: Alignment
    """Alignment in CP: as `ap`, but nothing that the slave knows to be committed is cut."""
    cut_bytes: int | None
    """Bytes of an alignment that cuts; None if the slave's end is not known."""
    loses: bool
    """True if bytes would be cut or set aside, or an operator must decide."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two replicas' histories, a and b."""

    point: PhyOffset | None
    """Offset up to which the logs agree; None without an epoch entry in common, OPEN_END if both ends are unknown."""
    b_follows_a: Following
    a_follows_b: Following
    a_is_newer: bool | None
    """True if an election would take the first of the two; None if they are equal."""

    @property
    def is_fork(self) -> bool:
        """True if the older one loses bytes by following the newer, or cannot follow."""
        if self.a_is_newer is None:
            return self.b_follows_a.loses or self.a_follows_b.loses
        return (self.b_follows_a if self.a_is_newer else self.a_follows_b).loses


def compare(a: ReplicaHistory, b: ReplicaHistory) -> Comparison:
    next_epoch = Epoch(1 + max((entry.epoch for side in (a, b) for entry in side.history), default=0))
    newer = None if a.seniority == b.seniority else a.seniority > b.seniority
    point = consistent_point(a.history, a.max_offset, _as_master(b, next_epoch))
    return Comparison(point, _following(b, a, next_epoch), _following(a, b, next_epoch), newer)


def _as_master(side: ReplicaHistory, epoch: Epoch) -> EpochHistory:
    """The history that it would tell its slaves: an elected master writes under a new epoch from its end on."""
    if side.end_offset is None:
        return side.history
    kept = side.history.truncated(side.end_offset)
    return kept.appended(EpochEntry(epoch, side.end_offset)) or kept


def _following(slave: ReplicaHistory, master: ReplicaHistory, epoch: Epoch) -> Following:
    floor = slave.min_offset if slave.committed_end is None else slave.committed_end
    told = _as_master(master, epoch)
    ap, cp = (
        align(
            slave.history,
            slave.min_offset,
            slave.max_offset,
            told,
            master.max_offset,
            slave_confirm=floor,
            keep_confirmed=keep_confirmed,
        )
        for keep_confirmed in (False, True)
    )
    last = slave.history.last
    if slave.end_offset is None:
        cuts = ap.verdict is AlignmentVerdict.FOLLOW and last is not None and last.start_offset >= ap.end_offset
    else:
        cuts = ap.cut_bytes > 0
    loses = (
        cuts or ap.verdict is AlignmentVerdict.REFUSE or (ap.verdict is AlignmentVerdict.RESTART and not slave.is_empty)
    )
    cut_bytes = None if slave.end_offset is None else ap.cut_bytes
    return Following(case_of(slave, master), ap, cp, cut_bytes, loses)


def case_of(slave: ReplicaHistory, master: ReplicaHistory) -> str:
    """The `case` of `Following`: two digits, or "empty"."""
    if slave.is_empty:
        return "empty"
    if slave.min_offset >= master.max_offset:
        return "3-3"
    low = 1 if slave.min_offset < master.min_offset else 2
    high = 1 if slave.max_offset <= master.min_offset else 2 if slave.max_offset <= master.max_offset else 3
    return f"{low}-{high}"
