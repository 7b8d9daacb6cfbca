"""Messages by key, unique key or tags (12): what mqadmin's queryMsgByKey and queryMsgByUniqueKey ask. No trio."""

from __future__ import annotations

from rmqha.broker.request import Channel, Handler, RequestError, number, text, truth
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config import BrokerConfig
from rmqha.model.error import StoreError, UsageError
from rmqha.store.index_key import INDEX_KEY_TYPE, INDEX_UNIQUE_TYPE
from rmqha.store.index_service import IndexService
from rmqha.wire.command import Command

DEFAULT_QUERY_MAX_COUNT = 32
"""RocketMQ's defaultQueryMaxNum: how many messages of one unique key are given."""
FRAME_SPARE_BYTES = 64 * 1024
"""What a frame may hold besides its body."""


class QueryRequests:
    """Master and slaves answer alike, each from what it has dispatched."""

    def __init__(self, config: BrokerConfig, index: IndexService) -> None:
        self._index = index
        self._body_limit_bytes = config.max_frame_bytes - FRAME_SPARE_BYTES

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self._query}

    def _query(self, channel: Channel, command: Command) -> Command:
        topic, key = text(command, "topic"), text(command, "key")
        begin_ms, end_ms = number(command, "beginTimestamp"), number(command, "endTimestamp")
        index_type = command.ext.get("indexType") or INDEX_KEY_TYPE
        max_count = number(command, "maxNum")
        if truth(command, "_UNIQUE_KEY_QUERY"):
            index_type, max_count = INDEX_UNIQUE_TYPE, DEFAULT_QUERY_MAX_COUNT
        try:
            result = self._index.query(topic, key, max_count, begin_ms, end_ms, index_type)
        except (StoreError, UsageError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        ext = {
            "indexLastUpdatePhyoffset": str(result.last_phy_offset),
            "indexLastUpdateTimestamp": str(result.last_timestamp_ms),
        }
        if result.records:
            return command.reply(ResponseCode.SUCCESS, ext, self._body(result.records))
        if not result.is_complete:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"too many entries of the index stand before those of {key!r}; ask for an earlier endTimestamp",
            )
        return command.reply(
            ResponseCode.QUERY_NOT_FOUND, ext, remark="can not find message, maybe time range not correct"
        )

    def _body(self, records: list[memoryview]) -> bytes:
        """The newest that fit into a frame, in the order of the log, as RocketMQ gives them."""
        taken: list[memoryview] = []
        left = self._body_limit_bytes
        for record in records:
            left -= len(record)
            if taken and left < 0:
                break
            taken.append(record)
        return b"".join(reversed(taken))
