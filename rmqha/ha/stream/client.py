"""Slave's end of the HA connection, as a machine.

    DIALING ──opened──▶ HANDSHAKE ──master's answer, aligned──▶ FOLLOWING        (`master_link` dials)
    HANDSHAKE ──nothing in common (3-3)──▶ REFUSED: keep every byte, wait for an operator

The consistent point is computed at every handshake, whatever the offsets look like (ruling 2). A cut is durable before
anything of the master's is appended.
"""

from __future__ import annotations

from rmqha.ha.action import Action, CloseHa, SendHa
from rmqha.ha.stream.alignment import Alignment, AlignmentVerdict, align
from rmqha.ha.stream.copy_progress import CopyProgress
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.ha.stream.replication_client import RETRY_FIRST_MS, RETRY_UNSOUND_MS, ClientState, ReplicationClient
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.epoch import EpochEntry, EpochHistory
from rmqha.model.error import RemoteProtocolError
from rmqha.model.identity import HaMode
from rmqha.model.offset import BrokerId, Epoch, PhyOffset
from rmqha.port import Buffer, ReplicaLog, Tracer
from rmqha.wire.ha_stream import MasterHandshake, MasterStreamParser, SlaveAck, SlaveHandshake, Transfer

HANDSHAKE_TIMEOUT_MS = 3000
ACK_INTERVAL_MS = 5000
LACKS_QUEUE_ENDS = "this replica must learn where the queues end; until then it copies as a learner"
KNOWS_QUEUE_ENDS = "this replica knows where the queues end: it is a learner no more"


class HaClient(ReplicationClient):
    """A slave of a group with a controller."""

    def __init__(self, config: BrokerConfig, log: ReplicaLog, broker_id: BrokerId, tracer: Tracer) -> None:
        super().__init__(config, log, tracer)
        self.truncated_bytes = 0
        self.caught_up_with: PhyOffset | None = None
        """The master's end as of the handshake; reaching it proves an unclean replica whole again (ruling 3)."""
        self.progress = CopyProgress()
        self._broker_id = broker_id
        self._parser = MasterStreamParser()
        self._master_entries: list[EpochEntry] = []
        self._may_start_elsewhere = False
        self._acked_offset = PhyOffset(-1)
        self._greeted_lacking = False
        """Our end of this connection copies as a learner does: no master proposes it for the set."""

    # --- connection events ----------------------------------------------------------------------------------------
    def leave(self, reason: str) -> list[Action]:
        self.caught_up_with = None
        return super().leave(reason)

    def opened(self, now_ms: int, conn_id: int) -> list[Action]:
        if conn_id != self.conn_id or self.state is not ClientState.DIALING:
            return [CloseHa(conn_id, "superseded")]
        self.state = ClientState.HANDSHAKE
        self._state_since_ms = self._heard_at_ms = now_ms
        self._parser = MasterStreamParser()
        self._greeted_lacking = self._log.lacks_queue_ends
        hello = SlaveHandshake(self._broker_id, async_learner=self._config.async_learner or self._greeted_lacking)
        return [SendHa(conn_id, hello.encode())]

    def closed(self, now_ms: int, conn_id: int) -> None:
        if conn_id == self.conn_id:
            self.caught_up_with = None
        super().closed(now_ms, conn_id)

    def received(self, now_ms: int, conn_id: int, data: Buffer) -> list[Action]:
        if conn_id != self.conn_id:
            return []
        self._heard_at_ms = now_ms
        actions: list[Action] = []
        try:
            for frame in frames_of(self._parser.feed, data):
                if isinstance(frame, MasterHandshake):
                    actions += self._align(now_ms, frame)
                else:
                    self._transfer(now_ms, frame)
                if not self._is_open():
                    return actions
                if self._log.lacks_queue_ends and not self._greeted_lacking:
                    return [*actions, *self._drop(now_ms, LACKS_QUEUE_ENDS)]
        except RemoteProtocolError as error:
            return [*actions, *self._drop(now_ms, str(error), is_breach=True)]
        return actions + self.ack(now_ms)

    def would_cut(self, data: Buffer) -> bool:
        """True if `data`, the first that this connection's master sends, has the log cut or set aside; so too while the
        handshake is not whole. Changes nothing."""
        if self.state is not ClientState.HANDSHAKE:
            return False
        try:
            frame = next(iter(MasterStreamParser().feed(data)), None)
        except RemoteProtocolError:
            return False
        if not isinstance(frame, MasterHandshake):
            return frame is None
        found = self._alignment(frame, self._log.confirm_offset)
        return found.verdict is not AlignmentVerdict.FOLLOW or self._is_cut(found) or self._is_cleared(frame.entries)

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
            # to find where the confirmed records end, the log must be read
            found = self._alignment(frame, log.confirmed_record_end)
        if found.verdict is AlignmentVerdict.REFUSE:
            self._tracer.event("ha_refused", case=found.case, reason=found.reason)
            conn_id = self.conn_id
            assert conn_id is not None
            self.conn_id = None
            self.state = ClientState.REFUSED
            self.refusal = found.reason
            return [CloseHa(conn_id, found.reason)]
        if found.verdict is AlignmentVerdict.FOLLOW:
            self._cut(found, frame.entries)
        if found.verdict is AlignmentVerdict.RESTART:
            self._give_up_log(PhyOffset(0))
        if found.cut_bytes or found.case not in ("2-2", "empty"):
            self._tracer.event(
                "ha_aligned",
                case=found.case,
                end_offset=found.end_offset,
                reason=found.reason,
                cut_bytes=found.cut_bytes,
                same_epoch_other_start=found.same_epoch_other_start_count,
            )
        self._master_entries = list(frame.entries)
        self._may_start_elsewhere = True
        if log.max_phy_offset == log.min_phy_offset:
            self._append_entries(log.max_phy_offset)
        self.caught_up_with = frame.max_phy_offset
        self.progress.begin(now_ms, log.max_phy_offset, frame.max_phy_offset)
        self.state = ClientState.FOLLOWING
        self._retry_ms = RETRY_FIRST_MS
        self._acked_offset = PhyOffset(-1)
        self._said_at_ms = self._state_since_ms = now_ms
        return []

    def _cut(self, found: Alignment, master: EpochHistory) -> None:
        """Entries without bytes prove nothing and go: one that starts at our end, or, in a log without any byte, those
        that the master does not know."""
        log = self._log
        if self._is_cleared(master):
            log.clear_epochs()
        elif self._is_cut(found):
            log.truncate(found.end_offset)
            self.truncated_bytes += found.cut_bytes

    def _is_cleared(self, master: EpochHistory) -> bool:
        log = self._log
        return log.max_phy_offset == log.min_phy_offset and not set(log.epochs) <= set(master)

    def _is_cut(self, found: Alignment) -> bool:
        last = self._log.epochs.last
        return bool(found.cut_bytes) or (last is not None and last.start_offset >= self._log.max_phy_offset)

    # --- data -----------------------------------------------------------------------------------------------------
    def _transfer(self, now_ms: int, frame: Transfer) -> None:
        if self.state is not ClientState.FOLLOWING:
            raise RemoteProtocolError("the master sent data before its handshake")
        header, log = frame.header, self._log
        # a heartbeat too may tell where the master's log begins: an idle one sends nothing else
        begins_behind = self._may_start_elsewhere and header.phy_offset > log.max_phy_offset
        if header.phy_offset != log.max_phy_offset and (header.size_bytes or begins_behind):
            self._restart_at(header.phy_offset)
            self.progress.restart(now_ms, header.phy_offset)
        if header.phy_offset == log.max_phy_offset:
            self._learn_entry(header.epoch, header.epoch_start_offset)
            self._append_entries(header.phy_offset)
        if header.size_bytes:
            fault = log.append_raw(header.phy_offset, frame.data)
            self._may_start_elsewhere = False
            self.progress.moved(now_ms, log.max_phy_offset)
            if fault:
                self._retry_ms = RETRY_UNSOUND_MS
                raise RemoteProtocolError(fault)
        confirm = PhyOffset(min(header.confirm_offset, log.max_phy_offset))
        if confirm > log.confirm_offset:
            log.set_confirm_offset(confirm)

    def _restart_at(self, phy_offset: PhyOffset) -> None:
        """Only the first transfer may start elsewhere than at our end: at the master's min, if that is above. What we
        have is what the master has removed since; nobody can send what lies between."""
        own_max = self._log.max_phy_offset
        if not self._may_start_elsewhere or phy_offset < own_max:
            raise RemoteProtocolError(f"the master sent offset {phy_offset}; expected {own_max}")
        self._tracer.event(
            "ha_restarted",
            case="1-1",
            old_end_offset=own_max,
            new_start_offset=phy_offset,
            reason="the master's log begins behind our end: all of it is copied again",
        )
        self._give_up_log(phy_offset)

    def _give_up_log(self, phy_offset: PhyOffset) -> None:
        """A replica that no longer holds what it has acknowledged must not be elected before it has copied all."""
        log = self._log
        if log.max_phy_offset > log.min_phy_offset and not log.unclean:
            log.mark_unclean()
        log.restart_at(phy_offset)

    def _learn_entry(self, epoch: Epoch, start_offset: PhyOffset) -> None:
        """Later epochs of the same master arrive in transfer headers, sometimes one frame early (formats.md §13.2)."""
        if self._master_entries and epoch <= self._master_entries[-1].epoch:
            return
        known = EpochHistory(self._master_entries).appended(EpochEntry(epoch, start_offset))
        if known is not None:
            self._master_entries = list(known)

    def _append_entries(self, phy_offset: PhyOffset) -> None:
        """Entries go before their bytes: bytes without their entry would pass for the older epoch's. A heartbeat brings
        the entry of an epoch in which nothing has been written yet."""
        log, last = self._log, self._log.epochs.last
        if not self._master_entries or (last is not None and last.epoch >= self._master_entries[-1].epoch):
            return
        for entry in self._master_entries:
            if entry.start_offset <= phy_offset:
                log.append_epoch(entry.epoch, entry.start_offset)

    def _ackable(self) -> PhyOffset:
        return self._log.synced_offset if self._config.sync_flush else self._log.max_phy_offset

    def ack(self, now_ms: int) -> list[Action]:
        """Ack if our end grew or the interval is over; under SYNC_FLUSH the end is what has been synced."""
        if self.state is not ClientState.FOLLOWING or self.conn_id is None:
            return []
        offset = self._ackable()
        first = self._acked_offset < 0
        if now_ms >= self._said_at_ms + ACK_INTERVAL_MS:
            self._said_at_ms = now_ms
        elif not first and offset <= self._acked_offset:
            return []
        if first and offset < self._log.max_phy_offset:
            # The first ack also says where to send from, so under SYNC_FLUSH it waits until all we hold is synced.
            return []
        self._acked_offset = max(offset, self._acked_offset)
        self._said_at_ms = now_ms
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
    def _timeout_connected(self, now_ms: int) -> list[Action]:
        if self.state is ClientState.HANDSHAKE and now_ms >= self._state_since_ms + HANDSHAKE_TIMEOUT_MS:
            return self._drop(now_ms, "the master did not answer the handshake")
        if self.state is ClientState.FOLLOWING:
            if now_ms >= self._silence_deadline_ms:
                return self._drop(now_ms, "the master was silent")
            if self._greeted_lacking and not self._log.lacks_queue_ends:
                return self._drop(now_ms, KNOWS_QUEUE_ENDS)
            return self.ack(now_ms)
        return []

    def _deadline_connected_ms(self) -> int | None:
        match self.state:
            case ClientState.HANDSHAKE:
                return self._state_since_ms + HANDSHAKE_TIMEOUT_MS
            case ClientState.FOLLOWING:
                return min(self._silence_deadline_ms, self._said_at_ms + ACK_INTERVAL_MS)
        return None
