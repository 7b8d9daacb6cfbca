"""Slave's end of the HA connection of a static group, as a machine.

    DIALING ──opened──▶ FOLLOWING        (`replication_client` dials)

The protocol does not compare the logs: a slave reports its end and appends the bytes that it gets. To notice a log that
has forked, an incomplete record at the end is cut before connecting, and the first bytes must be the start of a record
with this physical offset. `rmqha migrate --check` compares whole logs.
"""

from __future__ import annotations

import struct

from rmqha.ha.action import Action, CloseHa, SendHa
from rmqha.ha.stream.peer_bytes import frames_of
from rmqha.ha.stream.replication_client import RETRY_FIRST_MS, RETRY_UNSOUND_MS, ClientState, ReplicationClient
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import NoRoomError, RemoteProtocolError
from rmqha.model.offset import Buffer, PhyOffset
from rmqha.port import ReplicaLog, Tracer
from rmqha.wire.legacy_ha import LegacyTransfer, LegacyTransferParser, encode_report

_RECORD_HEAD = struct.Struct(">ii20xq")
_BLANK_MAGIC = 0xCBD43194 - (1 << 32)
_MESSAGE_MAGICS = (0xDAA320A7 - (1 << 32), 0xDAA320AB - (1 << 32))


class LegacyHaClient(ReplicationClient):
    """HA connection of a slave of a static group."""

    def __init__(self, config: BrokerConfig, log: ReplicaLog, tracer: Tracer) -> None:
        super().__init__(config, log, tracer)
        self._parser = LegacyTransferParser()
        self._proven = False
        """True once bytes have come that continue this log."""
        self._reported_offset = PhyOffset(-1)

    # --- connection events ----------------------------------------------------------------------------------------
    def opened(self, now_ms: int, conn_id: int) -> list[Action]:
        if conn_id != self.conn_id or self.state is not ClientState.DIALING:
            return [CloseHa(conn_id, "superseded")]
        log = self._log
        if log.record_end_offset < log.max_phy_offset:
            log.truncate(log.record_end_offset)
        self.state = ClientState.FOLLOWING
        self._last_read_ms = now_ms
        self._parser = LegacyTransferParser()
        self._proven = False
        self._reported_offset = PhyOffset(-1)
        return self.report(now_ms)

    def received(self, now_ms: int, conn_id: int, data: Buffer) -> list[Action]:
        if conn_id != self.conn_id:
            return []
        self._last_read_ms = now_ms
        try:
            for frame in frames_of(self._parser.feed, data):
                self._transfer(frame)
        except RemoteProtocolError as error:
            self.refusal = str(error)
            return self._drop(now_ms, str(error), is_breach=True)
        except NoRoomError as error:
            return self._out_of_room(now_ms, str(error))
        return self.report(now_ms)

    # --- data -----------------------------------------------------------------------------------------------------
    def _transfer(self, frame: LegacyTransfer) -> None:
        log = self._log
        if frame.phy_offset != log.max_phy_offset:
            if log.max_phy_offset != log.min_phy_offset or self._proven:
                raise RemoteProtocolError(
                    f"the master sent offset {frame.phy_offset}; this log ends at {log.max_phy_offset}"
                )
            # Java's master begins an empty slave with its last file, ours with its oldest.
            self._check_room_anew()
            log.restart_at(frame.phy_offset)
        if frame.data:
            if not self._proven:
                _check_head(frame)
            fault = log.append_raw(frame.phy_offset, frame.data)
            self._proven = True
            log.set_confirm_offset(log.max_phy_offset)
            if fault:
                self._retry_ms = RETRY_UNSOUND_MS
                raise RemoteProtocolError(fault)
        elif log.unclean and self.state is ClientState.FOLLOWING:
            # A heartbeat at our end: the master has no more, so this replica lacks nothing again (ruling 3).
            log.mark_clean()
            self._tracer.event("whole_again", max_phy_offset=log.max_phy_offset)
        log.set_confirm_offset(log.max_phy_offset)
        self.refusal = self.room_refusal = ""
        self._retry_ms = RETRY_FIRST_MS

    def report(self, now_ms: int) -> list[Action]:
        """Send a report if the own end has grown or the interval is over. The end is the log's, under SYNC_FLUSH that
        of the synced bytes."""
        if self.state is not ClientState.FOLLOWING or self.conn_id is None:
            return []
        log, first = self._log, self._reported_offset < 0
        offset = log.synced_offset if self._config.sync_flush else log.max_phy_offset
        if first and offset < log.max_phy_offset:
            # The first report says where to send from, so it waits until all we hold is synced.
            return []
        is_due = now_ms >= self._last_write_ms + self._config.ha_send_heartbeat_interval
        if not first and not is_due and offset <= self._reported_offset:
            return []
        self._reported_offset = max(offset, self._reported_offset)
        self._last_write_ms = now_ms
        return [SendHa(self.conn_id, encode_report(self._reported_offset))]

    # --- time -----------------------------------------------------------------------------------------------------
    def _timeout_connected(self, now_ms: int) -> list[Action]:
        if now_ms >= self._silence_deadline_ms:
            return self._drop(now_ms, "the master was silent")
        return self.report(now_ms)

    def _deadline_connected_ms(self) -> int | None:
        if self.state is not ClientState.FOLLOWING:
            return None
        if self._reported_offset < 0:
            return self._silence_deadline_ms
        return min(self._silence_deadline_ms, self._last_write_ms + self._config.ha_send_heartbeat_interval)


def _check_head(frame: LegacyTransfer) -> None:
    """Check that the frame begins with a record of this physical offset; a frame too short for that passes. Raises
    RemoteProtocolError."""
    if len(frame.data) < _RECORD_HEAD.size:
        return
    _, magic, phy_offset = _RECORD_HEAD.unpack_from(frame.data)
    if magic != _BLANK_MAGIC and (magic not in _MESSAGE_MAGICS or phy_offset != frame.phy_offset):
        raise RemoteProtocolError(
            f"no record of the master begins at {frame.phy_offset}, where this log ends: the logs differ,"
            " look with rmqha migrate --check"
        )
