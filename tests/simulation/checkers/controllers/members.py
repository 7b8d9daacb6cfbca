"""Members of the controllers' group: the configuration that a controller goes by is the last one of its log, or of its
snapshot, and falls with its entry; a snapshot has the one that was in force there; a leader changes the group again
once its last change, and an entry of its term, are committed (Ongaro's dissertation §4.1 and his correction of 2015).
"""

from __future__ import annotations

from typing import NamedTuple

from rmqha.model.offset import RaftIndex
from rmqha.raft.log import RaftLog
from rmqha.wire.raft_message import EntryKind
from tests.simulation.history import InvariantError
from tests.simulation.processes.controller_process import ControllerProcess

Change = tuple[int, bytes]
"""The index of an entry, and its configuration."""


class _Looked(NamedTuple):
    life: tuple[int, int]
    """And disks lost."""
    last: tuple[int, int]
    """Index and term of the log's last entry: logs in which these are the same are the same."""
    snapshot_index: int
    commit_index: int
    changes: tuple[Change, ...]
    """Behind the snapshot."""


class Members:
    def __init__(self) -> None:
        self._looked: dict[str, _Looked] = {}
        self._committed: dict[int, dict[int, bytes]] = {}
        """By disks lost and index: configurations that some controller knew to be committed."""
        self.judged_count = 0
        """Changes that a leader has made."""

    def stepped(self, controller: ControllerProcess) -> None:
        log, before = controller.raft_log, self._looked.get(controller.host)
        life = controller.life, controller.wipe_count
        last, snapshot_index = (int(log.last_index), int(log.last_term)), int(log.snapshot_index)
        commit_index = int(log.commit_index)
        if before is not None and before[:4] == (life, last, snapshot_index, commit_index):
            return
        if before is None or before.life != life:
            before = None
        changes = _changes(log, before)
        self._looked[controller.host] = _Looked(life, last, snapshot_index, commit_index, changes)
        known = self._committed.setdefault(controller.wipe_count, {})
        known.update(change for change in changes if change[0] <= commit_index)
        self._verify_snapshot(controller, known)
        if changes:
            _verify_current(controller, changes[-1])
        if before is not None and controller.led_term is not None:
            self._verify_pace(controller, changes, before)

    def _verify_snapshot(self, controller: ControllerProcess, known: dict[int, bytes]) -> None:
        snapshot = controller.raft_log.snapshot
        at = max((index for index in known if snapshot is not None and index <= snapshot.index), default=None)
        if snapshot is not None and at is not None and snapshot.configuration != known[at]:
            raise InvariantError(
                f"{controller.host} has a snapshot up to {snapshot.index} without the members that entry {at} brought"
            )
        has_all = snapshot is not None and controller._raft._core.membership.index <= snapshot.index
        if snapshot is not None and snapshot.configuration and has_all:
            _verify_current(controller, (int(snapshot.index), snapshot.configuration))

    def _verify_pace(self, leader: ControllerProcess, changes: tuple[Change, ...], before: _Looked) -> None:
        log, term = leader.raft_log, leader.led_term
        for place, (index, _) in enumerate(changes):
            if index <= before.last[0] or log.term_at(RaftIndex(index)) != term:
                continue
            self.judged_count += 1
            open_at = changes[place - 1][0] if place else 0
            is_first = not place and not log.snapshot_index
            if open_at > log.commit_index or (not is_first and log.term_at(log.commit_index) != term):
                raise InvariantError(
                    f"{leader.host} changes the controllers' group with entry {index} of term {term}, and entry"
                    f" {log.commit_index} is the last that is committed; the change before it is entry {open_at}"
                )


def _changes(log: RaftLog, before: _Looked | None) -> tuple[Change, ...]:
    """Entries of `log` that change the group; those that were looked at before are not read again."""
    start, found = int(log.snapshot_index) + 1, list[Change]()
    if before is not None and before.last[0] >= start and log.term_at(RaftIndex(before.last[0])) == before.last[1]:
        found = [change for change in before.changes if change[0] >= start]
        start = before.last[0] + 1
    entries = log.slice(RaftIndex(start), RaftIndex(log.last_index + 1)) if start <= log.last_index else ()
    return (*found, *((int(entry.index), entry.data) for entry in entries if entry.kind is EntryKind.CONFIGURATION))


def _verify_current(controller: ControllerProcess, change: Change) -> None:
    if controller.configuration.encode() != change[1]:
        raise InvariantError(
            f"{controller.host} goes by the members {controller.configuration.members}; the last change of its log is"
            f" entry {change[0]}"
        )
