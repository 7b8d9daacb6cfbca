"""Master's end of one HA connection, as a machine.

    WAIT_HANDSHAKE ──handshake──▶ WAIT_ACK ──first ack──▶ TRANSFER        anything else ──▶ closed

Every ack is checked against the sent offset (apache/rocketmq 3015): a peer that acknowledges bytes that were never sent
is dropped. `log_sender` sends.
"""

from __future__ import annotations

from rmqha.ha.action import Action, SendHa
from rmqha.ha.stream.copy_progress import CopyLimit, CopyRate
from rmqha.ha.stream.log_sender import ConnectionState, LogSender
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.wire.ha_stream import MasterHandshake, SlaveAck, SlaveHandshake, SlaveStreamParser, TransferHeader

HANDSHAKE_TIMEOUT_MS = 3000


class HaConnection(LogSender):
    """Connection of one slave of a group with controllers."""

    _FIRST_STATE = ConnectionState.WAIT_HANDSHAKE
    _FIRST_TIMEOUT_MS = HANDSHAKE_TIMEOUT_MS
    _FIRST_WORDS = "shake hands"
    _HEARTBEAT_MAY_WAIT = True

    def __init__(
        self, now_ms: int, conn_id: int, peer: str, config: BrokerConfig, log: ReplicaLog, limit: CopyLimit
    ) -> None:
        super().__init__(now_ms, conn_id, peer, config, log)
        self.slave_id: BrokerId | None = None
        self.async_learner = False
        self.progress_at_ms = now_ms
        """Latest time (ms) at which an ack advanced, or the slave held the whole log."""
        self._limit = limit
        self._rate = CopyRate(now_ms)
        self._bytes_per_second = 0
        """Limit of the transfer that is made; 0: none."""
        self._parser = SlaveStreamParser()
        self._end_mark = (log.max_phy_offset, now_ms)
        self._sent_confirm_offset = PhyOffset(-1)

    def received(self, now_ms: int, data: Buffer, epoch: Epoch) -> list[Action]:
        """Handle bytes of the slave. `epoch` is the current master epoch, for the handshake's lastEpoch."""
        self._last_read_ms = now_ms
        actions: list[Action] = []
        try:
            for frame in frames_of(self._parser.feed, data):
                if isinstance(frame, SlaveHandshake):
                    actions += self._handshake(now_ms, frame, epoch)
                else:
                    self._ack(now_ms, frame)
        except RemoteProtocolError as error:
            return [*actions, self.close(str(error), is_breach=True)]
        return actions

    def _handshake(self, now_ms: int, frame: SlaveHandshake, epoch: Epoch) -> list[Action]:
        if self.state is not ConnectionState.WAIT_HANDSHAKE:
            raise RemoteProtocolError(f"slave {frame.broker_id} at {self.peer} shook hands twice")
        if frame.broker_id <= 0:
            raise RemoteProtocolError(f"{self.peer} shook hands with broker id {frame.broker_id}")
        self.slave_id = frame.broker_id
        self.async_learner = frame.async_learner
        self.state = ConnectionState.WAIT_ACK
        self._last_write_ms = now_ms
        last = self._log.epochs.last
        answer = MasterHandshake(self._log.max_phy_offset, last.epoch if last else epoch, self._log.epochs)
        return [SendHa(self.conn_id, answer.encode())]

    def _ack(self, now_ms: int, frame: SlaveAck) -> None:
        offset = frame.max_offset
        if self.state is ConnectionState.WAIT_ACK:
            if not 0 <= offset <= self._log.max_phy_offset:
                raise RemoteProtocolError(
                    f"slave {self.slave_id} at {self.peer} claims offset {offset}, beyond {self._log.max_phy_offset}"
                )
            self.state = ConnectionState.TRANSFER
            # A slave below our min (new, or long away) starts at our min; it sets its old files aside (case 1-1).
            self.next_offset = max(offset, self._log.min_phy_offset)
            self.progress_at_ms = now_ms
        elif self.state is not ConnectionState.TRANSFER:
            raise RemoteProtocolError(f"{self.peer} acked before its handshake")
        elif not 0 <= offset <= self.next_offset:
            raise RemoteProtocolError(
                f"slave {self.slave_id} at {self.peer} acked {offset}; only {self.next_offset} was sent"
            )
        if self.acked_offset is None or offset > self.acked_offset:
            self.progress_at_ms = now_ms
            self.acked_offset = offset
        self._note_caught_up(now_ms, offset)

    def _note_caught_up(self, now_ms: int, offset: PhyOffset) -> None:
        own_max = self._log.max_phy_offset
        if offset >= own_max:
            self.caught_up_at_ms = self.progress_at_ms = now_ms
            self._end_mark = (own_max, now_ms)
        elif offset >= self._end_mark[0]:
            self.caught_up_at_ms = self._end_mark[1]
            self._end_mark = (own_max, now_ms)

    def note_if_caught_up(self, now_ms: int) -> None:
        """Note that a slave which holds the whole log is caught up, though it is silent. Called at each check of the
        set."""
        if self.acked_offset is not None and self.acked_offset >= self._log.max_phy_offset:
            self.caught_up_at_ms = self.progress_at_ms = now_ms
            self._end_mark = (self.acked_offset, now_ms)

    def is_idle(self, now_ms: int, end: PhyOffset, confirm: PhyOffset) -> bool:
        """True if `pump` would send nothing. `end` and `confirm` are the log's offsets, read once for all
        connections."""
        if self.state is not ConnectionState.TRANSFER or self._in_flight:
            return True
        return (
            self.next_offset == end
            and self._sent_confirm_offset == confirm
            and now_ms < self._last_write_ms + self._config.ha_send_heartbeat_interval
        )

    def _most_bytes(self, now_ms: int, offset: PhyOffset) -> int:
        most_bytes = min(self._config.ha_transfer_batch_size, self._log.epochs.next_start(offset) - offset)
        self._bytes_per_second = self._limit.of(self.slave_id)
        if not self._bytes_per_second:
            return most_bytes
        return min(most_bytes, CopyRate.most_bytes(self._bytes_per_second)) if now_ms >= self._rate.free_at_ms() else 0

    def _owes_heartbeat(self) -> bool:
        """True if the confirm offset has advanced: it is pushed without waiting for data."""
        return self._log.confirm_offset != self._sent_confirm_offset

    def _header(self, now_ms: int, size_bytes: int) -> bytes:
        if size_bytes and self._bytes_per_second:
            self._rate.charge(now_ms, size_bytes, self._bytes_per_second)
        offset, confirm = self.next_offset, self._log.confirm_offset
        entry = self._log.epochs.at(offset)
        self._sent_confirm_offset = confirm
        return TransferHeader(
            size_bytes,
            offset,
            entry.epoch if entry else Epoch(0),
            entry.start_offset if entry else PhyOffset(0),
            confirm,
        ).encode()

    def _name(self, offset: PhyOffset | None = None) -> str:
        return f"slave {self.slave_id} at {self.peer if offset is None else offset}"

    def deadline_ms(self) -> int:
        due = super().deadline_ms()
        if self._limit.bytes_per_second and self.state is ConnectionState.TRANSFER and not self._in_flight:
            is_held_back = self._limit.of(self.slave_id) and self.next_offset < self._log.max_phy_offset
            due = min(due, self._rate.free_at_ms()) if is_held_back else due
        return due
