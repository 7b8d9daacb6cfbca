"""An exception that nobody foresaw in the handler of any request of any server: it closes that session, is traced with
its traceback, counted, and ends nothing else. Over real sockets; every code that a server has is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trio

from controller.machine import ControllerMachine
from controller.quorum.quorum_requests import QuorumRequests
from controller.requests import Requests
from nameserver.config import NamesrvConfig
from nameserver.kv_config import KvConfig
from nameserver.server import NameServer
from rmqha.host.access import security_watch
from rmqha.host.log_files import LogFiles
from rmqha.host.net import session
from rmqha.host.net.boundary import Boundary
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import UnreachableError
from rmqha.wire.command import Command
from tests.broker.support import MAX_FRAME_BYTES, Broker
from tests.controller.test_acl_matrix import ADMIN, ANY_ACCOUNT
from tests.controller.test_server import running, sole
from tests.support.clock import ManualClock
from tests.support.patience import HANG_MS

NOBODYS = 4711
"""No server has it: its answer shows that the server goes on."""

Bug = Callable[..., Any]
Plant = Callable[[int, Bug], Any]
"""Gives a context in which the handler of this code raises."""


def bug_of(code: int) -> Bug:
    """Of a type of its own: an exception of one type at one line is traced once a minute."""

    def raising(*arguments: object, **keys: object) -> Any:
        raise type(f"Bug{code}", (Exception,), {})("nobody foresaw it")

    return raising


class Trace:
    def __init__(self) -> None:
        self.tracer = HostTracer(write=lambda line: None)
        self.found: list[dict[str, Any]] = []
        self.tracer.listeners.append(self._heard)

    def _heard(self, now_ms: int, name: str, fields: Any) -> None:
        if name == "request_failed":
            self.found.append(dict(fields))


async def try_all(address: str, codes: list[int], plant: Plant, trace: Trace) -> None:
    async with RemotingClient() as other, RemotingClient() as honest:
        await honest.call(address, Command(codes[0]), HANG_MS)  # who asks nothing that a server has is soon closed
        for number, code in enumerate(codes, 1):
            with plant(code, bug_of(code)), pytest.raises(UnreachableError):
                await other.call(address, Command(code, {"brokerName": "g", "topic": "T"}), HANG_MS)
            told = trace.found[-1]
            assert (len(trace.found), told["failed_count"], told["codes"]) == (number, number, [code])
            assert told["traceback"].startswith("Traceback") and f"Bug{code}: nobody foresaw it" in told["traceback"]
            for client in (honest, other):
                answer = await client.call(address, Command(NOBODYS), HANG_MS)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class BrokersGate:
    def __init__(self, broker: Broker) -> None:
        self._processor = broker.core.processor

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        self._processor.received(session, commands)

    def closed(self, session: Session) -> None:
        self._processor.closed(session)


async def served(service: Any, codes: list[int], plant: Plant, trace: Trace) -> int:
    """Tries all codes of a service; how many failures were counted."""
    counts = Statistics()
    async with trio.open_nursery() as nursery:
        serving = partial(serve, service, "127.0.0.1:0", max_frame_bytes=MAX_FRAME_BYTES, statistics=counts)
        port: int = await nursery.start(partial(serving, boundary=Boundary(counts, trace.tracer)))
        await try_all(f"127.0.0.1:{port}", codes, plant, trace)
        nursery.cancel_scope.cancel()
    return counts.failed_request_count


@pytest.mark.parametrize("is_master", [True, False])
async def test_of_a_broker(tmp_path: Path, is_master: bool) -> None:
    broker, trace = Broker(tmp_path), Trace()
    if is_master:
        broker.start()
    processor = broker.core.processor
    codes = sorted(processor.codes)

    @contextmanager
    def plant(code: int, bug: Bug) -> Iterator[None]:
        table: dict[int, Any]
        for table in (processor._later, processor._handlers):
            if code in table:
                with patch.dict(table, {code: bug}):
                    yield
                return
        with patch.object(processor._send, "process", bug):
            yield

    assert len(codes) > 50
    assert await served(BrokersGate(broker), codes, plant, trace) == len(codes)
    broker.close()


async def test_of_a_name_server() -> None:
    clock, trace = ManualClock(0, 0), Trace()
    server = NameServer(NamesrvConfig(), HostTracer(clock=clock, write=lambda _: None), clock, KvConfig())
    codes = sorted(server.codes)

    def plant(code: int, bug: Bug) -> Any:
        if code == RequestCode.REGISTER_BROKER:
            return patch.object(server, "_register", bug)
        return patch.dict(server._handlers, {code: bug})

    assert await served(server, codes, plant, trace) == len(codes)


async def test_of_a_controller(tmp_path: Path) -> None:
    trace = Trace()
    places = (
        (Requests, "serve"),
        (QuorumRequests, "serve"),
        (ControllerMachine, "_update_config"),
        (ControllerMachine, "_any_node_answer"),
        (ControllerMachine, "state"),
        (LogFiles, "answer"),
        (HostTracer, "history_answer"),
        (security_watch, "view"),
    )

    @contextmanager
    def plant(code: int, bug: Bug) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, bug))
            stack.enter_context(patch("controller.machine.decode_message", bug))
            yield

    async with running(sole(tmp_path / "store"), trace.tracer) as address:
        await try_all(address, sorted(ANY_ACCOUNT | ADMIN), plant, trace)


@pytest.mark.parametrize("slice_s", [10.0, -1.0], ids=["same slice", "next slice"])
async def test_in_a_later_step(tmp_path: Path, slice_s: float) -> None:
    """What is answered in steps may fail at each of them."""
    trace = Trace()

    def plant(code: int, bug: Bug) -> Any:
        def steps(*arguments: object) -> Iterator[None]:
            yield None
            bug()

        return patch.object(ControllerMachine, "state", steps)

    with patch.object(session, "SLICE_S", slice_s):
        async with running(sole(tmp_path / "store"), trace.tracer) as address:
            await try_all(address, [RequestCode.RMQHA_GET_CONTROLLER_STATE], plant, trace)
