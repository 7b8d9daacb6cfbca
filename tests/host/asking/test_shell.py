"""Questions over blocking sockets and over trio: the same answers, the same words for what goes wrong."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import trio

from rmqha.host.access.process_security import NO_SECURITY, ambient
from rmqha.host.asking import blocking
from rmqha.host.asking.shell import Caller, ask_by, beside, now_s, open_client, open_tasks, sleep, within
from rmqha.model.error import CLOSED_UNHEARD, NotSentError, UnreachableError
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.patience import HANG_S

LONG_MS = round(HANG_S * 1000)
SHORT_MS = 50

ECHO, SILENT, CLOSES, NONSENSE, TWICE = 10, 11, 12, 13, 14
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _without_security() -> Iterator[None]:
    """Other tests of this process may have left some."""
    before = ambient.set(NO_SECURITY)
    yield
    ambient.reset(before)


@pytest.fixture(params=[blocking.run, trio.run], ids=["blocking", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


class Peer:
    """A server of one thread a connection that does what the code of a request says."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.opened_count = 0
        self._streams: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listener.close()
        for stream in self._streams:
            stream.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self.opened_count += 1
            self._streams.append(stream)
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        parser = FrameParser(1 << 20)
        with closing(stream):
            while True:
                try:
                    data = stream.recv(1 << 16)
                except OSError:
                    return
                if not data:
                    return
                for command in parser.feed(data):
                    answer = encode_frame(command.reply(body=bytes(command.body)))
                    if command.code == CLOSES:
                        return
                    if command.code == ECHO:
                        # in pieces, and behind something that nobody has asked for
                        pushed = encode_frame(Command(40, opaque=command.opaque))
                        stream.sendall(pushed + answer[:5])
                        stream.sendall(answer[5:])
                    elif command.code == TWICE:
                        stream.sendall(answer + answer)
                    elif command.code == NONSENSE:
                        stream.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextmanager
def peer() -> Iterator[Peer]:
    with closing(Peer()) as found:
        yield found


async def call(address: str, code: int, timeout_ms: int | None = LONG_MS, body: bytes = b"") -> bytes:
    async with open_client() as client:
        return bytes((await client.call(address, Command(code, body=body), timeout_ms)).body)


def refused_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_an_answer_is_found_behind_what_was_pushed_and_in_pieces(run: Run) -> None:
    with peer() as server:
        assert run(call, server.address, ECHO, LONG_MS, b"x" * 300_000) == b"x" * 300_000


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (SILENT, r"did not answer (request 11|a connection) within \d+ ms"),
        (CLOSES, re.escape(CLOSED_UNHEARD)),
        (NONSENSE, "does not speak RocketMQ's protocol: another program listens there, or it wants TLS"),
    ],
)
def test_trouble_has_the_same_words(run: Run, code: int, words: str) -> None:
    timeout_ms = SHORT_MS if code == SILENT else LONG_MS
    with peer() as server, pytest.raises(UnreachableError) as told:
        run(call, server.address, code, timeout_ms)
    assert re.fullmatch(f"{server.address} {words}", str(told.value))


def test_who_has_answered_before_is_no_full_server(run: Run) -> None:
    async def ask_twice(address: str) -> None:
        async with open_client() as client:
            await client.call(address, Command(ECHO), LONG_MS)
            await client.call(address, Command(CLOSES), LONG_MS)

    with peer() as server, pytest.raises(UnreachableError, match=r"closed the connection before it answered$"):
        run(ask_twice, server.address)


def test_nobody_there_has_the_same_words(run: Run) -> None:
    address = refused_address()
    with pytest.raises(NotSentError) as told:
        run(call, address, ECHO)
    assert str(told.value) == f"cannot connect to {address}: Connection refused"


def test_a_name_that_nobody_knows_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, flags: int = 0, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(NotSentError, match=r"^cannot connect to ns:1: .*Name or service not known$"):
        blocking.run(call, "ns:1", ECHO)


def test_a_name_that_nobody_answers_for_takes_its_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def silent(*_: object, flags: int = 0, **__: object) -> list[object]:
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        over.wait(HANG_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(NotSentError, match=r"^ns:1 did not answer a connection within 50 ms$"):
        blocking.run(call, "ns:1", ECHO, SHORT_MS)
    over.set()


def test_one_connection_serves_call_after_call(run: Run) -> None:
    async def question(address: str) -> list[bytes]:
        async with open_client() as client:
            return [bytes((await client.call(address, Command(ECHO, body=b"%d" % n), LONG_MS)).body) for n in range(5)]

    with peer() as server:
        assert run(question, server.address) == [b"0", b"1", b"2", b"3", b"4"]
        assert server.opened_count == 1


def test_an_answer_that_comes_twice_is_nobodys(run: Run) -> None:
    async def question(address: str) -> list[bytes]:
        async with open_client() as client:
            found = [bytes((await client.call(address, Command(TWICE, body=b"a"), LONG_MS)).body)]
            found.append(bytes((await client.call(address, Command(ECHO, body=b"b"), LONG_MS)).body))
            return found

    with peer() as server:
        assert run(question, server.address) == [b"a", b"b"]


def test_a_silent_peer_keeps_nobody_else(run: Run) -> None:
    """The others are told before the silent one has used its time: they wait for it there."""

    async def question(address: str) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        async with open_client() as client:

            async def ask(body: bytes) -> None:
                found.append(bytes((await client.call(address, Command(ECHO, body=body), LONG_MS)).body))

            with within(HANG_S) as scope:
                async with open_tasks() as tasks:
                    tasks.start_soon(silent, client, address, found)
                    for number in range(20):
                        tasks.start_soon(ask, b"%02d" % number)
            return sorted(found), scope.cancelled_caught

    async def silent(client: Any, address: str, found: list[bytes]) -> None:
        while len(found) < 20:
            with within(SHORT_MS / 1000) as scope:
                await client.call(address, Command(SILENT), None)
            assert scope.cancelled_caught

    with peer() as server:
        found, late = run(question, server.address)
    assert found == [b"%02d" % number for number in range(20)] and not late


def test_the_time_of_an_outer_scope_ends_its_tasks(run: Run) -> None:
    async def question(address: str) -> list[bool]:
        async with open_client() as client:

            async def ask() -> None:
                with within(HANG_S) as inner:
                    await client.call(address, Command(SILENT), LONG_MS)
                raise AssertionError(inner.cancelled_caught)

            with within(SHORT_MS / 1000) as outer:
                async with open_tasks() as tasks:
                    for _ in range(3):
                        tasks.start_soon(ask)
            with within(SHORT_MS / 1000) as asleep:
                await sleep(HANG_S)
            with within(HANG_S) as awake:
                await sleep(0.001)
            return [outer.cancelled_caught, asleep.cancelled_caught, awake.cancelled_caught]

    with peer() as server:
        assert run(question, server.address) == [True, True, False]


def test_an_error_of_a_task_reaches_who_waits(run: Run) -> None:
    async def fails() -> None:
        await sleep(0)
        raise UnreachableError("gone")

    async def question() -> None:
        async with open_tasks() as tasks:
            tasks.start_soon(fails)

    with pytest.raises((UnreachableError, ExceptionGroup)) as told:
        run(question)
    error = told.value
    assert str(error.exceptions[0] if isinstance(error, ExceptionGroup) else error) == "gone"


def test_tasks_take_turns_only_where_they_wait(run: Run) -> None:
    """What stands between two waits is seen by nobody else: a question needs no locks."""
    count = 0

    async def adds() -> None:
        nonlocal count
        for _ in range(50):
            seen = count
            for _ in range(500):
                pass
            count = seen + 1
            await sleep(0)

    async def question() -> None:
        async with open_tasks() as tasks:
            for _ in range(8):
                tasks.start_soon(adds)

    run(question)
    assert count == 400


def test_a_task_may_start_others(run: Run) -> None:
    async def question() -> list[int]:
        found: list[int] = []
        async with open_tasks() as tasks:

            async def one(left: int) -> None:
                await sleep(0)
                found.append(left)
                if left:
                    tasks.start_soon(one, left - 1)

            tasks.start_soon(one, 5)
        return found

    assert run(question) == [5, 4, 3, 2, 1, 0]


def test_a_task_that_another_starts_has_the_time_of_those_who_wait_for_it(run: Run) -> None:
    """Not that of its starter, whose scope may be over first: nobody around the new task would know of that one."""

    async def question(address: str) -> list[bytes]:
        found: list[bytes] = []

        async def second(client: Caller) -> None:
            with within(SHORT_MS / 1000) as scope:
                await client.call(address, Command(SILENT), LONG_MS)
            assert scope.cancelled_caught
            found.append(bytes((await client.call(address, Command(ECHO, body=b"late"), LONG_MS)).body))

        async with open_client() as client, open_tasks() as tasks:

            async def first() -> None:
                with within(SHORT_MS / 2000):
                    tasks.start_soon(second, client)
                    await client.call(address, Command(SILENT), LONG_MS)

            tasks.start_soon(first)
        return found

    with peer() as server:
        assert run(question, server.address) == [b"late"]


def test_a_peer_that_came_back_is_asked_over_a_new_connection() -> None:
    async def question(server: Peer) -> int:
        async with open_client() as client:
            await client.call(server.address, Command(ECHO), LONG_MS)
            (stream,) = server._streams
            stream.shutdown(socket.SHUT_RDWR)
            end_s = now_s() + HANG_S
            while not await beside(lambda: closed(client)) and now_s() < end_s:
                await sleep(0.001)
            await client.call(server.address, Command(ECHO), LONG_MS)
            return server.opened_count

    def closed(client: Any) -> bool:
        (connection,) = next(iter(client._idle.values()))
        return not connection.is_fresh

    with peer() as server:
        assert blocking.run(question, server) == 2


def test_a_command_asks_over_blocking_sockets() -> None:
    async def question() -> bool:
        return blocking.is_running()

    assert ask_by(question)


def test_a_question_that_waits_for_an_event_loop_is_a_bug() -> None:
    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield None

    async def question() -> None:
        awaited: Awaitable[None] = Never()
        await awaited

    with pytest.raises(AssertionError, match="event loop"):
        blocking.run(question)
