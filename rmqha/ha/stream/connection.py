"""Master's end of one HA connection, as a machine.

    WAIT_HANDSHAKE ──handshake──▶ WAIT_ACK ──first ack──▶ TRANSFER        anything else ──▶ closed

The shell writes one transfer at a time; the kernel's buffers keep the wire busy. Every ack is checked against the sent
offset (apache/rocketmq 3015): a peer that acknowledges bytes that were never sent is dropped.
"""

from __future__ import annotations

from enum import Enum

from rmqha.ha.action import Action, CloseHa, SendHa, SendLog
from rmqha.ha.stream.copy_progress import CopyLimit, CopyRate
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import BrokerId, Buffer, Epoch, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.wire.ha_stream import MasterHandshake, SlaveAck, SlaveHandshake, SlaveStreamParser, TransferHeader

HANDSHAKE_TIMEOUT_MS = 3000


class ConnectionState(Enum):
    """Stage of a slave's connection, seen from its master."""

    WAIT_HANDSHAKE = "wait handshake"
    WAIT_ACK = "wait ack"
    TRANSFER = "transfer"
    CLOSED = "closed"


class HaConnection:
    """Connection of one slave. `acked_offset` is None until its first ack: before, the offset is unknown (ruling 1)."""

    def __init__(
        self, now_ms: int, conn_id: int, peer: str, config: BrokerConfig, log: ReplicaLog, limit: CopyLimit
    ) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self.state = ConnectionState.WAIT_HANDSHAKE
        self.slave_id: BrokerId | None = None
        self.async_learner = False
        self.acked_offset: PhyOffset | None = None
        self.next_offset = PhyOffset(0)
        self.caught_up_at_ms = now_ms
        """Latest time (ms) of which the slave is known to hold the master's whole log as of then (lag in time)."""
        self.progress_at_ms = now_ms
        """Latest time (ms) at which an ack advanced, or the slave held the whole log."""
        self._config = config
        self._log = log
        self._limit = limit
        self._rate = CopyRate(now_ms)
        self._parser = SlaveStreamParser()
        self._in_flight = False
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self._end_mark = (log.max_phy_offset, now_ms)
        self._sent_confirm_offset = PhyOffset(-1)
        self.opened_at_ms = now_ms

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

    def sent(self) -> None:
        """The shell has handed the last transfer to the kernel."""
        self._in_flight = False

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

    def pump(self, now_ms: int) -> list[Action]:
        """Send the next transfer, heartbeat or confirm offset, if one is due and no transfer is in flight."""
        if self.state is not ConnectionState.TRANSFER or self._in_flight:
            return []
        log, offset = self._log, self.next_offset
        if offset < log.min_phy_offset:
            return [self.close(f"slave {self.slave_id} at {offset} has fallen below the oldest file")]
        bytes_per_second = self._limit.of(self.slave_id)
        limit = min(self._config.ha_transfer_batch_size, log.epochs.next_start(offset) - offset)
        if bytes_per_second:
            limit = min(limit, CopyRate.most_bytes(bytes_per_second)) if now_ms >= self._rate.free_at_ms() else 0
        size_bytes = len(log.view(offset, limit)) if offset < log.max_phy_offset else 0
        confirm = log.confirm_offset
        if size_bytes == 0:
            # An advance of the confirm offset is pushed without waiting for data.
            if (
                confirm == self._sent_confirm_offset
                and now_ms < self._last_write_ms + self._config.ha_send_heartbeat_interval
            ):
                return []
            return [SendHa(self.conn_id, self._header(now_ms, 0, confirm), may_wait=True)]
        acked = self.acked_offset
        assert acked is not None and acked <= offset, f"slave {self.slave_id} acked {acked}, {offset} was sent"
        assert offset + size_bytes <= log.max_phy_offset, f"{size_bytes} bytes from {offset} are beyond the log's end"
        header = self._header(now_ms, size_bytes, confirm)
        self.next_offset = PhyOffset(offset + size_bytes)
        self._in_flight = True
        if bytes_per_second:
            self._rate.charge(now_ms, size_bytes, bytes_per_second)
        return [SendLog(self.conn_id, header, offset, size_bytes)]

    def _header(self, now_ms: int, size_bytes: int, confirm: PhyOffset) -> bytes:
        offset = self.next_offset
        entry = self._log.epochs.at(offset)
        self._sent_confirm_offset = confirm
        self._last_write_ms = now_ms
        return TransferHeader(
            size_bytes,
            offset,
            entry.epoch if entry else Epoch(0),
            entry.start_offset if entry else PhyOffset(0),
            confirm,
        ).encode()

    def timeout(self, now_ms: int) -> list[Action]:
        if self.state is ConnectionState.CLOSED:
            return []
        if self.state is ConnectionState.WAIT_HANDSHAKE and now_ms >= self.opened_at_ms + HANDSHAKE_TIMEOUT_MS:
            # The bound on an unauthenticated session (apache/rocketmq 8875). A Java slave's first ack may take 5 s.
            return [self.close(f"{self.peer} did not shake hands within {HANDSHAKE_TIMEOUT_MS} ms")]
        if now_ms >= self._last_read_ms + self._config.ha_housekeeping_interval:
            return [self.close(f"slave {self.slave_id} at {self.peer} was silent")]
        return self.pump(now_ms)

    def deadline_ms(self) -> int:
        due = self._last_read_ms + self._config.ha_housekeeping_interval
        if self.state is ConnectionState.WAIT_HANDSHAKE:
            return min(due, self.opened_at_ms + HANDSHAKE_TIMEOUT_MS)
        if self.state is ConnectionState.TRANSFER and not self._in_flight:
            beat = self._last_write_ms + self._config.ha_send_heartbeat_interval
            due = beat if beat < due else due
            if self._limit.bytes_per_second and self._is_held_back():
                due = min(due, self._rate.free_at_ms())
        return due

    def _is_held_back(self) -> bool:
        return bool(self._limit.of(self.slave_id)) and self.next_offset < self._log.max_phy_offset

    def close(self, reason: str, *, is_breach: bool = False) -> CloseHa:
        self.state = ConnectionState.CLOSED
        return CloseHa(self.conn_id, reason, is_breach)
