"""Thousands of connections speak at once: each turn of the event loop serves some of them; who does not read his
replies is not read."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing
import trustme

from rmqha.host.access.security import Security, ServerTls
from rmqha.host.net import fair_queue, remoting
from rmqha.host.net import poller as module
from rmqha.host.net import session as session_module
from rmqha.host.net.fair_queue import QueueEntry
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.support.patience import HANG_S

MAX_SERVED_COUNT = 40
CROWD_COUNT = 5 * MAX_SERVED_COUNT
URGENT = 2
FRAME = encode_frame(Command(1))
serve = partial(remoting.serve, first_request_timeout_ms=HANG_S * 1000)
"""Codes here are no broker's: whoever sends nothing else would be closed after two seconds, busy machine or not."""


class TurnCount(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


class Counter:
    """Notes the turn in which each request was read, and makes sessions urgent that ask for it."""

    def __init__(self, turn: TurnCount) -> None:
        self.turn = turn
        self.turns: list[int] = []
        self.urgent_turns: list[int] = []

    def opened(self, session: Session) -> None:
        session.attachment = self

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            session.is_urgent |= command.code == URGENT
            (self.urgent_turns if session.is_urgent else self.turns).append(self.turn.count)
            session.send(command.reply())

    def closed(self, session: Session) -> None:
        session.attachment = None


async def _answers(stream: socket.socket) -> None:
    await trio.lowlevel.wait_readable(stream)
    assert stream.recv(65536)


async def test_a_crowd_is_served_some_in_each_turn_and_the_urgent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERVED_COUNT", MAX_SERVED_COUNT)
    turn = TurnCount()
    service = Counter(turn)
    trio.lowlevel.add_instrument(turn)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(service, "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD_COUNT + 1)]
        urgent = crowd.pop()
        urgent.send(encode_frame(Command(URGENT)))
        await _answers(urgent)
        for stream in crowd:  # every session is there by now
            stream.send(FRAME)
            await _answers(stream)
        service.turns.clear()
        service.urgent_turns.clear()

        for stream in [*crowd, urgent]:  # nothing runs meanwhile: all are readable in the same turn
            stream.send(FRAME)
        with trio.fail_after(HANG_S):
            for stream in [*crowd, urgent]:
                await _answers(stream)
        assert len(service.turns) == CROWD_COUNT
        most = max(service.turns.count(number) for number in set(service.turns))
        assert most <= MAX_SERVED_COUNT, f"{most} sessions were served in one turn"
        assert service.urgent_turns == [service.turns[0]], "the urgent one stood in line"
        for stream in [*crowd, urgent]:
            stream.close()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)


class Busy:
    """Each request takes 10 ms; notes how long each has waited."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waited_ms: list[int] = []

    def monotonic(self) -> float:
        return self.now_s

    def thread_time_ns(self) -> int:
        return round(self.now_s * 1e9)

    def opened(self, session: Session) -> None:
        """Nothing to do."""

    def received(self, session: Session, commands: list[Command]) -> None:
        self.waited_ms.append(session.waited_ms)
        self.now_s += 0.01
        for command in commands:
            session.send(command.reply())

    def closed(self, session: Session) -> None:
        """Nothing to do."""


async def test_how_long_each_stood_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Busy()
    monkeypatch.setattr(module, "MAX_SERVED_COUNT", MAX_SERVED_COUNT)
    monkeypatch.setattr(module, "time", service)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(service, "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD_COUNT)]
        for stream in crowd:
            stream.send(FRAME)
            await _answers(stream)
        assert set(service.waited_ms) == {0}
        service.waited_ms.clear()
        for stream in crowd:  # nothing runs meanwhile: all are readable in the same turn
            stream.send(FRAME)
        with trio.fail_after(HANG_S):
            for stream in crowd:
                await _answers(stream)
        expected = [10 * place for place in range(CROWD_COUNT)]
        off = [abs(waited - wanted) for waited, wanted in zip(service.waited_ms, expected, strict=True)]
        assert max(off) <= 1, service.waited_ms
        service.waited_ms.clear()
        crowd[0].send(FRAME)
        await _answers(crowd[0])
        assert service.waited_ms == [0], "there is no line any more"
        for stream in crowd:
            stream.close()
        nursery.cancel_scope.cancel()


FLOOD_COUNT = 500
COSTLY = 3


class Slow(Busy):
    """Each request takes a millisecond; notes who has been served in which turn of the event loop."""

    def __init__(self, turn: TurnCount) -> None:
        super().__init__()
        self.turn = turn
        self.served: list[tuple[int, int]] = []

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            self.served.append((command.code, self.turn.count))
            self.now_s += 0.001
            session.send(command.reply())


@pytest.mark.parametrize("secure", [False, True])
async def test_a_flood_by_some_holds_up_nobody_else(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest request waits for a turn, not for what the others have sent; a turn is bounded in time."""
    turn = TurnCount()
    service = Slow(turn)
    monkeypatch.setattr(module, "time", service)
    monkeypatch.setattr(session_module, "time", service)
    server_tls, client_tls = _contexts()
    security = Security(server_tls=ServerTls(server_tls, only=True)) if secure else Security()
    trio.lowlevel.add_instrument(turn)
    flood_code, honest_code, told = 1, 2, b"".join(encode_frame(Command(1, opaque=n)) for n in range(FLOOD_COUNT))
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, security=security, task_status=task_status
            )
        )
        streams: list[trio.abc.Stream] = []
        for _ in range(9):
            plain = await trio.open_tcp_stream("127.0.0.1", port)
            streams.append(trio.SSLStream(plain, client_tls) if secure else plain)
            await streams[-1].send_all(FRAME)
            await streams[-1].receive_some(65536)
        honest = streams.pop()
        service.served.clear()
        for stream in streams:
            await stream.send_all(told)
        for _ in range(5):
            before = len(service.served)
            await honest.send_all(encode_frame(Command(honest_code)))
            with trio.fail_after(HANG_S):
                await honest.receive_some(65536)
            waited_for = [code for code, _ in service.served[before:]].index(honest_code)
            assert waited_for <= 25, "it stood in line behind the flood"
        for number in {number for _, number in service.served}:
            count = sum(1 for code, at in service.served if at == number and code == flood_code)
            assert count <= 12, f"{count} ms in one turn"
        with trio.fail_after(HANG_S):
            for stream in streams:
                parser, opaques = FrameParser(65536), list[int]()
                while len(opaques) < FLOOD_COUNT:
                    opaques += [command.opaque for command in parser.feed(bytes(await stream.receive_some(65536)))]
                assert opaques == list(range(FLOOD_COUNT))
        for stream in [*streams, honest]:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)


async def test_each_of_a_crowd_has_one_request_of_a_millisecond_handled_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn = TurnCount()
    service = Slow(turn)
    monkeypatch.setattr(module, "time", service)
    monkeypatch.setattr(session_module, "time", service)
    trio.lowlevel.add_instrument(turn)
    codes = range(100, 200)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(service, "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in codes]
        for stream in crowd:
            stream.send(FRAME)
            await _answers(stream)
        service.served.clear()
        for stream, code in zip(crowd, codes, strict=True):  # nothing runs meanwhile: all are readable in the same turn
            stream.send(b"".join(encode_frame(Command(code, opaque=n)) for n in range(8)))
        for stream in crowd:
            parser, count = FrameParser(65536), 0
            with trio.fail_after(HANG_S):
                while count < 8:
                    await trio.lowlevel.wait_readable(stream)
                    count += len(parser.feed(stream.recv(65536)))
            stream.close()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)
    pairs = [code for code, following in pairwise(code for code, _ in service.served) if code == following]
    assert len(pairs) < len(service.served) // 4, "slices of several requests"


@pytest.mark.parametrize("secure", [False, True])
async def test_requests_written_one_by_one_take_no_turn_of_the_loop_each(secure: bool) -> None:
    """Each is a TLS record of its own: under a flood a turn of the loop takes milliseconds, and a send waited for four
    of them behind each send before it."""
    turn, service = TurnCount(), Busy()
    trio.lowlevel.add_instrument(turn)
    server_tls, client_tls = _contexts()
    security = Security(server_tls=ServerTls(server_tls, only=True)) if secure else Security()
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, security=security, task_status=task_status
            )
        )
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        link = client_tls.wrap_bio(incoming, outgoing) if secure else None
        while link is not None:
            try:
                link.do_handshake()
                break
            except ssl.SSLWantReadError:
                await plain.send_all(outgoing.read())
                incoming.write(bytes(await plain.receive_some()))
        for number in range(FLOOD_COUNT):
            (outgoing if link is None else link).write(encode_frame(Command(1, opaque=number)))
        before = turn.count
        await plain.send_all(outgoing.read())
        parser, opaques = FrameParser(65536), list[int]()
        with trio.fail_after(HANG_S):
            while len(opaques) < FLOOD_COUNT:
                data = bytes(await plain.receive_some())
                if link is not None:
                    incoming.write(data)
                    data = b""
                    with contextlib.suppress(ssl.SSLWantReadError):
                        while True:
                            data += link.read()
                opaques += [command.opaque for command in parser.feed(data)]
        assert opaques == list(range(FLOOD_COUNT))
        assert turn.count - before < FLOOD_COUNT // 10
        await trio.aclose_forcefully(plain)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)


class Costly(Slow):
    """Request 3 takes 200 steps of a millisecond."""

    def received(self, session: Session, commands: list[Command]) -> None:
        for command in commands:
            if command.code == COSTLY:
                session.work(self._steps(session, command))
            else:
                super().received(session, [command])

    def _steps(self, session: Session, command: Command) -> Iterator[None]:
        for _ in range(200):
            self.served.append((COSTLY, self.turn.count))
            self.now_s += 0.001
            yield
        session.send(command.reply())


async def test_a_costly_request_is_done_in_slices_and_what_follows_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = TurnCount()
    service = Costly(turn)
    monkeypatch.setattr(module, "time", service)
    monkeypatch.setattr(session_module, "time", service)
    trio.lowlevel.add_instrument(turn)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(service, "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )
        costly, honest = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        await costly.send_all(b"".join(encode_frame(Command(code, opaque=code)) for code in (COSTLY, 1, COSTLY, 2)))
        for _ in range(5):
            before = len(service.served)
            await honest.send_all(encode_frame(Command(7)))
            with trio.fail_after(HANG_S):
                await honest.receive_some(65536)
            assert [code for code, _ in service.served[before:]].index(7) <= 25, "it waited for the costly one"
        assert len(service.served) < 200
        parser, opaques = FrameParser(65536), list[int]()
        with trio.fail_after(HANG_S):
            while len(opaques) < 4:
                opaques += [command.opaque for command in parser.feed(bytes(await costly.receive_some(65536)))]
        assert opaques == [COSTLY, 1, COSTLY, 2]
        for stream in (costly, honest):
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turn)


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


BODY = bytes(1024 * 1024)
ASK_COUNT = 12


class Big:
    """Answers each request with a megabyte."""

    def __init__(self) -> None:
        self.count = 0
        self.is_urgent = False

    def opened(self, session: Session) -> None:
        session.is_urgent = self.is_urgent

    def received(self, session: Session, commands: list[Command]) -> None:
        self.count += len(commands)
        for command in commands:
            session.send(command.reply(body=BODY))

    def closed(self, session: Session) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("is_urgent", [False, True])
async def test_who_does_not_read_is_not_read_until_he_does(is_urgent: bool, secure: bool) -> None:
    service, counts = Big(), Statistics()
    service.is_urgent = is_urgent
    server_tls, client_tls = _contexts()
    security = Security(server_tls=ServerTls(server_tls, only=True)) if secure else Security()
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service,
                "127.0.0.1:0",
                max_frame_bytes=1 << 22,
                statistics=counts,
                security=security,
                task_status=task_status,
            )
        )
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        stream: trio.abc.Stream = trio.SSLStream(plain, client_tls) if secure else plain
        for number in range(ASK_COUNT):
            await stream.send_all(encode_frame(Command(1, opaque=number)))
            await trio.testing.wait_all_tasks_blocked(0.05)
        asked = service.count
        assert asked < ASK_COUNT, "it was read although it reads nothing"
        parser, opaques = FrameParser(1 << 22), list[int]()
        with trio.fail_after(HANG_S):
            while len(opaques) < ASK_COUNT:
                opaques += [command.opaque for command in parser.feed(bytes(await stream.receive_some()))]
        assert opaques == list(range(ASK_COUNT))
        await stream.send_all(encode_frame(Command(1, opaque=ASK_COUNT)))
        with trio.fail_after(HANG_S):
            while len(opaques) == ASK_COUNT:
                opaques += [command.opaque for command in parser.feed(bytes(await stream.receive_some()))]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert counts.queued_bytes == 0
        assert counts.sent_count == len(opaques)
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def test_what_a_slow_reader_was_sent_at_once_counts_as_queued() -> None:
    statistics, sessions = Statistics(), list[Session]()

    class Eager(Big):
        def received(self, session: Session, commands: list[Command]) -> None:
            sessions.append(session)
            for command in commands:
                session.send_at_once(command.reply(body=BODY))

    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                Eager(), "127.0.0.1:0", max_frame_bytes=1 << 22, statistics=statistics, task_status=task_status
            )
        )
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"".join(encode_frame(Command(1, opaque=number)) for number in range(ASK_COUNT)))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert statistics.queued_bytes == sessions[0].queued_bytes > 0
        parser, opaques = FrameParser(1 << 22), list[int]()
        with trio.fail_after(HANG_S):
            while len(opaques) < ASK_COUNT:
                opaques += [command.opaque for command in parser.feed(bytes(await stream.receive_some()))]
        assert opaques == list(range(ASK_COUNT))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (statistics.queued_bytes, sessions[0].queued_bytes, statistics.sent_count) == (0, 0, ASK_COUNT)
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_what_is_removed_while_it_is_served_is_not_called() -> None:
    poller, called = module.Poller(), list[str]()
    pairs = {name: socket.socketpair() for name in ("one", "other")}

    def read(name: str) -> None:
        called.append(name)
        for ours, _ in pairs.values():
            poller.remove(ours.fileno())

    for name, (ours, theirs) in pairs.items():
        theirs.send(b"x")
        poller.add(ours.fileno(), QueueEntry(lambda name=name: read(name)))  # type: ignore[misc]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert len(called) == 1
    for pair in pairs.values():
        for end in pair:
            end.close()


class Charged(Slow):
    """Notes after each slice whether it has left nothing."""

    def __init__(self, turn: TurnCount) -> None:
        super().__init__(turn)
        self.drained: list[bool] = []

    def charged(self, place: QueueEntry, cost_us: float) -> None:
        self.drained.append(place.is_drained)


@pytest.mark.parametrize("secure", [False, True])
async def test_the_last_slice_of_what_has_come_counts_as_one_that_left_nothing(
    secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Charged(TurnCount())
    monkeypatch.setattr(module, "time", service)
    monkeypatch.setattr(session_module, "time", service)
    monkeypatch.setattr(QueueEntry, "charge", lambda place, cost_us: service.charged(place, cost_us))
    server_tls, client_tls = _contexts()
    security = Security(server_tls=ServerTls(server_tls, only=True)) if secure else Security()
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, security=security, task_status=task_status
            )
        )
        plain = await trio.open_tcp_stream("127.0.0.1", port)
        stream: trio.abc.Stream = trio.SSLStream(plain, client_tls) if secure else plain
        await stream.send_all(FRAME)
        await stream.receive_some(65536)
        assert service.drained[-1]
        service.drained.clear()
        await stream.send_all(b"".join(encode_frame(Command(1, opaque=n)) for n in range(12)))
        parser, count = FrameParser(65536), 0
        with trio.fail_after(HANG_S):
            while count < 12:
                count += len(parser.feed(bytes(await stream.receive_some(65536))))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(service.drained) > 2
        assert service.drained[-1] and not any(service.drained[:-1])
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


class Together:
    """Notes how many requests were read when each turn ended, where several connections were served."""

    def __init__(self, poller: module.Poller) -> None:
        self.poller = poller
        self.read_count = 0
        self.ends: list[int] = []
        self.refused_count = 0
        self._is_open = False

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, commands: list[Command]) -> None:
        self.read_count += len(commands)
        if not self._is_open:
            self._is_open = self.poller.at_turn_end(self._end)
            self.refused_count += not self._is_open
        for command in commands:
            session.send(command.reply())

    def _end(self) -> None:
        assert not self.poller.is_busy
        self._is_open = False
        self.ends.append(self.read_count)

    def closed(self, session: Session) -> None:
        pass


async def test_what_is_put_off_comes_when_all_of_a_turn_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_S", HANG_S)  # a busy machine must not end the turn between two of them
    monkeypatch.setattr(module, "MAX_DEFER_S", HANG_S)
    monkeypatch.setattr(fair_queue, "LONG_SLICE_US", HANG_S * 1e6)
    poller = module.Poller()
    service = Together(poller)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(
                service, "127.0.0.1:0", max_frame_bytes=65536, poller=poller, task_status=task_status
            )
        )
        streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for stream in streams:
            stream.send(FRAME)
            await _answers(stream)
        assert service.refused_count == 3 and not service.ends, "one alone waits for nobody"
        for stream in streams:
            stream.send(FRAME)
        for stream in streams:
            await _answers(stream)
        assert service.ends == [6]
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()


class Waits:
    """Counts how often a poller falls asleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._wait = trio.lowlevel.wait_readable
        monkeypatch.setattr(trio.lowlevel, "wait_readable", self)

    async def __call__(self, what: int) -> None:
        self.count += isinstance(what, int)  # else a listening socket
        await self._wait(what)


async def test_who_sends_alone_again_and_again_is_waited_for_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_TURN_S", HANG_S)
    monkeypatch.setattr(module, "MAX_BUSY_POLLS", 1 << 60)
    waits, number = Waits(monkeypatch), 5 * module.QUICK_TURN_COUNT
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(Busy(), "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )

        def ask() -> None:
            with socket.create_connection(("127.0.0.1", port)) as stream:
                for _ in range(number):
                    stream.send(FRAME)
                    assert stream.recv(65536)

        monkeypatch.setattr(module, "BUSY_POLL_S", HANG_S)
        await trio.to_thread.run_sync(ask)
        assert waits.count < number // 2, "the first ones only come after a sleep"
        monkeypatch.setattr(module, "MAX_BUSY_POLLS", 0)
        waits.count = 0
        await trio.to_thread.run_sync(ask)
        assert waits.count >= number, "if nothing comes in time, there is a sleep"
        nursery.cancel_scope.cancel()


async def test_several_are_not_waited_for_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK_TURN_S", HANG_S)
    monkeypatch.setattr(module, "BUSY_POLL_S", HANG_S)
    monkeypatch.setattr(module, "MAX_BUSY_POLLS", 1 << 60)  # awake, this task would have no turn
    waits, number = Waits(monkeypatch), 5 * module.QUICK_TURN_COUNT
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: serve(Busy(), "127.0.0.1:0", max_frame_bytes=65536, task_status=task_status)
        )
        streams = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        for turn in range(number):
            streams[turn % 2].send(FRAME)
            await _answers(streams[turn % 2])
        assert waits.count >= number
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()


async def test_work_of_one_alone_is_put_off_only_while_it_is_served() -> None:
    poller, done = module.Poller(), list[bool]()
    ours, theirs = socket.socketpair()

    def serve_it() -> None:
        ours.recv(1)
        assert not poller.at_turn_end(lambda: done.append(False)), "nobody else is served"
        assert poller.at_turn_end(lambda: done.append(poller.at_turn_end(lambda: None, alone=True)), alone=True)
        assert not done

    assert not poller.at_turn_end(lambda: None, alone=True)
    poller.add(ours.fileno(), QueueEntry(serve_it))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        theirs.send(b"x")
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert done == [False], "the end of a turn is no part of it"
    ours.close()
    theirs.close()
