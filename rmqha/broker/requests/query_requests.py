"""Messages by key, unique key or tags (12), for mqadmin's queryMsgByKey and queryMsgByUniqueKey. No trio."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from rmqha.broker.requests.record_access import DeletedTopics, was_refused
from rmqha.broker.requests.request import Channel, Handler, RequestError, Shares, Work, number, text, truth
from rmqha.broker.tables.topics import TopicConfig
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import StoreError, UsageError
from rmqha.model.principal import Principal
from rmqha.store.index.index_key import INDEX_KEY_TYPE, INDEX_UNIQUE_TYPE
from rmqha.store.index.index_service import (
    MAX_QUERY_COUNT,
    IndexSearch,
    IndexService,
    QueryResult,
)
from rmqha.store.index.queue_search import QueueSearch, QueuesOfTopics
from rmqha.store.index.wanted import RecordFilter, Wanted, any_record
from rmqha.wire.command import Command

DEFAULT_QUERY_MAX_COUNT = 32
"""RocketMQ's defaultQueryMaxNum: bound on the messages of one unique key."""
FRAME_SPARE_BYTES = 64 * 1024
"""Bytes of a frame besides its body."""
MAX_SEARCH_COUNT = 256
"""Long searches at the same time; more are answered SYSTEM_BUSY."""
MAX_SEARCH_COUNT_OF_ONE = 4
"""Long searches of one connection."""


class KnownTopics(DeletedTopics, Protocol):
    """Port to the topics; `TopicTable` is one."""

    def get(self, name: str) -> TopicConfig | None: ...


class KeySearch:
    """Search in the index; if too many entries of other keys stand in front there, in the queues of the topic."""

    def __init__(self, in_index: IndexSearch, begin_in_queues: Callable[[int], QueueSearch]) -> None:
        """`begin_in_queues` gets the time of the newest message."""
        self._in_index = in_index
        self._begin_in_queues = begin_in_queues
        self._given_up: QueryResult | None = None
        """Result of the index, where it is not complete."""
        self._in_queues: QueueSearch | None = None

    def enter(self) -> bool:
        """Do as `IndexSearch.enter`."""
        return self._in_index.enter()

    def step(self) -> QueryResult | None:
        """Walk on; the result, None if there is more to walk. Raises StoreError."""
        if self._given_up is None or self._in_queues is None:
            result = self._in_index.step()
            if result is None or result.records or result.is_complete:
                return result
            self._given_up, self._in_queues = result, self._begin_in_queues(result.last_timestamp_ms)
            return None
        if not self._in_queues.step():
            return None
        return replace(self._given_up, records=self._in_queues.records(), is_complete=self._in_queues.is_complete)


class _Search(NamedTuple):
    channel: Channel
    command: Command
    walk: KeySearch


class QueryRequests:
    """Queries on master and slaves, each from its dispatched records. A search of more than one step is queued: `step`
    continues the next one. `search_soon` is called when there is one."""

    def __init__(
        self,
        config: BrokerConfig,
        index: IndexService,
        log: QueuesOfTopics,
        topics: KnownTopics,
        search_soon: Callable[[], None],
    ) -> None:
        self._index, self._log, self._topics = index, log, topics
        self._search_soon = search_soon
        self._searches: dict[str, deque[_Search]] = {}
        """Searches by account (access key): those of one are continued in turn, and so are the accounts."""
        self._places = Shares(MAX_SEARCH_COUNT)
        self._body_limit_bytes = config.max_frame_bytes - FRAME_SPARE_BYTES

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_MESSAGE: self._query}

    def closed(self, channel: Channel) -> None:
        """End the searches of a closed connection."""
        for key in [key for key, items in self._searches.items() if any(item.channel is channel for item in items)]:
            items = self._searches.pop(key)
            kept = deque(item for item in items if item.channel is not channel)
            self._places.give_back(key, len(items) - len(kept))
            if kept:
                self._searches[key] = kept

    def step(self) -> bool:
        """Do a step of the oldest search of the account whose turn it is; True if there are more."""
        if not self._searches:
            return False
        key = next(iter(self._searches))
        items = self._searches.pop(key)
        item, is_done = items.popleft(), True
        try:
            is_done = self._is_done(item)
        finally:
            if is_done:
                self._places.give_back(key)
            else:
                items.append(item)
            if items:
                self._searches[key] = items  # behind all others
        return bool(self._searches)

    def _is_done(self, item: _Search) -> bool:
        """Do a step; True if it is answered."""
        channel, command, search = item
        if was_refused(channel, command):
            return True
        try:
            reply = self._walked(command, search)
        except RequestError as error:
            reply = command.reply(error.code, remark=str(error))
        if reply is None:
            return False
        channel.send(reply)
        return True

    def _query(self, channel: Channel, command: Command) -> Work:
        topic, key = text(command, "topic"), text(command, "key")
        begin_ms, end_ms = number(command, "beginTimestamp"), number(command, "endTimestamp")
        index_type = command.ext.get("indexType") or INDEX_KEY_TYPE
        max_count = number(command, "maxNum")
        if truth(command, "_UNIQUE_KEY_QUERY"):
            index_type, max_count = INDEX_UNIQUE_TYPE, DEFAULT_QUERY_MAX_COUNT
        try:
            takes = self._filter_for(command.principal)
            wanted = Wanted(topic, key, min(max_count, MAX_QUERY_COUNT), begin_ms, end_ms, index_type, takes)
            search = KeySearch(self._index.search(wanted), partial(self._in_queues, wanted))
            while search.enter():
                yield
        except (StoreError, UsageError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        reply = self._walked(command, search)
        if reply is None:
            self._wait_in_line(channel, command, search)
        return reply

    def _filter_for(self, principal: Principal) -> RecordFilter:
        """Filter of the records that the account may have: only admins get what was sent to a deleted topic."""
        if not principal.is_restricted or principal.is_admin:
            return any_record
        is_of_deleted = self._topics.is_of_deleted
        return lambda record: not is_of_deleted(record.topic, record.queue_id, record.queue_offset)

    def _in_queues(self, wanted: Wanted, last_timestamp_ms: int) -> QueueSearch:
        topic = self._topics.get(wanted.topic)
        count = 0 if topic is None else max(topic.read_queue_count, topic.write_queue_count)
        return QueueSearch(self._log, range(count), wanted, last_timestamp_ms)

    def _wait_in_line(self, channel: Channel, command: Command, search: KeySearch) -> None:
        principal = command.principal
        waiting = self._searches.get(principal.access_key, deque())
        own_count = sum(item.channel is channel for items in self._searches.values() for item in items)
        if own_count >= MAX_SEARCH_COUNT_OF_ONE or not self._places.take(principal):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many searches of the index are under way; ask again")
        waiting.append(_Search(channel, command, search))
        self._searches[principal.access_key] = waiting
        self._search_soon()

    def _walked(self, command: Command, search: KeySearch) -> Command | None:
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
                f"too many entries of the index stand before those of {command.ext['key']!r}, and the topic has too "
                "many messages: ask for a shorter time between beginTimestamp and endTimestamp",
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
