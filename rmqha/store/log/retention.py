"""Removal of the log's oldest files. Decision: values in, a plan out.

The keys and levels are RocketMQ's (DefaultMessageStore.CleanCommitLogService); what differs: the newest record's store
time stands for a file's age, a limit by total size, cleaning by force removes only as much as is needed, and a file
that a slave still copies stays until the disk is fuller than diskSpaceWarningLevelRatio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import BrokerId, PhyOffset

HOUR_MS = 3_600_000


class RetentionReason(Enum):
    EXPIRED = "older than fileReservedTime"
    SIZE = "the log is larger than commitLogMaxBytes"
    DISK = "the disk is fuller than diskSpaceCleanForciblyRatio"
    START_OFFSET = "below the start offset that was asked for"


@dataclass(frozen=True, slots=True)
class RetainedFile:
    """One file of the log. `newest_stored_at_ms` is not before the store time of its newest record."""

    start_offset: int
    end_offset: int
    newest_stored_at_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """A slave that is being sent the log has everything below `offset`."""

    broker_id: BrokerId
    offset: PhyOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionInput:
    """State of the log and its disk at one moment. `files` are the oldest ones, oldest first, without `active`, to
    which records are appended; `active` may be None while it is empty. `used_bytes` of the disk does not count removed
    files that are still on it."""

    wall_ms: int
    local_hour: int
    files: Sequence[RetainedFile]
    active: RetainedFile | None
    end_offset: int
    settled_offset: int
    """Everything below is committed, durable and dispatched; nothing at or behind it is ever removed."""
    used_bytes: int
    free_bytes: int
    needs: Sequence[ReplicaNeed] = ()
    start_offset: int = 0
    """Physical offset at which an operator lets the log begin."""
    on_demand: bool = False
    """True if an operator asked for it: expired files go whatever the hour."""
    may_append: bool = False
    """True of a serving master: it may end the active file so that this can go too."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that would go if it were not needed."""

    start_offset: int
    reason: RetentionReason
    by: tuple[ReplicaNeed, ...]
    """Slaves that need it; () if the replica itself has not yet settled it."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Plan of one removal. `removed`: files from the oldest on. `passed_over`: slaves that lose bytes which they still
    need, and will copy everything again. `refusal`: the reason why sends are refused, "" if they are not."""

    removed: tuple[tuple[RetainedFile, RetentionReason], ...]
    roll: RetentionReason | None
    held: HeldFile | None
    passed_over: tuple[ReplicaNeed, ...]
    refusal: str


def plan(config: BrokerConfig, now: RetentionInput) -> RetentionPlan:
    """The files to remove now, by the keys of retention and the space of the disk."""
    share = _used_percent(now.used_bytes, now.free_bytes)
    forced = config.clean_file_forcibly_enable and share > config.forcible_ratio
    critical = share > config.disk_space_warning_level_ratio
    due = _Due(config, now, share, forced)
    removed: list[tuple[RetainedFile, RetentionReason]] = []
    passed_over: dict[int, ReplicaNeed] = {}
    held: HeldFile | None = None
    for file in now.files[: config.delete_file_batch_max]:
        reason = due.reason(file)
        if reason is None:
            break
        needing = tuple(need for need in now.needs if need.offset < file.end_offset)
        if file.end_offset > now.settled_offset or (needing and not (forced and critical)):
            held = HeldFile(file.start_offset, reason, needing)
            break
        for need in needing:
            passed_over[need.broker_id] = need
        due.freed_bytes += file.end_offset - file.start_offset
        removed.append((file, reason))
    roll = due.roll() if held is None and len(removed) == len(now.files) else None
    refusal = refusal_of(config, now.used_bytes, now.free_bytes)
    return RetentionPlan(tuple(removed), roll, held, tuple(passed_over[key] for key in sorted(passed_over)), refusal)


def refusal_of(config: BrokerConfig, used_bytes: int, free_bytes: int) -> str:
    """The reason to refuse sends by the space of a disk, "" without one."""
    share = _used_percent(used_bytes, free_bytes)
    if share <= config.disk_space_warning_level_ratio:
        return ""
    return (
        f"the disk is full: {share:.1f} % are in use, diskSpaceWarningLevelRatio is"
        f" {config.disk_space_warning_level_ratio}; free some space or keep the log shorter"
    )


def _used_percent(used_bytes: int, free_bytes: int) -> float:
    """Used share of the disk in percent, as df counts: of what an unprivileged user could use."""
    whole = used_bytes + free_bytes
    return 100 * used_bytes / whole if whole > 0 else 0.0


class _Due:
    """The rules of removal, and the bytes that the removals of this plan have freed so far."""

    def __init__(self, config: BrokerConfig, now: RetentionInput, share: float, forced: bool) -> None:
        self._config = config
        self._now = now
        self._forced = forced
        self._hour = now.on_demand or now.local_hour in config.delete_hours or share > config.disk_max_used_space_ratio
        self._log_bytes = now.end_offset - now.files[0].start_offset if now.files else 0
        limit_bytes = (now.used_bytes + now.free_bytes) * config.forcible_ratio // 100
        self._over_bytes = now.used_bytes - limit_bytes
        self.freed_bytes = 0

    def reason(self, file: RetainedFile) -> RetentionReason | None:
        """The reason why `file`, the oldest left, should go."""
        config = self._config
        if file.end_offset <= self._now.start_offset:
            return RetentionReason.START_OFFSET
        if self._expired(file):
            return RetentionReason.EXPIRED
        if config.commit_log_max_bytes and self._log_bytes - self.freed_bytes > config.commit_log_max_bytes:
            return RetentionReason.SIZE
        if self._forced and self.freed_bytes < self._over_bytes:
            return RetentionReason.DISK
        return None

    def _expired(self, file: RetainedFile) -> bool:
        kept_ms = self._config.file_reserved_time * HOUR_MS
        return self._hour and file.newest_stored_at_ms + kept_ms <= self._now.wall_ms

    def roll(self) -> RetentionReason | None:
        """The reason why the active file should be ended: all of it would go once it is settled."""
        now, active = self._now, self._now.active
        if active is None or not now.may_append:
            return None
        if now.start_offset >= now.end_offset:
            return RetentionReason.START_OFFSET
        return RetentionReason.EXPIRED if self._expired(active) else None
