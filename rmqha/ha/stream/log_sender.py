"""Master's end of an HA connection, in either HA protocol: when it sends, and when it gives up. Machine, pure.

    (first state of the protocol) ──▶ TRANSFER        anything else ──▶ closed

The shell writes one transfer at a time; the kernel's buffers keep the wire busy. `HaConnection` and
`LegacyHaConnection` bring the frames: what the first ones must say, and how a header is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

from rmqha.ha.action import Action, CloseHa, SendHa, SendLog
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.offset import PhyOffset
from rmqha.port import ReplicaLog


class ConnectionState(Enum):
    """Stage of a slave's connection, seen from its master. WAIT_REPORT is the legacy protocol's."""

    WAIT_HANDSHAKE = "wait handshake"
    WAIT_ACK = "wait ack"
    WAIT_REPORT = "wait report"
    TRANSFER = "transfer"
    CLOSED = "closed"


class LogSender(ABC):
    """Base of the master's two connections. `acked_offset` is None until the slave's first ack: before, the offset is
    unknown (ruling 1)."""

    _FIRST_STATE: ClassVar[ConnectionState]
    _FIRST_TIMEOUT_MS: ClassVar[int]
    """Bound (ms) on the time until the first frame."""
    _FIRST_WORDS: ClassVar[str]
    """Verb for what a peer did not do in that time."""
    _HEARTBEAT_MAY_WAIT: ClassVar[bool]
    """True if a heartbeat says nothing that the next transfer does not say (`SendHa.may_wait`)."""

    def __init__(self, now_ms: int, conn_id: int, peer: str, config: BrokerConfig, log: ReplicaLog) -> None:
        self.conn_id = conn_id
        self.peer = peer
        self.state = self._FIRST_STATE
        self.acked_offset: PhyOffset | None = None
        self.next_offset = PhyOffset(0)
        self.caught_up_at_ms = now_ms
        """Latest time (ms) of which the slave is known to hold the master's whole log as of then (lag in time)."""
        self.opened_at_ms = now_ms
        self._config = config
        self._log = log
        self._in_flight = False
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms

    # --- the protocol's part --------------------------------------------------------------------------------------
    @abstractmethod
    def _header(self, now_ms: int, size_bytes: int) -> bytes:
        """Encode the header of the next transfer, which is sent now; of a heartbeat if `size_bytes` is 0."""

    @abstractmethod
    def _most_bytes(self, now_ms: int, offset: PhyOffset) -> int:
        """Most bytes that the next transfer may have; 0 for none yet."""

    @abstractmethod
    def _owes_heartbeat(self) -> bool:
        """True if a heartbeat is due before its interval is over."""

    @abstractmethod
    def _name(self, offset: PhyOffset | None = None) -> str:
        """Name of the slave for a reason, with the offset that it is at if given."""

    # --- sending --------------------------------------------------------------------------------------------------
    def sent(self) -> None:
        """The shell has handed the last transfer to the kernel."""
        self._in_flight = False

    def pump(self, now_ms: int) -> list[Action]:
        """Send the next transfer or heartbeat, if one is due and no transfer is in flight."""
        if self.state is not ConnectionState.TRANSFER or self._in_flight:
            return []
        log, offset = self._log, self.next_offset
        if offset < log.min_phy_offset:
            return [self.close(f"{self._name(offset)} has fallen below the oldest file")]
        end = log.max_phy_offset
        size_bytes = len(log.view(offset, self._most_bytes(now_ms, offset))) if offset < end else 0
        if size_bytes == 0:
            if not self._owes_heartbeat() and now_ms < self._last_write_ms + self._config.ha_send_heartbeat_interval:
                return []
            self._last_write_ms = now_ms
            return [SendHa(self.conn_id, self._header(now_ms, 0), self._HEARTBEAT_MAY_WAIT)]
        acked = self.acked_offset
        assert acked is not None and acked <= offset, f"{self._name()} acked {acked}, {offset} was sent"
        assert offset + size_bytes <= end, f"{size_bytes} bytes from {offset} are beyond the log's end"
        header = self._header(now_ms, size_bytes)
        self._last_write_ms = now_ms
        self.next_offset = PhyOffset(offset + size_bytes)
        self._in_flight = True
        return [SendLog(self.conn_id, header, offset, size_bytes)]

    # --- time -----------------------------------------------------------------------------------------------------
    def timeout(self, now_ms: int) -> list[Action]:
        if self.state is ConnectionState.CLOSED:
            return []
        if self.state is self._FIRST_STATE and now_ms >= self.opened_at_ms + self._FIRST_TIMEOUT_MS:
            # The bound on an unauthenticated session (apache/rocketmq 8875).
            return [self.close(f"{self.peer} did not {self._FIRST_WORDS} within {self._FIRST_TIMEOUT_MS} ms")]
        if now_ms >= self._last_read_ms + self._config.ha_housekeeping_interval:
            return [self.close(f"{self._name()} was silent")]
        return self.pump(now_ms)

    def deadline_ms(self) -> int:
        due = self._last_read_ms + self._config.ha_housekeeping_interval
        if self.state is self._FIRST_STATE:
            return min(due, self.opened_at_ms + self._FIRST_TIMEOUT_MS)
        if self.state is ConnectionState.TRANSFER and not self._in_flight:
            beat = self._last_write_ms + self._config.ha_send_heartbeat_interval
            due = beat if beat < due else due
        return due

    def close(self, reason: str, *, is_breach: bool = False) -> CloseHa:
        self.state = ConnectionState.CLOSED
        return CloseHa(self.conn_id, reason, is_breach)
