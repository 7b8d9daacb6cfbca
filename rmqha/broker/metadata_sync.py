"""A slave follows its master's tables each five seconds: topics, groups, consumer and delay offsets (A13). Shell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from rmqha.broker import groups as group_table
from rmqha.broker import topics as topic_table
from rmqha.broker.config_table import DataVersion
from rmqha.broker.delay_offsets import DelayOffsetTable
from rmqha.broker.groups import GroupTable
from rmqha.broker.offsets import OffsetTable
from rmqha.broker.topics import TopicTable
from rmqha.host.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import RemoteError, RemoteProtocolError, UnreachableError
from rmqha.port import Tracer
from rmqha.wire import lenient_json
from rmqha.wire.command import Command

INTERVAL_MS = 5000
FIRST_INTERVAL_MS = 500
"""Until the first success under a master, so that a new slave is useful soon."""
CALL_TIMEOUT_MS = 3000
SLICE_COUNT = 2000
"""Topics or groups asked for at once, as Java does."""
MAX_SLICES = 1000


class MetadataSync:
    """`master` gives the address to follow, "" while this replica has none or is the master itself.

    A table is taken whole and only while that address still is the master: a table that was on its way during a switch
    is dropped, so an old master's never replaces what this replica has accepted as master.
    """

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        delay_offsets: DelayOffsetTable,
        client: RemotingClient,
        master: Callable[[], str],
        tracer: Tracer,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._client = client
        self._master = master
        self._tracer = tracer
        self._followed = ""
        self._failed = False

    async def run(self) -> None:
        while True:
            address = self._master()
            if address != self._followed:
                self._followed = ""
            if address and await self.pull(address):
                self._followed = address
            await trio.sleep((INTERVAL_MS if self._followed else FIRST_INTERVAL_MS) / 1000)

    async def pull(self, address: str) -> bool:
        """Take all tables once; False (and traced, once) if the master did not give them."""
        try:
            await self._pull_topics(address)
            await self._pull_groups(address)
            await self._pull_offsets(address)
            await self._pull_delay_offsets(address)
        except (UnreachableError, RemoteError, RemoteProtocolError, ValueError, TypeError) as error:
            if not self._failed:
                self._tracer.event("metadata_not_synced", address=address, reason=str(error))
            self._failed = True
            return False
        self._failed = False
        return True

    async def _ask(self, address: str, code: RequestCode, ext: dict[str, str] | None = None) -> tuple[Command, Any]:
        reply = await self._client.call(address, Command(code, ext), CALL_TIMEOUT_MS)
        if reply.code != ResponseCode.SUCCESS:
            raise RemoteError(reply.code, reply.remark or "", address)
        body = lenient_json.loads(reply.body)
        if not isinstance(body, dict):
            raise RemoteProtocolError(f"{address} answered {code.name} with something else than an object")
        return reply, body

    async def _slices(self, address: str, code: RequestCode, what: str) -> list[dict[str, Any]]:
        """All slices of a table; `what` is Topic or Group, as in the names of the fields."""
        bodies: list[dict[str, Any]] = []
        for place in range(MAX_SLICES):
            first = place * SLICE_COUNT
            ext = {f"{what.lower()}Seq": str(first), f"max{what}Num": str(SLICE_COUNT), "dataVersion": ""}
            reply, body = await self._ask(address, code, ext)
            bodies.append(body)
            if first + SLICE_COUNT >= int(reply.ext.get(f"total{what}Num") or 0):
                break
        return bodies

    async def _pull_topics(self, address: str) -> None:
        bodies = await self._slices(address, RequestCode.GET_ALL_TOPIC_CONFIG, "Topic")
        table = {name: topic for body in bodies for name, topic in topic_table.parse_table(body).items()}
        if self._master() == address and table:
            deleted = topic_table.parse_deleted(bodies[-1])
            self._topics.replace(table, DataVersion.from_json(bodies[-1].get("dataVersion")), deleted)

    async def _pull_groups(self, address: str) -> None:
        bodies = await self._slices(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "Group")
        table = {name: group for body in bodies for name, group in group_table.parse_table(body).items()}
        if self._master() == address:
            self._groups.replace(bodies[-1], table)

    async def _pull_offsets(self, address: str) -> None:
        _, body = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        if self._master() == address:
            self._offsets.replace(body)

    async def _pull_delay_offsets(self, address: str) -> None:
        _, body = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        if self._master() == address:
            self._delay_offsets.replace(body)
