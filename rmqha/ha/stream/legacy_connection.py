"""Master's end of one HA connection of a static group, as a machine.

    WAIT_REPORT ──first report──▶ TRANSFER        anything else ──▶ closed

The first report is the offset to send from; every report is the offset up to which the slave holds the log. A slave
that reports more than the master has, or than it was sent, is disconnected: its log is another one. (RocketMQ's master
would wait for ever, or continue.)
"""

from __future__ import annotations

from enum import Enum

from rmqha.ha.action import Action, CloseHa, SendHa, SendLog
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.wire.legacy_ha import ReportParser, encode_header

FIRST_REPORT_TIMEOUT_MS = 10_000
"""A Java slave sends its first report when its interval of 5 s is over, not when it connects."""


class LegacyConnectionState(Enum):
    """Stage of a slave's connection without epochs, seen from its master."""

    WAIT_REPORT = "wait report"
    TRANSFER = "transfer"
    CLOSED = "closed"


class LegacyHaConnection:
    """Connection of one slave. `acked_offset` is None until its first report."""

    def __init__(self, now_ms: int, conn_id: int, peer: str, config: BrokerConfig, log: ReplicaLog) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self.state = LegacyConnectionState.WAIT_REPORT
        self.acked_offset: PhyOffset | None = None
        self.next_offset = PhyOffset(0)
        self.caught_up_at_ms = now_ms
        """Latest time (ms) at which the slave held the whole log."""
        self._config = config
        self._log = log
        self._parser = ReportParser()
        self._in_flight = False
        self._has_sent_heartbeat = False
        """True once a heartbeat was sent: by it the slave knows that it held the whole log, so that it is clean again
        after a power loss."""
        self._opened_at_ms = now_ms
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms

    def received(self, now_ms: int, data: Buffer) -> list[Action]:
        self._last_read_ms = now_ms
        try:
            for offset in frames_of(self._parser.feed, data):
                self._report(now_ms, offset)
        except RemoteProtocolError as error:
            return [self.close(str(error), is_breach=True)]
        return []

    def _report(self, now_ms: int, offset: PhyOffset) -> None:
        log = self._log
        if self.state is LegacyConnectionState.WAIT_REPORT:
            if offset > log.max_phy_offset:
                raise RemoteProtocolError(
                    f"the slave at {self.peer} holds {offset}, but this master ends at {log.max_phy_offset}:"
                    " their logs differ, look with rmqha migrate --check"
                )
            if 0 < offset < log.min_phy_offset:
                raise RemoteProtocolError(
                    f"the slave at {self.peer} ends at {offset}, below the oldest file of this master at"
                    f" {log.min_phy_offset}; empty its store for a full copy"
                )
            self.state = LegacyConnectionState.TRANSFER
            # An empty slave gets all there is. Java's master begins with its last file.
            self.next_offset = offset or log.min_phy_offset
        elif offset > self.next_offset:
            raise RemoteProtocolError(
                f"the slave at {self.peer} reports {offset}; only {self.next_offset} was sent to it"
            )
        self.acked_offset = max(offset, self.acked_offset or offset)
        if self.acked_offset >= log.max_phy_offset:
            self.caught_up_at_ms = now_ms

    def note_if_caught_up(self, now_ms: int) -> None:
        """Note that a slave which holds the whole log is caught up, though it is silent."""
        if self.acked_offset is not None and self.acked_offset >= self._log.max_phy_offset:
            self.caught_up_at_ms = now_ms

    @property
    def lag_bytes(self) -> int | None:
        """Bytes of the log that the slave lacks; None before its first report."""
        return None if self.acked_offset is None else max(0, self._log.max_phy_offset - self.acked_offset)

    @property
    def is_close_enough(self) -> bool:
        """True if a SYNC_MASTER may count on it: not further behind than haMaxGapNotInSync."""
        lag_bytes = self.lag_bytes
        return lag_bytes is not None and lag_bytes <= self._config.ha_max_gap_not_in_sync

    def sent(self) -> None:
        """The shell has handed the last transfer to the kernel."""
        self._in_flight = False

    def pump(self, now_ms: int) -> list[Action]:
        """Send the next transfer or heartbeat, if one is due and no transfer is in flight. The first heartbeat is due
        as soon as the slave was sent the whole log: under constant load there is no silence for one at intervals."""
        if self.state is not LegacyConnectionState.TRANSFER or self._in_flight:
            return []
        log, offset = self._log, self.next_offset
        if offset < log.min_phy_offset:
            return [self.close(f"the slave at {self.peer}, at {offset}, has fallen below the oldest file")]
        limit = self._config.ha_transfer_batch_size
        size_bytes = len(log.view(offset, limit)) if offset < log.max_phy_offset else 0
        if not size_bytes:
            if self._has_sent_heartbeat and now_ms < self._last_write_ms + self._config.ha_send_heartbeat_interval:
                return []
            self._last_write_ms = now_ms
            self._has_sent_heartbeat = True
            return [SendHa(self.conn_id, encode_header(offset, 0))]
        self._last_write_ms = now_ms
        self.next_offset = PhyOffset(offset + size_bytes)
        self._in_flight = True
        return [SendLog(self.conn_id, encode_header(offset, size_bytes), offset, size_bytes)]

    def timeout(self, now_ms: int) -> list[Action]:
        if self.state is LegacyConnectionState.CLOSED:
            return []
        waits = self.state is LegacyConnectionState.WAIT_REPORT
        if waits and now_ms >= self._opened_at_ms + FIRST_REPORT_TIMEOUT_MS:
            return [self.close(f"{self.peer} did not report within {FIRST_REPORT_TIMEOUT_MS} ms")]
        if now_ms >= self._last_read_ms + self._config.ha_housekeeping_interval:
            return [self.close(f"the slave at {self.peer} was silent")]
        return self.pump(now_ms)

    def deadline_ms(self) -> int:
        due = self._last_read_ms + self._config.ha_housekeeping_interval
        if self.state is LegacyConnectionState.WAIT_REPORT:
            due = min(due, self._opened_at_ms + FIRST_REPORT_TIMEOUT_MS)
        if self.state is LegacyConnectionState.TRANSFER and not self._in_flight:
            due = min(due, self._last_write_ms + self._config.ha_send_heartbeat_interval)
        return due

    def close(self, reason: str, *, is_breach: bool = False) -> CloseHa:
        self.state = LegacyConnectionState.CLOSED
        return CloseHa(self.conn_id, reason, is_breach)
