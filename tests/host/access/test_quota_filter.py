"""What is beyond a quota is answered SYSTEM_BUSY, by one server on a real socket and by its parts."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import trio

from rmqha.host.access.accounts import AccessFile
from rmqha.host.access.quota_filter import OPERATOR_CODES, QuotaFilter
from rmqha.host.clock import HostClock
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.principal import Principal
from rmqha.model.quota import Limit, QuotaLimits, Quotas
from rmqha.ops import asking as states
from rmqha.ops import survey
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.broker.support import FakeChannel
from tests.host.access.test_security import Echo
from tests.support.patience import HANG_MS

ACCOUNTS = """
accounts:
- {accessKey: orders, secretKey: '12345678'}
- {accessKey: cluster, secretKey: '12345678', admin: true}
"""


class Taken:
    def __init__(self) -> None:
        self.commands: list[Command] = []

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, commands: list[Command]) -> None:
        assert commands
        self.commands += commands

    def closed(self, session: Session) -> None:
        pass


def request(principal: Principal | None = None, flag: int = 0) -> Command:
    command = Command(RequestCode.HEART_BEAT, {}, b"x" * 100, flag=flag)
    if principal is not None:
        command.principal = principal
    return command


async def test_only_what_its_quota_allows_reaches_the_service(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    accounts = AccessFile(path)
    orders, cluster = Principal(accounts, "orders"), Principal(accounts, "cluster")
    service, statistics, channel = Taken(), Statistics(), FakeChannel("[::1]:5")
    quotas = Quotas(QuotaLimits(account=Limit(2)))
    waits: list[tuple[int, Callable[[], None]]] = []
    gate = QuotaFilter(service, quotas, HostClock(), statistics, lambda *wait: waits.append(wait))
    session = cast(Session, channel)
    gate.received(session, [request(orders) for _ in range(4)] + [request(orders, flag=FLAG_ONEWAY)])
    assert len(service.commands) == 2 and statistics.quota_refused_count == 3
    assert [(sent.code, sent.remark) for sent in channel.take()] == [
        (ResponseCode.SYSTEM_BUSY, "account orders is over its quota of requests a second; try again later")
    ] * 2
    assert [delay_ms > 1400 // 2 for delay_ms, _ in waits] == [True], "half a second for each, one second at most"
    gate.received(session, [request(orders)])
    gate.received(session, [request(cluster) for _ in range(10)])
    assert len(service.commands) == 12
    channel.take()
    quotas.configure(QuotaLimits(address=Limit(0, 50)))
    gate.received(session, [request(), request(cluster), request()])
    assert len(service.commands) == 14
    assert channel.one().remark == "address ::1 is over its quota of bytes a second; try again later"
    quotas.configure(QuotaLimits())
    gate.received(session, [request(orders) for _ in range(10)])
    assert len(service.commands) == 24


@asynccontextmanager
async def asking(limits: QuotaLimits) -> AsyncIterator[tuple[Callable[[], Awaitable[int]], Statistics]]:
    """Asks a server with these quotas once, for the code of its answer; the server's statistics."""
    statistics = Statistics()
    async with trio.open_nursery() as nursery:
        serving = lambda task_status: serve(  # noqa: E731
            Echo(),
            "127.0.0.1:0",
            max_frame_bytes=1000,
            statistics=statistics,
            quotas=Quotas(limits),
            task_status=task_status,
        )
        port: int = await nursery.start(serving)
        async with RemotingClient(max_frame_bytes=1000) as client:

            async def ask() -> int:
                return (await client.call(f"127.0.0.1:{port}", request(), HANG_MS)).code

            yield ask, statistics
        nursery.cancel_scope.cancel()


async def test_who_was_refused_is_read_again_when_there_is_room() -> None:
    async with asking(QuotaLimits(address=Limit(2))) as (ask, _):
        codes: list[int] = []
        while codes.count(ResponseCode.SYSTEM_BUSY) < 3:
            codes.append(await ask())
        assert (ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY) not in pairwise(codes)


async def test_a_server_with_quotas() -> None:
    async with asking(QuotaLimits(address=Limit(3))) as (ask, statistics):
        codes = [await ask() for _ in range(4)]
        assert codes.count(ResponseCode.SYSTEM_BUSY) == 1 == statistics.quota_refused_count


async def test_a_quota_that_is_too_low_locks_no_operator_out() -> None:
    """Without accounts an operator comes from an address like everybody: the requests that change a quota have a small
    bound of their own."""
    service, channel = Taken(), FakeChannel("10.0.0.9:5")
    quotas = Quotas(QuotaLimits(address=Limit(1, 1)))
    gate = QuotaFilter(service, quotas, HostClock(), Statistics(), lambda *wait: None)
    session = cast(Session, channel)
    gate.received(session, [request() for _ in range(5)])
    assert len(service.commands) == 1 and len(channel.take()) == 4
    way_back = [Command(code, {}) for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)]
    gate.received(session, way_back)
    assert service.commands[1:] == way_back and not channel.take()
    gate.received(session, [Command(RequestCode.GET_BROKER_CONFIG, {}) for _ in range(100)])
    assert len(service.commands) <= 25, "a flood of them is bounded too"
    assert all(sent.code == ResponseCode.SYSTEM_BUSY for sent in channel.take())


def test_all_that_health_asks_of_our_servers_is_served_beyond_a_quota() -> None:
    """Or a controller that refuses one question of it is called one that refuses to answer."""
    told = inspect.getsource(survey) + inspect.getsource(states)
    of_apaches = {RequestCode.CONTROLLER_GET_METADATA_INFO, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA}
    asked = {RequestCode[name] for name in re.findall(r"RequestCode\.([A-Z_]+)", told)} - of_apaches
    assert RequestCode.RMQHA_GET_QUORUM in asked and asked <= OPERATOR_CODES
