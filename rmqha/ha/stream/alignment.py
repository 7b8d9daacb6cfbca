"""The point up to which a slave's log and a master's agree. Decision: values in, verdict out.

The consistent point comes first in every case; offsets only name the case in the report (ruling 2). Cases by the
slave's max against the master's log [min, max]: 1-1 below it, 2-2 inside it, 2-3 beyond its end, 3-3 nothing in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from rmqha.model.epoch import EpochHistory
from rmqha.model.offset import OPEN_END, Epoch, PhyOffset


class AlignmentVerdict(Enum):
    """Action of a slave on its own log before it copies the master's."""

    FOLLOW = "follow"
    """Cut to `end_offset` (often the own max), then follow."""
    RESTART = "restart"
    """Set the old files aside, unharmed, and start empty where the master's first transfer starts."""
    REFUSE = "refuse"
    """Keep every byte and ask an operator."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Decision about a slave's log. `end_offset`: where it goes on; `cut_bytes`: bytes of its log that are removed."""

    verdict: AlignmentVerdict
    case: str
    end_offset: PhyOffset
    cut_bytes: int
    reason: str
    same_epoch_other_start_count: int = 0
    """Entries that break "one leader per epoch"; counted and logged, never followed."""
    fork_offset: PhyOffset | None = None
    """Start of the slave's bytes that the master does not have: following would remove them. None if there are none."""


def consistent_point(slave: EpochHistory, slave_max: PhyOffset, master: EpochHistory) -> PhyOffset | None:
    """Find the consistent point: search backwards from the newest epoch for an entry that both histories have with the
    same start, and take the smaller of its two ends.

    The slave's last entry ends at `slave_max`; a current master's last entry never ends. None without a common entry.
    Example: master {6:200, 7:1200, 8:2500}, slave {6:200, 7:1200, 8:2250} with max 2500 → 2250: epoch 7 matches and
    the slave's copy of it ends at 2250.
    """
    master_ends = {
        (entry.epoch, entry.start_offset): master.end_offset(index, OPEN_END) for index, entry in enumerate(master)
    }
    for index in range(len(slave) - 1, -1, -1):
        entry = slave[index]
        master_end = master_ends.get((entry.epoch, entry.start_offset))
        if master_end is not None:
            return PhyOffset(min(slave.end_offset(index, slave_max), master_end))
    return None


def align(
    slave: EpochHistory,
    slave_min: PhyOffset,
    slave_max: PhyOffset,
    master: EpochHistory,
    master_max: PhyOffset,
    *,
    slave_confirm: PhyOffset,
    keep_confirmed: bool,
) -> Alignment:
    """Decide how the slave goes on. With `keep_confirmed` (CP) nothing below the slave's own confirm offset is ever cut
    (ruling 4). The master's min is not in the handshake: its first epoch's start bounds it from below.

    If no byte of the slave was ever confirmed, there is nothing to protect. A fork at the very start of the log (of a
    first master that died before its first record was replicated) is then not case 3-3; the files are set aside. The
    same is true if all confirmed bytes are before the master's first epoch: the master has removed them since, and with
    them the entry that both had.
    """
    starts = {entry.epoch: entry.start_offset for entry in master}
    other_start_count = sum(1 for entry in slave if starts.get(entry.epoch, entry.start_offset) != entry.start_offset)
    if slave_max == slave_min:
        # No bytes to compare: entries without bytes prove nothing and go.
        if slave_max > master_max:
            why = "the log is empty and begins behind the master's end"
            return Alignment(AlignmentVerdict.RESTART, "empty", slave_max, 0, why, other_start_count)
        return Alignment(AlignmentVerdict.FOLLOW, "empty", slave_max, 0, "the log is empty", other_start_count)
    point = consistent_point(slave, slave_max, master)
    if point is None or point < slave_min:
        if len(master) and slave_max <= master[0].start_offset:
            why = "the log ends before the master's begins"
            return Alignment(AlignmentVerdict.RESTART, "1-1", slave_max, 0, why, other_start_count)
        if slave_confirm <= max(slave_min, master[0].start_offset if len(master) else 0):
            why = "nothing of this log that the master's could have was ever confirmed, and they share nothing"
            return Alignment(AlignmentVerdict.RESTART, "1-1", slave_max, 0, why, other_start_count, slave_min)
        reason = f"no epoch in common: own {slave} up to {slave_max}, master {master} up to {master_max}"
        return Alignment(AlignmentVerdict.REFUSE, "3-3", slave_max, 0, reason, other_start_count)
    if keep_confirmed and point < slave_confirm:
        reason = (
            f"following would cut to {point}, below the own confirm offset {slave_confirm}: "
            f"own {slave} up to {slave_max}, master {master} up to {master_max}"
        )
        return Alignment(AlignmentVerdict.REFUSE, "3-3", slave_max, 0, reason, other_start_count)
    case = "2-3" if slave_max > master_max else "2-2"
    cut_bytes = slave_max - point
    reason = f"the logs fork at {point}" if cut_bytes else "the logs agree"
    fork_offset = point if cut_bytes else None
    return Alignment(AlignmentVerdict.FOLLOW, case, point, cut_bytes, reason, other_start_count, fork_offset)


def refuse_loss(found: Alignment, slave: EpochHistory, record_end: PhyOffset, unclean_epoch: Epoch) -> Alignment:
    """Refuse, in CP, to remove whole records (up to `record_end`) of an epoch older than `unclean_epoch`. That is the
    newest epoch whose master may lack acknowledged records, and the slave cannot know if its own were acknowledged.

    A clean election chooses among replicas that hold everything acknowledged. So a record that a later master lacks was
    not acknowledged.
    """
    point = found.fork_offset
    if point is None or point >= record_end:
        return found
    entry = slave.at(point)
    if (entry.epoch if entry is not None else 0) >= unclean_epoch:
        return found
    reason = (
        f"following would drop what stands from {point} to {record_end} and may have been acknowledged before the"
        f" unclean election of epoch {unclean_epoch}: {found.reason}, own {slave}"
    )
    return replace(found, verdict=AlignmentVerdict.REFUSE, case="3-3", cut_bytes=0, reason=reason)
