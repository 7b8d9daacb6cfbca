"""Planted bugs that only a moment reveals: an order of two writes, a mark that outlives a cut, an answer that comes
late, a hand-over that is believed too soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from controller.quorum.raft_log import DurableRaftLog
from rmqha.ha.ack import AckQueue
from rmqha.ha.hand_over import HandOver
from rmqha.ha.replica import Replica
from rmqha.ha.stream.client import HaClient
from rmqha.ha.stream.connection import HaConnection
from rmqha.ha.sync_state import Members, SyncStateSet
from rmqha.ha.sync_state_set_manager import SyncStateSetManager
from rmqha.model.epoch import EpochEntry
from rmqha.model.offset import PhyOffset
from rmqha.store.meta.boot_file import BootFile
from rmqha.store.meta.checkpoint import CheckpointFile, ProgressFile
from rmqha.store.meta.epoch_file import EpochFile
from rmqha.store.store import Store

_ADVANCE = HandOver.advance


def _what_was_sent_is_there(self: HandOver, now_ms: int, own_max: PhyOffset, ack: Any, waiting_count: int) -> Any:
    return _ADVANCE(self, now_ms, own_max, own_max, 0)


_ADMISSION = Replica.admission


def _takes_sends_on(self: Replica, now_ms: int) -> Any:
    switch, self._hand_over = self._hand_over, HandOver()
    try:
        return _ADMISSION(self, now_ms)
    finally:
        self._hand_over = switch


def _any_set_is_news(self: SyncStateSet, members: Members, set_epoch: int, *, answered: bool) -> bool:
    self.reset(members, set_epoch)
    return True


_REPLIED = SyncStateSetManager.replied


def _any_answer_counts(self: SyncStateSetManager, now_ms: int, call_id: int, reply: Any) -> None:
    if self._alter_call_id is not None:
        call_id = self._alter_call_id
    _REPLIED(self, now_ms, call_id, reply)


def _no_answer_is_a_refusal(self: SyncStateSet) -> None:
    self.proposed = None
    self.union = self.confirmed


_TRUNCATE = Store.truncate


def _synced_mark_stays(self: Store, end_offset: PhyOffset) -> None:
    synced = self._synced
    _TRUNCATE(self, end_offset)
    self._synced = synced


def _confirm_stays(self: Store, end_offset: PhyOffset) -> None:
    confirm = self._confirm
    _TRUNCATE(self, end_offset)
    self._confirm = confirm


def _marks_stay(self: Store, end_offset: int) -> None:
    """Neither progress nor checkpoint is lowered by a cut."""


def _queue_ends_stay(self: Store, end_offset: PhyOffset) -> None:
    ahead = dict(self._offsets.next)
    _TRUNCATE(self, end_offset)
    self._offsets.next.update(ahead)


def _unsynced_files_go(self: Store) -> PhyOffset:
    return PhyOffset(min(self._confirm, self._dispatch_service.position))


_SAVE = Store._save


def _marks_before_queues(self: Store, dispatched: int, stored: int, unit_count: int) -> None:
    derived, self._derived = self._derived, []
    try:
        _SAVE(self, dispatched, stored, unit_count)
    finally:
        self._derived = derived
    for each in derived:
        each.sync()


def _saves_the_end(self: Store, dispatched: int, stored: int, unit_count: int) -> None:
    _SAVE(self, max(dispatched, self._log.end_offset), stored, unit_count)


_ACKABLE = HaClient._ackable


def _one_record_ahead(self: HaClient) -> PhyOffset:
    end = _ACKABLE(self)
    return PhyOffset(end + 64) if end else end


@contextmanager
def _bytes_before_their_entry() -> Iterator[None]:
    """A slave writes an epoch's entry after its first bytes."""
    entries, transfer, busy = HaClient._append_entries, HaClient._transfer, set[int]()

    def late(self: HaClient, master: Any, phy_offset: PhyOffset) -> None:
        if id(self) not in busy:
            entries(self, master, phy_offset)

    def bytes_first(self: HaClient, now_ms: int, frame: Any) -> bool:
        busy.add(id(self))
        try:
            taken = transfer(self, now_ms, frame)
        finally:
            busy.discard(id(self))
        entries(self, self._master_entries, self._log.max_phy_offset)
        return taken

    with patch.object(HaClient, "_append_entries", late), patch.object(HaClient, "_transfer", bytes_first):
        yield


def _entry_in_memory(self: EpochFile, entry: EpochEntry) -> bool:
    history = self.history.appended(entry)
    if history is not None:
        self.history = history
    return history is not None


def _shortened_in_memory(self: EpochFile, history: Any) -> int:
    dropped = len(self.history) - len(history)
    self.history = history
    return dropped


def _unclean_in_memory(self: BootFile, unclean: bool) -> None:
    self.unclean = unclean


_RUNNING = BootFile.running


def _new_boot_at_once(self: BootFile, process_id: int) -> None:
    self._recorded_id = self._boot_id
    self.unclean = False
    _RUNNING(self, process_id)


_RECORD = Replica._record


def _recorded_after(self: Replica, epoch: Any, refusal: list[str]) -> None:
    """The epoch becomes durable with the next one."""
    late = self.__dict__.setdefault("_late_epochs", [])
    late.append(epoch)
    if len(late) > 1:
        _RECORD(self, late[-2], refusal)


_ACK = HaConnection._ack


def _first_ack_is_the_end(self: HaConnection, now_ms: int, frame: Any) -> None:
    if self.acked_offset is None and frame.max_offset:
        frame = frame._replace(max_offset=self._log.max_phy_offset)
    _ACK(self, now_ms, frame)


def _best_ack_ever(self: SyncStateSetManager, connections: Iterable[HaConnection]) -> list[PhyOffset | None]:
    best = self.__dict__.setdefault("_best", {})
    for member, item in self._connected(connections).items():
        best[member] = max(best.get(member, 0), item.acked_offset or 0)
    members = [member for member in self.state.union if member != self._own_id]
    return [PhyOffset(best[member]) if best.get(member) else None for member in members]


def _no_grace_for_what_was_inherited(self: SyncStateSetManager, *args: Any, **kwargs: Any) -> None:
    _BEGIN(self, *args, **kwargs)
    self._inherited_end = PhyOffset(0)


_BEGIN = SyncStateSetManager.begin


def _keeps_waiting(self: AckQueue) -> list[Any]:
    return []


def _log_in_the_cache(self: DurableRaftLog, frame: Any) -> None:
    with patch.object(self._disk, "sync_file", lambda file: None):
        _APPEND_FRAME(self, frame)


_APPEND_FRAME = DurableRaftLog._append


MOMENT_MUTATIONS: dict[str, Callable[[], Any]] = {
    "progress is saved as the log's end": lambda: patch.object(Store, "_save", _saves_the_end),
    "a slave acknowledges 64 bytes ahead": lambda: patch.object(HaClient, "_ackable", _one_record_ahead),
    "an epoch's entry stays in memory": lambda: patch.object(EpochFile, "append", _entry_in_memory),
    "a start after a loss of power forgets it at once": lambda: patch.object(BootFile, "running", _new_boot_at_once),
    "an epoch is durable with the next one": lambda: patch.object(Replica, "_record", _recorded_after),
    "a slave's first word counts as all": lambda: patch.object(HaConnection, "_ack", _first_ack_is_the_end),
    "what was sent to a target counts as there (ruling 18)": lambda: patch.object(
        HandOver, "advance", _what_was_sent_is_there
    ),
    "a master that hands over takes sends on (ruling 18)": lambda: patch.object(Replica, "admission", _takes_sends_on),
    "an older set is news": lambda: patch.object(SyncStateSet, "decided", _any_set_is_news),
    "a proposal without an answer is refused": lambda: patch.object(SyncStateSet, "lost", _no_answer_is_a_refusal),
    "the mark of synced bytes survives a cut": lambda: patch.object(Store, "truncate", _synced_mark_stays),
    "the confirm offset survives a cut": lambda: patch.object(Store, "truncate", _confirm_stays),
    "progress and checkpoint survive a cut": lambda: patch.object(Store, "_lower_marks", _marks_stay),
    "queue offsets survive a cut": lambda: patch.object(Store, "truncate", _queue_ends_stay),
    "old files go before they are synced": lambda: patch.object(Store, "settled_offset", property(_unsynced_files_go)),
    "an epoch's entry is written after its bytes": _bytes_before_their_entry,
    "epochs are cut in memory": lambda: patch.object(EpochFile, "_shorten", _shortened_in_memory),
    "unclean is said in memory": lambda: patch.object(BootFile, "set_unclean", _unclean_in_memory),
    "waits outlive the role": lambda: patch.object(AckQueue, "abandon", _keeps_waiting),
    "the controllers' log is not synced (Raft)": lambda: patch.object(DurableRaftLog, "_append", _log_in_the_cache),
    "a progress is not synced": lambda: patch.object(ProgressFile, "sync", lambda self: None),
    "a checkpoint is not synced": lambda: patch.object(CheckpointFile, "sync", lambda self: None),
    "progress is saved before the queues are synced": lambda: patch.object(Store, "_save", _marks_before_queues),
    "a new master forgets what it has inherited": lambda: patch.object(
        SyncStateSetManager, "begin", _no_grace_for_what_was_inherited
    ),
}

MOMENT_UNSEEN: dict[str, Callable[[], Any]] = {
    "an answer to an earlier proposal counts": lambda: patch.object(SyncStateSetManager, "replied", _any_answer_counts),
    "an older connection of a slave counts": lambda: patch.object(SyncStateSetManager, "member_acks", _best_ack_ever),
}
"""Planted, and found by no run so far (docs/internals/simulation.md): `planted` takes their names too."""
