"""An exception that nobody foresaw ends one session, or the process if something may be half changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from rmqha.host.net import boundary as module
from rmqha.host.net import remoting
from rmqha.host.net.boundary import MAX_TRACED_CHARS, Boundary, ends_process
from rmqha.host.net.remoting import RemotingClient, serve, serve_session
from rmqha.host.net.session import Session, SessionHost
from rmqha.host.net.statistics import Statistics
from rmqha.host.process import FEW_FILES_ADVICE
from rmqha.model.code import RequestCode
from rmqha.model.error import (
    BrokenInvariantError,
    DamagedError,
    RemoteProtocolError,
    StoreError,
    UnreachableError,
    UsageError,
    whole,
)
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.patience import HANG_MS, HANG_S
from tests.support.tracer import RecordingTracer

FRAME_LIMIT = 1 << 20
BAD = 99
LATER = 98


class Faulty:
    """Echoes; request 99 meets `error`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.closed_count = 0

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if command.code == LATER:
                session.work(self.steps())
            elif command.code == BAD and self.error is not None:
                raise self.error
            elif command.code == BAD:
                session.send(command.reply(remark="\ud800"))  # no UTF-8 has it
            else:
                session.send(command.reply(body=command.body))

    def steps(self) -> Iterator[None]:
        yield
        if self.error is not None:
            raise self.error

    def closed(self, session: Session) -> None:
        self.closed_count += 1


class Running:
    def __init__(self, service: Faulty) -> None:
        self.service = service
        self.counts = Statistics()
        self.trace = RecordingTracer()

    async def run(self, task_status: trio.TaskStatus[int]) -> None:
        await serve(
            self.service,
            "127.0.0.1:0",
            max_frame_bytes=FRAME_LIMIT,
            statistics=self.counts,
            boundary=Boundary(self.counts, self.trace),
            task_status=task_status,
        )


@pytest.mark.parametrize("error", [KeyError("topic"), RecursionError("deep"), OSError(28, "No space left"), None])
async def test_one_request_closes_its_session_and_ends_nothing_else(error: Exception | None) -> None:
    here = Running(Faulty(error))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(here.run)
        address = f"127.0.0.1:{port}"
        async with RemotingClient() as honest, RemotingClient() as other:
            assert (await honest.call(address, Command(1, body=b"a"), HANG_MS)).body == b"a"
            with pytest.raises(UnreachableError):
                await other.call(address, Command(BAD), HANG_MS)
            assert (await honest.call(address, Command(1, body=b"b"), HANG_MS)).body == b"b"
            assert (await other.call(address, Command(1, body=b"c"), HANG_MS)).body == b"c"
        nursery.cancel_scope.cancel()
    assert here.counts.failed_request_count == 1
    [(name, fields)] = here.trace.events
    assert (name, fields["codes"]) == ("request_failed", [BAD] if error else [])
    assert "Traceback" in fields["traceback"]
    assert (type(error).__name__ if error else "UnicodeEncodeError") in fields["traceback"]
    assert len(fields["traceback"]) <= MAX_TRACED_CHARS


async def test_so_does_one_that_is_worked_on_in_steps() -> None:
    here = Running(Faulty(KeyError("group")))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(here.run)
        async with RemotingClient() as honest, RemotingClient() as other:
            with pytest.raises(UnreachableError):
                await other.call(f"127.0.0.1:{port}", Command(LATER), HANG_MS)
            assert (await honest.call(f"127.0.0.1:{port}", Command(1), HANG_MS)).code == 0
        nursery.cancel_scope.cancel()
    assert (here.counts.failed_request_count, here.counts.session_count) == (1, 0)


async def test_what_was_asked_before_is_answered() -> None:
    """In this task too, as with TLS."""
    ours, theirs = memory_stream_pair()
    service, counts = Faulty(KeyError("x")), Statistics()
    boundary = Boundary(counts, RecordingTracer())
    session = Session(1, ours, "peer:1", SessionHost(counts, FRAME_LIMIT, 1 << 20, boundary=boundary))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve_session(service, session, counts, idle_timeout_ms=60_000))
        codes = [1, BAD, 1]
        await theirs.send_all(b"".join(encode_frame(Command(code, opaque=at)) for at, code in enumerate(codes)))
        parser, replies = FrameParser(FRAME_LIMIT), list[Command]()
        with trio.fail_after(HANG_S):
            while data := await theirs.receive_some():
                replies += parser.feed(bytes(data))
    assert [reply.opaque for reply in replies] == [0]
    assert (counts.session_count, counts.failed_request_count, service.closed_count) == (0, 1, 1)


@pytest.mark.parametrize("error", [StoreError("the log"), DamagedError("a place"), BrokenInvariantError("half")])
async def test_what_may_be_half_changed_ends_the_server(error: Exception) -> None:
    here = Running(Faulty(error))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(here.run)
            async with RemotingClient() as client:
                with pytest.raises(UnreachableError):
                    await client.call(f"127.0.0.1:{port}", Command(BAD), HANG_MS)
                await trio.sleep_forever()
    assert caught.value.subgroup(type(error)) is not None
    assert here.counts.failed_request_count == 0


def test_of_a_group_the_worst_counts() -> None:
    assert ends_process(ExceptionGroup("", [ValueError(), ExceptionGroup("", [StoreError("x")])]))
    assert not ends_process(ExceptionGroup("", [ValueError(), OSError()]))


async def test_a_flood_of_failures_is_counted_and_traced_now_and_then(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, trace = Statistics(), RecordingTracer()
    found = Boundary(counts, trace)

    def meet(divisor: int | str, count: int = 1) -> None:
        for _ in range(count):
            try:
                print(1 // divisor)  # type: ignore[operator]
            except Exception as error:  # noqa: BLE001
                found.failed(error, "peer:1", [7])

    meet(0, 100)
    meet("x", 100)
    assert [fields["failed_count"] for _, fields in trace.events] == [1, 101]
    await trio.sleep(module.REPEAT_S + 1)
    meet(0, 100)
    assert [fields["failed_count"] for _, fields in trace.events] == [1, 101, 201]
    monkeypatch.setattr(module, "MAX_KIND_COUNT", 1)
    meet("x")
    meet(0)
    assert counts.failed_request_count == 302 and len(trace.events) == 5


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AssertionError("x"), BrokenInvariantError),
        (KeyError("x"), BrokenInvariantError),
        (OSError(5, "x"), StoreError),
        (StoreError("x"), StoreError),
        (UsageError("x"), UsageError),
        (RemoteProtocolError("x"), RemoteProtocolError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_what_interrupts_a_whole_change(error: BaseException, expected: type[BaseException]) -> None:
    @whole
    def change() -> None:
        raise error

    with pytest.raises(expected) as caught:
        change()
    assert caught.type is expected
    assert caught.value is error or caught.value.__cause__ is error


async def test_a_server_that_is_full_says_so_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting, "max_session_count", lambda: 1)
    running = Running(Faulty())
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(running.run)
        async with RemotingClient() as first:
            await first.call(f"127.0.0.1:{port}", Command(RequestCode.HEART_BEAT), HANG_MS)
            for _ in range(3):
                async with RemotingClient() as second:
                    with pytest.raises(UnreachableError):
                        await second.call(f"127.0.0.1:{port}", Command(RequestCode.HEART_BEAT), HANG_MS)
        nursery.cancel_scope.cancel()
    fields = {"connections": 1, "refused_count": 1, "advice": FEW_FILES_ADVICE}
    assert running.trace.events == [("connections_refused", fields)]


async def test_a_server_that_is_full_again_says_so_again(autojump_clock: trio.testing.MockClock) -> None:
    counts, trace = Statistics(refused_count=7), RecordingTracer()
    boundary = Boundary(counts, trace)
    for pause_s in (0, 1, module.REPEAT_S):
        await trio.sleep(pause_s)
        boundary.full(64, "raise it")
    assert trace.names() == ["connections_refused"] * 2
