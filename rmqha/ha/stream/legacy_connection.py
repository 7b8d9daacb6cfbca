"""Master's end of one HA connection of a static group, as a machine.

    WAIT_REPORT ──first report──▶ TRANSFER        anything else ──▶ closed

The first report is the offset to send from; every report is the offset up to which the slave holds the log. A slave
that reports more than the master has, or than it was sent, is disconnected: its log is another one. (RocketMQ's master
would wait for ever, or continue.) `log_sender` sends.
"""

from __future__ import annotations

from rmqha.ha.action import Action
from rmqha.ha.stream.log_sender import ConnectionState, LogSender
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RemoteProtocolError
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.port import ReplicaLog
from rmqha.wire.legacy_ha import ReportParser, encode_header

FIRST_REPORT_TIMEOUT_MS = 10_000
"""A Java slave sends its first report when its interval of 5 s is over, not when it connects."""


class LegacyHaConnection(LogSender):
    """Connection of one slave of a static group."""

    _FIRST_STATE = ConnectionState.WAIT_REPORT
    _FIRST_TIMEOUT_MS = FIRST_REPORT_TIMEOUT_MS
    _FIRST_WORDS = "report"
    _HEARTBEAT_MAY_WAIT = False

    def __init__(self, now_ms: int, conn_id: int, peer: str, config: BrokerConfig, log: ReplicaLog) -> None:
        super().__init__(now_ms, conn_id, peer, config, log)
        self._parser = ReportParser()
        self._has_sent_heartbeat = False
        """True once a heartbeat was sent: by it the slave knows that it held the whole log, so that it is clean again
        after a power loss."""

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
        if self.state is ConnectionState.WAIT_REPORT:
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
            self.state = ConnectionState.TRANSFER
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

    def _most_bytes(self, now_ms: int, offset: PhyOffset) -> int:
        return self._config.ha_transfer_batch_size

    def _owes_heartbeat(self) -> bool:
        """True before the first heartbeat, which is due as soon as the slave was sent the whole log: under constant
        load there is no silence for one at intervals."""
        return not self._has_sent_heartbeat

    def _header(self, now_ms: int, size_bytes: int) -> bytes:
        self._has_sent_heartbeat = self._has_sent_heartbeat or not size_bytes
        return encode_header(self.next_offset, size_bytes)

    def _name(self, offset: PhyOffset | None = None) -> str:
        return f"the slave at {self.peer}" if offset is None else f"the slave at {self.peer}, at {offset},"
