"""A name server that follows the controllers: over sockets, with a controller that the test plays."""

from __future__ import annotations

import json
from collections.abc import Callable

import trio

from nameserver.config import NamesrvConfig
from nameserver.server import run_name_server
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.session import Session
from rmqha.host.tracer import HostTracer
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from tests.nameserver.test_server import registration
from tests.support.patience import HANG_MS, HANG_S

MAX_FRAME = 1024 * 1024


class Controller:
    """Answers what `answers` holds, then keeps the question."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.answers: list[Callable[[Command], Command]] = []
        self.held: list[tuple[Session, Command]] = []

    def opened(self, session: Session) -> None:
        session.attachment = self

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            assert command.code == RequestCode.RMQHA_FOLLOW_GROUPS
            self.asked.append(command.ext)
            if self.answers:
                session.send(self.answers.pop(0)(command))
            else:
                self.held.append((session, command))

    def closed(self, session: Session) -> None:
        session.attachment = None

    def tell(self, index: int, *rows: tuple[str, int, str, int]) -> None:
        session, command = self.held.pop()
        session.send(roles(index, *rows)(command))


def roles(index: int, *rows: tuple[str, int, str, int], next_place: int | None = None) -> Callable[[Command], Command]:
    ext = {"version": "1", "index": str(index), "full": "false"}
    if next_place is not None:
        ext["nextPlace"] = str(next_place)
    return lambda command: command.reply(ext=ext, body=json.dumps({"groups": rows}).encode())


async def eventually(holds: Callable[[], bool]) -> None:
    with trio.fail_after(HANG_S):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_a_told_election_is_routed_and_its_version_shown() -> None:
    controller, tracer = Controller(), HostTracer(write=lambda _: None)
    controller.answers = [roles(40, next_place=500), roles(44)]
    async with trio.open_nursery() as nursery, RemotingClient() as client:
        controller_port: int = await nursery.start(
            lambda task_status: serve(controller, "127.0.0.1:0", max_frame_bytes=MAX_FRAME, task_status=task_status)
        )
        config = NamesrvConfig(listen_port=0, controller_addr=f"127.0.0.1:{controller_port}")
        address = f"127.0.0.1:{await nursery.start(run_name_server, config, tracer)}"
        await client.call(address, registration(0, 1000), HANG_MS)
        await client.call(address, registration(2, 2000), HANG_MS)
        await eventually(lambda: bool(controller.held))
        assert [item.get("afterPlace") for item in controller.asked] == [None, "500", None]
        assert [item["fromIndex"] for item in controller.asked] == ["0", "0", "40"], "changes meanwhile come again"
        controller.tell(51, ("g", 2, "127.0.0.1:2000", 2))
        await eventually(lambda: bool(controller.held))
        route = await client.call(address, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}), HANG_MS)
        assert loads(bytes(route.body))["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:2000"}
        state = await client.call(address, Command(RequestCode.RMQHA_GET_NAMESRV_STATE), HANG_MS)
        view = loads(bytes(state.body))
        assert (view["eventIndex"], view["follows"]) == (51, f"127.0.0.1:{controller_port}")
        nursery.cancel_scope.cancel()


async def test_a_redirect_is_followed_and_nonsense_is_asked_again() -> None:
    follower, leader, tracer = Controller(), Controller(), HostTracer(write=lambda _: None)
    async with trio.open_nursery() as nursery:
        ports = []
        for controller in (follower, leader):

            async def listen(controller: Controller = controller, *, task_status: trio.TaskStatus[int]) -> None:
                await serve(controller, "127.0.0.1:0", max_frame_bytes=MAX_FRAME, task_status=task_status)

            ports.append(await nursery.start(listen))
        redirect = {"controllerLeaderAddress": f"127.0.0.1:{ports[1]}"}
        follower.answers = [lambda command: command.reply(ResponseCode.CONTROLLER_NOT_LEADER, redirect)] * 9
        leader.answers = [lambda command: command.reply(ext={"index": "x"}, body=b"{}")]
        config = NamesrvConfig(listen_port=0, controller_addr=f"127.0.0.1:{ports[0]}")
        await nursery.start(run_name_server, config, tracer)
        await eventually(lambda: bool(leader.held))
        assert len(leader.asked) == 2
        assert [event["event"] for event in tracer.history()].count("elections_not_followed") == 1
        nursery.cancel_scope.cancel()


async def test_controllers_that_tell_no_elections_are_left_alone() -> None:
    controller, tracer = Controller(), HostTracer(write=lambda _: None)
    controller.answers = [lambda command: command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)]
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(controller, "127.0.0.1:0", max_frame_bytes=MAX_FRAME, task_status=task_status)
        )
        await nursery.start(run_name_server, NamesrvConfig(listen_port=0, controller_addr=f"127.0.0.1:{port}"), tracer)
        await eventually(lambda: "elections_not_followed" in {event["event"] for event in tracer.history()})
        assert len(controller.asked) == 1
        nursery.cancel_scope.cancel()
