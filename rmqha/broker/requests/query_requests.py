"""Messages by key, unique key or tags (12), for mqadmin's queryMsgByKey and queryMsgByUniqueKey. No trio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmqha.broker.requests.request import Channel, Handler, RequestError, Work, number, text, truth
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import StoreError, UsageError
from rmqha.store.index.index_key import INDEX_KEY_TYPE, INDEX_UNIQUE_TYPE
from rmqha.store.index.index_service import IndexSearch, IndexService, QueryResult
from rmqha.wire.command import Command

DEFAULT_QUERY_MAX_COUNT = 32
"""RocketMQ's defaultQueryMaxNum: bound on the messages of one unique key."""
FRAME_SPARE_BYTES = 64 * 1024
"""Bytes of a frame besides its body."""
MAX_SEARCH_COUNT = 256
"""Long searches at the same time; more are answered SYSTEM_BUSY."""
MAX_SEARCH_COUNT_OF_ONE = 4
"""Long searches of one connection."""


class QueryRequests:
    """Queries on master and slaves, each from its dispatched records. A search of more than one step is queued: `step`
    continues the next one. `search_soon` is called when there is one."""

    def __init__(self, config: BrokerConfig, index: IndexService, search_soon: Callable[[], None]) -> None:
        self._index = index
        self._search_soon = search_soon
        self._searches: deque[tuple[Channel, Command, IndexSearch]] = deque()
        self._body_limit_bytes = config.max_frame_bytes - FRAME_SPARE_BYTES

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self._query}

    def closed(self, channel: Channel) -> None:
        """End the searches of a closed connection."""
        if any(other is channel for other, _, _ in self._searches):
            self._searches = deque(item for item in self._searches if item[0] is not channel)

    def step(self) -> bool:
        """Do a step of the oldest search; True if there are more."""
        if not self._searches:
            return False
        channel, command, search = self._searches.popleft()
        try:
            reply = self._walked(command, search)
        except RequestError as error:
            reply = command.reply(error.code, remark=str(error))
        if reply is None:
            self._searches.append((channel, command, search))
        else:
            channel.send(reply)
        return bool(self._searches)

    def _query(self, channel: Channel, command: Command) -> Work:
        topic, key = text(command, "topic"), text(command, "key")
        begin_ms, end_ms = number(command, "beginTimestamp"), number(command, "endTimestamp")
        index_type = command.ext.get("indexType") or INDEX_KEY_TYPE
        max_count = number(command, "maxNum")
        if truth(command, "_UNIQUE_KEY_QUERY"):
            index_type, max_count = INDEX_UNIQUE_TYPE, DEFAULT_QUERY_MAX_COUNT
        try:
            search = self._index.search(topic, key, max_count, begin_ms, end_ms, index_type)
            while search.enter():
                yield
        except (StoreError, UsageError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        reply = self._walked(command, search)
        if reply is None:
            self._wait_in_line(channel, command, search)
        return reply

    def _wait_in_line(self, channel: Channel, command: Command, search: IndexSearch) -> None:
        own_count = sum(other is channel for other, _, _ in self._searches)
        principal = command.principal
        of_account = sum(other.principal.access_key == principal.access_key for _, other, _ in self._searches)
        is_full = len(self._searches) >= MAX_SEARCH_COUNT or own_count >= MAX_SEARCH_COUNT_OF_ONE
        if is_full or (principal.is_restricted and not principal.is_admin and 2 * of_account >= MAX_SEARCH_COUNT):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many searches of the index are under way; ask again")
        self._searches.append((channel, command, search))
        self._search_soon()

    def _walked(self, command: Command, search: IndexSearch) -> Command | None:
        try:
            result = search.step()
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return None if result is None else self._reply(command, result)

    def _reply(self, command: Command, result: QueryResult) -> Command:
        ext = {
            "indexLastUpdatePhyoffset": str(result.last_phy_offset),
            "indexLastUpdateTimestamp": str(result.last_timestamp_ms),
        }
        if result.records:
            return command.reply(ResponseCode.SUCCESS, ext, self._body(result.records))
        if not result.is_complete:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"too many entries of the index stand before those of {command.ext['key']!r}; ask for an earlier "
                "endTimestamp",
            )
        return command.reply(
            ResponseCode.QUERY_NOT_FOUND, ext, remark="can not find message, maybe time range not correct"
        )

    def _body(self, records: list[memoryview]) -> bytes:
        """Newest records that fit into a frame, in the order of the log, as in RocketMQ."""
        taken: list[memoryview] = []
        left = self._body_limit_bytes
        for record in records:
            left -= len(record)
            if taken and left < 0:
                break
            taken.append(record)
        return b"".join(reversed(taken))
