"""Slave's end of the HA connection, as a machine.

    DIALING ──opened──▶ HANDSHAKE ──master's answer, aligned──▶ FOLLOWING        (`replication_client` dials)
                          ├──the disk takes its time──▶ CUTTING ──log_written──▶ FOLLOWING
                          └──nothing in common (3-3), or loss──▶ REFUSED: keep every byte, wait for an operator

The consistent point is computed at every handshake, whatever the offsets are (ruling 2). A cut, and an epoch's entry,
are durable before bytes of the master are appended. While they wait for the disk, nothing is appended or acknowledged;
frames that the master sends meanwhile are kept, up to MAX_KEPT_BYTES.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

from rmqha.ha.action import Action, CloseHa, SendHa
from rmqha.ha.log_writes import LogWrites
from rmqha.ha.stream.alignment import Alignment, AlignmentVerdict, align, refuse_loss
from rmqha.ha.stream.copy_progress import CopyProgress
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.ha.stream.replication_client import RETRY_FIRST_MS, RETRY_UNSOUND_MS, ClientState, ReplicationClient
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import NoRoomError, RemoteProtocolError
from rmqha.model.identity import HaMode
from rmqha.model.offset import NO_EPOCH, BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.ha_stream import (
    MasterFrame,
    MasterHandshake,
    MasterStreamParser,
    SlaveAck,
    SlaveHandshake,
    Transfer,
    TransferHeader,
)

HANDSHAKE_TIMEOUT_MS = 3000
ACK_INTERVAL_MS = 5000
MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Bytes of a master's stream that are kept while a change of the log waits for the disk."""
LACKS_QUEUE_ENDS = "this replica must learn where the queues end; until then it copies as a learner"
KNOWS_QUEUE_ENDS = "this replica knows where the queues end: it is a learner no more"


class HaClient(ReplicationClient):
    """HA connection of a slave in a group with a controller."""

    def __init__(
        self, config: BrokerConfig, log: ReplicaLog, writes: LogWrites, broker_id: BrokerId, tracer: Tracer
    ) -> None:
        super().__init__(config, log, tracer)
        self._writes = writes
        self._kept: deque[MasterFrame] = deque()
        """Frames of this connection that came while a change of the log waits for the disk."""
        self._kept_bytes = 0
        self.truncated_bytes = 0
        self.caught_up_with: PhyOffset | None = None
        """End of the master's log at the handshake; an unclean replica that reaches it is clean again (ruling 3)."""
        self.progress = CopyProgress()
        self._broker_id = broker_id
        self._master_epoch = self._unclean_epoch = NO_EPOCH
        self._parser = MasterStreamParser()
        self._master_entries: list[EpochEntry] = []
        self._may_restart = False
        self._acked_offset = PhyOffset(-1)
        self._is_temporary_learner = False
        """True if the handshake named this replica a learner, as it lacks queue ends: no master proposes it for the
        set."""

    def set_master_epoch(self, epoch: Epoch, unclean_epoch: Epoch) -> None:
        """Note the epoch of the master to follow. `unclean_epoch`: newest epoch up to it whose master may lack records
        acknowledged before; 0 if there is none."""
        self._master_epoch, self._unclean_epoch = epoch, unclean_epoch

    # --- connection events ----------------------------------------------------------------------------------------
    def leave(self, reason: str) -> list[Action]:
        self._forget()
        return super().leave(reason)

    def opened(self, now_ms: int, conn_id: int) -> list[Action]:
        if conn_id != self.conn_id or self.state is not ClientState.DIALING:
            return [CloseHa(conn_id, "superseded")]
        self.state = ClientState.HANDSHAKE
        self._state_since_ms = self._last_read_ms = now_ms
        self._parser = MasterStreamParser()
        self._is_temporary_learner = self._log.lacks_queue_ends
        hello = SlaveHandshake(self._broker_id, async_learner=self._config.async_learner or self._is_temporary_learner)
        return [SendHa(conn_id, hello.encode())]

    def closed(self, now_ms: int, conn_id: int) -> None:
        if conn_id == self.conn_id:
            self._forget()
        super().closed(now_ms, conn_id)

    def _forget(self) -> None:
        """Drop the state of the connection."""
        self.caught_up_with = None
        self._kept.clear()
        self._kept_bytes = 0

    def received(self, now_ms: int, conn_id: int, data: Buffer) -> list[Action]:
        if conn_id != self.conn_id:
            return []
        self._last_read_ms = now_ms
        try:
            frames = frames_of(self._parser.feed, data)
        except RemoteProtocolError as error:
            return self._drop(now_ms, str(error), is_breach=True)
        if self._writes.is_waiting:
            return self._keep(now_ms, frames)
        return self._take(now_ms, deque(frames))

    def written(self, now_ms: int) -> list[Action]:
        """Handle the frames that came while a change of the log waited for the disk; called when it is complete."""
        frames, self._kept, self._kept_bytes = self._kept, deque(), 0
        return [] if self.conn_id is None else self._take(now_ms, frames)

    def _take(self, now_ms: int, frames: deque[MasterFrame]) -> list[Action]:
        actions: list[Action] = []
        try:
            while frames:
                frame = frames.popleft()
                if isinstance(frame, MasterHandshake):
                    actions += self._align(now_ms, frame)
                elif not self._transfer(now_ms, frame):
                    frames.appendleft(frame)
                if self._writes.is_waiting:
                    return actions + self._keep(now_ms, frames)
                if not self._is_open():
                    return actions
                if self._log.lacks_queue_ends and not self._is_temporary_learner:
                    return [*actions, *self._drop(now_ms, LACKS_QUEUE_ENDS)]
        except RemoteProtocolError as error:
            return [*actions, *self._drop(now_ms, str(error), is_breach=True)]
        except NoRoomError as error:
            return [*actions, *self._out_of_room(now_ms, str(error))]
        return actions + self.ack(now_ms)

    def _keep(self, now_ms: int, frames: Iterable[MasterFrame]) -> list[Action]:
        for frame in frames:
            if isinstance(frame, Transfer):  # its bytes are the shell's buffer
                frame = Transfer(frame.header, bytes(frame.data))
                self._kept_bytes += len(frame.data)
            self._kept.append(frame)
        if self._kept_bytes > MAX_KEPT_BYTES:
            return self._drop(now_ms, "the disk does not keep up")
        return []

    def _is_open(self) -> bool:
        return self.conn_id is not None

    # --- alignment ------------------------------------------------------------------------------------------------
    def _alignment(self, frame: MasterHandshake, confirmed_end: PhyOffset) -> Alignment:
        log = self._log
        return align(
            log.epochs,
            log.min_phy_offset,
            log.max_phy_offset,
            frame.entries,
            frame.max_phy_offset,
            slave_confirm=confirmed_end,
            keep_confirmed=self._config.mode is HaMode.CP and not log.unclean,
        )

    def _align(self, now_ms: int, frame: MasterHandshake) -> list[Action]:
        if self.state is not ClientState.HANDSHAKE:
            raise RemoteProtocolError("the master shook hands twice")
        log = self._log
        found = self._alignment(frame, log.confirm_offset)
        if found.verdict is AlignmentVerdict.REFUSE:
            # finding the end of the confirmed records takes reading the log
            found = self._alignment(frame, log.confirmed_record_end)
        if found.fork_offset is not None and self._config.mode is HaMode.CP:
            master = frame.entries.last
            if master is not None and master.epoch > self._master_epoch:
                return self._drop(now_ms, f"the master's epoch is {master.epoch}; how it was elected is not known yet")
            if self._unclean_epoch:
                found = refuse_loss(found, log.epochs, log.record_end_offset, self._unclean_epoch)
        if found.verdict is AlignmentVerdict.REFUSE:
            self._tracer.event("ha_refused", case=found.case, reason=found.reason)
            conn_id = self.conn_id
            assert conn_id is not None
            self.conn_id = None
            self.state = ClientState.REFUSED
            self.refusal = found.reason
            return [CloseHa(conn_id, found.reason)]
        assert self.conn_id is not None
        if found.verdict is AlignmentVerdict.RESTART:
            self._check_room_anew()
        continuation = partial(self._aligned, self.conn_id, frame, found)
        if not self._alignment_changes_log(found, frame.entries):
            return continuation(now_ms)
        self.state = ClientState.CUTTING
        return self._writes.make(now_ms, partial(self._apply_alignment, found, frame.entries), continuation)

    def _aligned(self, conn_id: int, frame: MasterHandshake, found: Alignment, now_ms: int) -> list[Action]:
        log = self._log
        if found.verdict is AlignmentVerdict.FOLLOW:
            self.truncated_bytes += found.cut_bytes
        if found.cut_bytes or found.case not in ("2-2", "empty"):
            self._tracer.event(
                "ha_aligned",
                case=found.case,
                end_offset=found.end_offset,
                reason=found.reason,
                cut_bytes=found.cut_bytes,
                same_epoch_other_start=found.same_epoch_other_start_count,
            )
        if conn_id != self.conn_id:
            return []  # the connection ended while the change waited for the disk
        self._master_entries = list(frame.entries)
        self._may_restart = True
        self.caught_up_with = frame.max_phy_offset
        self.progress.begin(now_ms, log.max_phy_offset, frame.max_phy_offset)
        self.state = ClientState.FOLLOWING
        self._retry_ms = RETRY_FIRST_MS
        self._acked_offset = PhyOffset(-1)
        self._last_write_ms = self._state_since_ms = now_ms
        return []

    def _alignment_changes_log(self, found: Alignment, master: EpochHistory) -> bool:
        if found.verdict is AlignmentVerdict.RESTART or self._must_clear_entries(master) or self._must_truncate(found):
            return True
        return self._is_empty and self._lacks_entries(master, self._log.max_phy_offset)

    def _apply_alignment(self, found: Alignment, master: EpochHistory) -> None:
        """Change the log as the alignment demands. Epoch entries without bytes prove nothing and are removed: one that
        starts at the log's end, or, in an empty log, those that the master does not know."""
        log = self._log
        if found.verdict is AlignmentVerdict.RESTART:
            self._give_up_log(PhyOffset(0))
        elif self._must_clear_entries(master):
            log.clear_epochs()
        elif self._must_truncate(found):
            log.truncate(found.end_offset)
        if self._is_empty:
            self._append_entries(master, log.max_phy_offset)

    @property
    def _is_empty(self) -> bool:
        return self._log.max_phy_offset == self._log.min_phy_offset

    def _must_clear_entries(self, master: EpochHistory) -> bool:
        return self._is_empty and not set(self._log.epochs) <= set(master)

    def _must_truncate(self, found: Alignment) -> bool:
        last = self._log.epochs.last
        return bool(found.cut_bytes) or (last is not None and last.start_offset >= self._log.max_phy_offset)

    # --- data -----------------------------------------------------------------------------------------------------
    def _transfer(self, now_ms: int, frame: Transfer) -> bool:
        """Handle a transfer. False if the log must be changed first and that waits for the disk: call it again then."""
        if self.state is not ClientState.FOLLOWING:
            raise RemoteProtocolError("the master sent data before its handshake")
        header, log = frame.header, self._log
        is_at_end = header.phy_offset == log.max_phy_offset
        # a heartbeat may also name an offset at which the master's log begins: an idle master sends nothing else
        begins_behind = self._may_restart and header.phy_offset > log.max_phy_offset
        restarts = not is_at_end and bool(header.size_bytes or begins_behind)
        if restarts:
            self._check_restart(header.phy_offset)
            self.progress.restart(now_ms, header.phy_offset)
        if restarts or is_at_end:
            self._learn_entry(header.epoch, header.epoch_start_offset)
            if restarts or self._lacks_entries(self._master_entries, header.phy_offset):
                self._writes.make(now_ms, partial(self._prepare_append, header, restarts=restarts), _nothing)
                if self._writes.is_waiting:
                    return False
        if header.size_bytes:
            fault = log.append_raw(header.phy_offset, frame.data)
            self._may_restart = False
            self.progress.moved(now_ms, log.max_phy_offset)
            if fault:
                self._retry_ms = RETRY_UNSOUND_MS
                raise RemoteProtocolError(fault)
        self.room_refusal = ""
        confirm = PhyOffset(min(header.confirm_offset, log.max_phy_offset))
        if confirm > log.confirm_offset:
            log.set_confirm_offset(confirm)
        return True

    def _check_restart(self, phy_offset: PhyOffset) -> None:
        """Check a transfer that does not start at our end. Only the first one may: at the master's min, if that is
        above our end. The master has removed all that we have since, and nobody can send the records between. Raises
        NoRoomError while another log has no room."""
        own_max = self._log.max_phy_offset
        if not self._may_restart or phy_offset < own_max:
            raise RemoteProtocolError(f"the master sent offset {phy_offset}; expected {own_max}")
        self._check_room_anew()
        self._tracer.event(
            "ha_restarted",
            case="1-1",
            old_end_offset=own_max,
            new_start_offset=phy_offset,
            reason="the master's log begins behind our end: all of it is copied again",
        )

    def _prepare_append(self, header: TransferHeader, *, restarts: bool) -> None:
        if restarts:
            self._give_up_log(header.phy_offset)
        self._append_entries(self._master_entries, header.phy_offset)

    def _give_up_log(self, phy_offset: PhyOffset) -> None:
        """Empty the log and restart it at `phy_offset`. A replica that drops acknowledged records is marked unclean, so
        that it is not elected before it has copied all."""
        log = self._log
        if log.max_phy_offset > log.min_phy_offset and not log.unclean:
            log.mark_unclean()
        log.restart_at(phy_offset)

    def _learn_entry(self, epoch: Epoch, start_offset: PhyOffset) -> None:
        """Add the epoch entry of a transfer header: later epochs of the same master arrive so, sometimes one frame
        early (formats.md §13.2)."""
        if self._master_entries and epoch <= self._master_entries[-1].epoch:
            return
        known = EpochHistory(self._master_entries).appended(EpochEntry(epoch, start_offset))
        if known is not None:
            self._master_entries = list(known)

    def _lacks_entries(self, master: Sequence[EpochEntry] | EpochHistory, phy_offset: PhyOffset) -> bool:
        last = self._log.epochs.last
        if last is None:
            return any(entry.start_offset <= phy_offset for entry in master)
        if not len(master) or master[-1].epoch <= last.epoch:
            return False  # as for almost every transfer
        return any(
            entry.epoch > last.epoch and last.start_offset < entry.start_offset <= phy_offset for entry in master
        )

    def _append_entries(self, master: Iterable[EpochEntry], phy_offset: PhyOffset) -> None:
        """Append the entries that start at or below `phy_offset`. An entry is written before its bytes: bytes without
        it would count as the older epoch's. A heartbeat brings the entry of an epoch without bytes."""
        for entry in master:
            if entry.start_offset <= phy_offset:
                self._log.append_epoch(entry.epoch, entry.start_offset)

    def _ackable(self) -> PhyOffset:
        return self._log.synced_offset if self._config.sync_flush else self._log.max_phy_offset

    def ack(self, now_ms: int) -> list[Action]:
        """Send an ack if the own end has grown or the interval is over. The end is the log's, under SYNC_FLUSH that of
        the synced bytes."""
        if self.state is not ClientState.FOLLOWING or self.conn_id is None or self._writes.is_waiting:
            return []
        offset = self._ackable()
        first = self._acked_offset < 0
        if now_ms >= self._last_write_ms + ACK_INTERVAL_MS:
            self._last_write_ms = now_ms
        elif not first and offset <= self._acked_offset:
            return []
        if first and offset < self._log.max_phy_offset:
            # The first ack also says where to send from, so under SYNC_FLUSH it waits until all we hold is synced.
            return []
        self._acked_offset = max(offset, self._acked_offset)
        self._last_write_ms = now_ms
        return [SendHa(self.conn_id, SlaveAck(self._acked_offset).encode())]

    @property
    def is_caught_up(self) -> bool:
        """True once the master's end as of the handshake has been reached."""
        return (
            self.state is ClientState.FOLLOWING
            and self.caught_up_with is not None
            and self._log.max_phy_offset >= self.caught_up_with
        )

    @property
    def left_bytes(self) -> int:
        """Bytes that are still to come until `is_caught_up`; 0 unless it follows."""
        return self.progress.left_bytes(self._log.max_phy_offset) if self.state is ClientState.FOLLOWING else 0

    # --- time -----------------------------------------------------------------------------------------------------
    def timeout(self, now_ms: int) -> list[Action]:
        return [] if self._writes.is_waiting else super().timeout(now_ms)

    def deadline_ms(self) -> int | None:
        return None if self._writes.is_waiting else super().deadline_ms()

    def _timeout_connected(self, now_ms: int) -> list[Action]:
        if self.state is ClientState.HANDSHAKE and now_ms >= self._state_since_ms + HANDSHAKE_TIMEOUT_MS:
            return self._drop(now_ms, "the master did not answer the handshake")
        if self.state is ClientState.FOLLOWING:
            if now_ms >= self._silence_deadline_ms:
                return self._drop(now_ms, "the master was silent")
            if self._is_temporary_learner and not self._log.lacks_queue_ends:
                return self._drop(now_ms, KNOWS_QUEUE_ENDS)
            if reason := self._log.room_refusal():
                return self._out_of_room(now_ms, reason)  # before the next message has to wait for it
            return self.ack(now_ms)
        return []

    def _deadline_connected_ms(self) -> int | None:
        match self.state:
            case ClientState.HANDSHAKE:
                return self._state_since_ms + HANDSHAKE_TIMEOUT_MS
            case ClientState.FOLLOWING:
                return min(self._silence_deadline_ms, self._last_write_ms + ACK_INTERVAL_MS)
        return None


def _nothing(now_ms: int) -> list[Action]:
    """Continue without actions: the frame that needed the change of the log is handled next."""
    return []
