"""What a process tells over HTTP, asked over a real socket."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from rmqha.host.http.endpoint import HttpEndpoint, expose
from rmqha.host.http.server import Request, Response
from rmqha.host.tracer import HostTracer
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import UsageError
from rmqha.model.readiness import Readiness
from rmqha.model.series import Collecting, MetricFamilies, MetricKind, Series
from rmqha.ops.local.preflight import free_ports
from tests.support.patience import HANG_S

LEVEL = Series("test_level", MetricKind.GAUGE, "A level", ("side",))


class Server:
    def __init__(self, role: str) -> None:
        self.now = Readiness(role, True, facts={"epoch": 7})

    def readiness(self) -> Readiness:
        return self.now

    def collect(self) -> Collecting:
        families = MetricFamilies({"node": self.now.role})
        yield
        families.put(LEVEL, 3, "left")
        return families


def quiet() -> HostTracer:
    return HostTracer(write=lambda _: None)


@asynccontextmanager
async def exposed(*names: str) -> AsyncIterator[tuple[HttpEndpoint, int]]:
    port = free_ports(1)
    async with trio.open_nursery() as nursery:
        made = await expose(ServerConfig(http_port=port), quiet(), names, nursery)
        assert made is not None
        yield made, port
        nursery.cancel_scope.cancel()


async def get(port: int, path: str) -> tuple[int, str]:
    with trio.fail_after(HANG_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join([chunk async for chunk in stream]).decode()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def test_nothing_is_opened_without_a_port() -> None:
    async with trio.open_nursery() as nursery:
        assert await expose(ServerConfig(), quiet(), ("broker",), nursery) is None


def test_without_a_port_neither_library_is_loaded() -> None:
    imports = "import sys, rmqha.broker.server, rmqha.host.http.endpoint"
    program = imports + "; print({'h11', 'prometheus_client'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def test_a_server_that_starts_lives_and_is_not_ready() -> None:
    async with exposed("broker") as (made, port):
        assert (await get(port, "/healthz"))[0] == 200
        assert await get(port, "/readyz") == (503, "broker: it is starting\n")
        assert json.loads((await get(port, "/role"))[1])["role"] == "starting"
        assert (await get(port, "/metrics"))[0] == 200
        made.parts["broker"] = Server("master")
        assert await get(port, "/readyz") == (200, "ready\n")


async def test_roles_are_told_to_load_balancers() -> None:
    async with exposed("broker") as (made, port):
        server = made.parts["broker"] = Server("master")
        status, body = await get(port, "/role/master")
        assert status == 200
        assert json.loads(body) == {"server": "broker", "role": "master", "ready": True, "reason": "", "epoch": 7}
        assert (await get(port, "/role/slave"))[0] == 503
        server.now = Readiness("slave", False, "it does not follow its master")
        assert (await get(port, "/role/master"))[0] == 503
        assert (await get(port, "/role/slave"))[0] == 200
        assert await get(port, "/readyz") == (503, "broker: it does not follow its master\n")


async def test_a_server_inside_another_has_a_place_of_its_own() -> None:
    async with exposed("namesrv", "controller") as (made, port):
        made.parts["namesrv"] = Server("namesrv")
        assert await get(port, "/readyz") == (503, "controller: it is starting\n")
        made.parts["controller"] = Server("leader")
        view = json.loads((await get(port, "/role"))[1])
        assert (view["role"], view["controller"]["role"]) == ("namesrv", "leader")
        assert (await get(port, "/role/leader"))[0] == 200
        families = {item.name: item for item in text_string_to_metric_families((await get(port, "/metrics"))[1])}
        assert [(sample.labels, sample.value) for sample in families["test_level"].samples] == [
            ({"node": "namesrv", "side": "left"}, 3.0),
            ({"node": "leader", "side": "left"}, 3.0),
        ]
        assert "process_resident_memory_bytes" in families


async def test_a_bug_behind_a_route_is_counted() -> None:
    async def is_a_bug(request: Request) -> Response:
        raise ZeroDivisionError("oops")

    async with exposed("broker") as (made, port):
        made.routes["/bug"] = is_a_bug
        assert "rmqha_http_failed_requests_total 0.0" in (await get(port, "/metrics"))[1]
        assert (await get(port, "/bug"))[0] == 500
        assert "rmqha_http_failed_requests_total 1.0" in (await get(port, "/metrics"))[1]


async def test_a_port_in_use_is_a_usage_error() -> None:
    async with exposed("broker") as (_, port), trio.open_nursery() as nursery:
        with pytest.raises(UsageError, match=f"port {port} in use"):
            await expose(ServerConfig(http_port=port), quiet(), ("broker",), nursery)
