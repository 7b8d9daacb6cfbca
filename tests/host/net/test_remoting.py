"""The remoting server and client: real sockets for behaviour, in-memory streams for time and batches."""

from __future__ import annotations

import os
import select
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from rmqha.host.net import remoting
from rmqha.host.net import session as session_module
from rmqha.host.net.poller import POP_BATCH_COUNT, SLICE_COUNT
from rmqha.host.net.remoting import RemotingClient, serve
from rmqha.host.net.slow_readers import SlowReaders
from rmqha.host.net.statistics import Statistics
from rmqha.model.code import RequestCode
from rmqha.model.error import NotSentError, RemoteProtocolError, UnreachableError, UsageError
from rmqha.model.identity import parse_address
from rmqha.wire.command import FLAG_ONEWAY, Command
from rmqha.wire.frame import FrameParser, encode_frame
from tests.host.support import FRAME_LIMIT, HEART_BEAT, SEND, CountingStream, Recorder, running, serve_one
from tests.support.patience import HANG_MS, HANG_S


async def test_calls_run_side_by_side_on_one_connection() -> None:
    waiting: list[Command] = []
    service = Recorder(lambda command: waiting.append(command) if command.ext["n"] != "9" else command.reply())
    answers: dict[str, Command] = {}
    async with running(service) as address, RemotingClient() as client, trio.open_nursery() as nursery:

        async def ask(name: str) -> None:
            answers[name] = await client.call(address, Command(1, {"n": name}), HANG_MS)

        for n in range(9):
            nursery.start_soon(ask, str(n))
        with trio.fail_after(HANG_S):
            while len(waiting) < 9:
                await ask("9")
        # answered in the opposite order
        for command in reversed(waiting):
            service.sessions[0].send(command.reply(ext={"was": command.ext["n"]}))
    assert {name: answer.ext.get("was") for name, answer in answers.items()} == {
        **{str(n): str(n) for n in range(9)},
        "9": None,
    }
    assert len(service.sessions) == 1
    assert service.closed_ids == [1]


async def test_oneway_gets_no_answer_and_says_so() -> None:
    service = Recorder()
    async with running(service) as address, RemotingClient() as client:
        await client.oneway(address, Command(1))
        assert (await client.call(address, Command(2), HANG_MS)).opaque == 0
    [first, second] = [command for batch in service.batches for command in batch]
    assert (first.code, first.flag, second.flag) == (1, FLAG_ONEWAY, 0)


async def test_what_is_sent_at_once_needs_an_open_connection_and_keeps_its_order() -> None:
    """Big ones do not fit the socket's buffer: what is left of them waits, and nothing overtakes it."""
    service = Recorder()
    async with running(service) as address, RemotingClient() as client:
        assert not client.oneway_at_once(address, Command(0))
        await client.oneway(address, Command(HEART_BEAT))
        for code in range(2, 40):
            assert client.oneway_at_once(address, Command(code, body=bytes(300_000 if code % 3 else 10)))
        await client.call(address, Command(40), HANG_MS)
    commands = [command for batch in service.batches for command in batch]
    assert [command.code for command in commands] == [HEART_BEAT, *range(2, 41)]
    assert {command.flag for command in commands[:-1]} == {FLAG_ONEWAY}


async def test_big_bodies_both_ways_do_not_block_each_other() -> None:
    body = bytes(700_000)
    service = Recorder(lambda command: command.reply(body=command.body))
    sizes: list[int] = []
    async with running(service) as address, RemotingClient() as client:
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    sizes.append(len((await client.call(address, Command(HEART_BEAT, body=body), HANG_MS)).body))

                for _ in range(40):
                    nursery.start_soon(ask)
    assert sizes == [700_000] * 40


async def test_a_server_asks_its_client() -> None:
    service = Recorder()
    asked: list[tuple[str, int]] = []

    def answer(address: str, command: Command) -> Command:
        asked.append((address, command.code))
        return command.reply(ext={"hello": "server"})

    async with running(service) as address, RemotingClient(on_request=answer) as client:
        await client.call(address, Command(1), HANG_MS)
        reply = await service.sessions[0].call(Command(77), HANG_MS)
        assert reply.ext == {"hello": "server"}
        service.sessions[0].send(Command(78, flag=FLAG_ONEWAY))
        await client.call(address, Command(1), HANG_MS)
    assert asked == [(address, 77), (address, 78)]
    # the client's answer to an answer never reaches the service
    assert [command.code for batch in service.batches for command in batch] == [1, 1]


async def test_a_lost_connection_is_told_and_opened_again() -> None:
    service, lost = Recorder(), list[str]()
    async with running(service) as address, RemotingClient(on_closed=lost.append) as client:
        await client.call(address, Command(1), HANG_MS)
        service.answer = lambda _: service.sessions[0].close()
        with pytest.raises(UnreachableError, match="closed the connection before it answered") as caught:
            await client.call(address, Command(1), HANG_MS)
        assert not isinstance(caught.value, NotSentError), "it may have been served"
        service.answer = lambda command: command.reply()
        await client.call(address, Command(1), HANG_MS)
        assert (lost, len(service.sessions)) == ([address], 2)
        client.close(address)
        await client.call(address, Command(1), HANG_MS)
        assert (lost, len(service.sessions)) == ([address, address], 3)
        assert client.statistics()["opened_count"] == 3


async def test_no_answer_in_time_leaves_the_connection_open() -> None:
    service = Recorder(lambda _: None)
    async with running(service) as address, RemotingClient() as client:
        with pytest.raises(UnreachableError, match="did not answer request 1 within") as caught:
            await client.call(address, Command(1), 50)
        assert not isinstance(caught.value, NotSentError), "it was served"
        # the late answer belongs to nobody and is dropped
        service.sessions[0].send(service.batches[0][0].reply())
        service.answer = lambda command: command.reply(ext={"a": "b"})
        assert (await client.call(address, Command(2), HANG_MS)).ext == {"a": "b"}
        assert len(service.sessions) == 1
        assert client.statistics()["timeout_count"] == 1


async def test_nobody_there() -> None:
    async with running(Recorder()) as address:
        pass
    async with RemotingClient() as client:
        for _ in range(2):
            with pytest.raises(NotSentError, match="Connection refused"):
                await client.call(address, Command(1), HANG_MS)
    with pytest.raises(NotSentError, match="the client is closed"):
        await client.call(address, Command(1), HANG_MS)


@pytest.mark.parametrize("banner_first", [True, False])
async def test_another_program_listens_there(banner_first: bool) -> None:
    async def stranger(stream: trio.SocketStream) -> None:
        if not banner_first:
            await stream.receive_some(1)
        await stream.send_all(b"SSH-2.0-OpenSSH_9.6\r\n" if banner_first else b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, stranger, 0)
        async with RemotingClient() as client:
            address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            with pytest.raises(UnreachableError, match="does not speak RocketMQ's protocol"):
                await client.call(address, Command(1), HANG_MS)
        nursery.cancel_scope.cancel()


async def test_an_error_of_the_body_leaves_the_client_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with RemotingClient():
            raise KeyError("mine")


async def test_a_port_in_use() -> None:
    async with running(Recorder()) as address:
        with pytest.raises(UsageError, match="in use on 127"):
            await serve(Recorder(), address, max_frame_bytes=FRAME_LIMIT)


async def test_a_bad_frame_closes_its_connection_only() -> None:
    service, statistics = Recorder(), Statistics()
    async with running(service, statistics) as address, RemotingClient() as client:
        await client.call(address, Command(1), HANG_MS)
        host, _, port = address.rpartition(":")
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", (FRAME_LIMIT + 1).to_bytes(4, "big") + bytes(4)):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(nonsense)
                with trio.fail_after(HANG_S):
                    assert await receive_until_closed(stream) == b""
        await client.call(address, Command(1), HANG_MS)
    assert (statistics.bad_frame_count, statistics.opened_count, statistics.session_count) == (2, 3, 0)
    assert statistics.as_dict()["received_count"] == 2


async def receive_until_closed(stream: trio.abc.ReceiveStream) -> bytes:
    try:
        return b"".join([data async for data in stream])
    except trio.BrokenResourceError:
        return b""


async def test_a_service_may_refuse_what_a_peer_says() -> None:
    def refuse(command: Command) -> None:
        raise RemoteProtocolError("no such thing")

    statistics = Statistics()
    async with running(Recorder(refuse), statistics) as address, RemotingClient() as client:
        with pytest.raises(UnreachableError):
            await client.call(address, Command(1), HANG_MS)
    assert statistics.bad_frame_count == 1


async def test_a_bug_of_the_service_ends_the_server() -> None:
    def stumble(command: Command) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with RemotingClient() as client, running(Recorder(stumble)) as address:
            with suppress(UnreachableError):
                await client.call(address, Command(1), HANG_MS)
            await trio.sleep_forever()


async def test_too_many_sessions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting, "MAX_SESSION_COUNT", 1)
    statistics = Statistics()
    async with running(Recorder(), statistics) as address, RemotingClient() as first, RemotingClient() as second:
        await first.call(address, Command(HEART_BEAT), HANG_MS)
        with pytest.raises(UnreachableError, match="serves as many as it may"):
            await second.call(address, Command(HEART_BEAT), HANG_MS)
        await first.call(address, Command(HEART_BEAT), HANG_MS)
    assert statistics.refused_count == 1


# in memory


async def _exchange(service: Recorder, codes: list[int]) -> tuple[list[Command], list[int], Statistics]:
    """All in one read: the answers, the sizes of the writes, the counts."""
    ours, theirs = memory_stream_pair()
    stream, statistics = CountingStream(ours), Statistics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_one, service, stream, statistics)
        await theirs.send_all(b"".join(encode_frame(Command(code, opaque=n)) for n, code in enumerate(codes)))
        parser, replies = FrameParser(FRAME_LIMIT), list[Command]()
        while len(replies) < len(codes):
            replies += parser.feed(bytes(await theirs.receive_some()))
        await theirs.aclose()
    return replies, stream.writes, statistics


async def test_sends_of_one_read_are_handled_together_and_answered_by_one_write() -> None:
    service = Recorder()
    replies, writes, statistics = await _exchange(service, [SEND] * SLICE_COUNT)
    assert [reply.opaque for reply in replies] == list(range(SLICE_COUNT))
    assert [len(batch) for batch in service.batches] == [SLICE_COUNT]
    assert len(writes) == 1
    assert (statistics.sent_count, statistics.sent_bytes) == (SLICE_COUNT, writes[0])


async def test_a_slice_is_bounded_in_number() -> None:
    service = Recorder()
    replies, writes, _ = await _exchange(service, [SEND] * (2 * SLICE_COUNT + 10))
    assert [reply.opaque for reply in replies] == list(range(2 * SLICE_COUNT + 10))
    assert [len(batch) for batch in service.batches] == [SLICE_COUNT] * 2 + [10]
    assert len(writes) == 3


async def test_pops_and_acknowledgements_of_one_read_are_handled_together_a_few_at_a_time() -> None:
    service = Recorder()
    most, pop, ack = POP_BATCH_COUNT, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE
    await _exchange(service, [SEND, *[pop] * most, pop, ack, SEND])
    assert [[command.code for command in batch] for batch in service.batches] == [
        [SEND],
        [pop] * most,
        [pop, ack],
        [SEND],
    ]


async def test_pops_are_answered_while_the_rest_of_their_slice_is_worked_on() -> None:
    """Their client works on its part meanwhile: both sides would wait for each other in turns."""
    replies, parser, most = list[Command](), FrameParser(FRAME_LIMIT), POP_BATCH_COUNT

    def answer(command: Command) -> None:
        if command.opaque == most:
            assert select.select([stream.socket.fileno()], [], [], HANG_S)[0]
            replies.extend(parser.feed(os.read(stream.socket.fileno(), 64 * 1024)))
        service.sessions[0].send_frames(encode_frame(command.reply()), 1)

    service = Recorder(answer)
    async with running(service) as address:
        stream = await trio.open_tcp_stream(*parse_address(address))
        pops = [encode_frame(Command(RequestCode.POP_MESSAGE, opaque=number)) for number in range(2 * most)]
        await stream.send_all(b"".join(pops))
        with trio.fail_after(HANG_S):
            while len(replies) < most:
                await trio.lowlevel.checkpoint()
            assert [reply.opaque for reply in replies] == list(range(most))
            while len(replies) < 2 * most:
                replies += parser.feed(bytes(await stream.receive_some()))
        await stream.aclose()
    assert [reply.opaque for reply in replies] == list(range(2 * most))


async def test_what_is_neither_send_nor_pop_is_handled_by_itself() -> None:
    service = Recorder()
    await _exchange(service, [SEND, SEND, 11, 11, SEND, 34])
    assert [[command.code for command in batch] for batch in service.batches] == [
        [SEND, SEND],
        [11],
        [11],
        [SEND],
        [34],
    ]


async def test_a_slice_is_bounded_in_time_and_in_what_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SLICE_S", -1.0)
    _, writes, _ = await _exchange(Recorder(), [11] * 5)
    assert len(writes) == 5, "each takes longer than a slice may"
    monkeypatch.setattr(session_module, "SLICE_S", 10.0)
    big = Recorder(lambda command: command.reply(body=bytes(400_000)))
    _, writes, _ = await _exchange(big, [11] * 7)
    assert [size // 400_000 for size in writes] == [3, 3, 1]


async def test_replies_that_come_later_share_a_write() -> None:
    ours, theirs = memory_stream_pair()
    stream, service = CountingStream(ours), Recorder(lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_one, service, stream, Statistics())
        await theirs.send_all(encode_frame(Command(1)))
        await service.arrived.wait()
        for _ in range(10):
            service.sessions[0].send(Command(40, flag=FLAG_ONEWAY))
        parser, pushed = FrameParser(FRAME_LIMIT), list[Command]()
        while len(pushed) < 10:
            pushed += parser.feed(bytes(await theirs.receive_some()))
        await theirs.aclose()
    assert len(stream.writes) == 1
    # after the end it does nothing
    service.sessions[0].send(Command(40))
    with pytest.raises(UnreachableError, match="closed"):
        await service.sessions[0].call(Command(1), HANG_MS)


async def test_a_reader_that_lets_replies_pile_up_is_closed() -> None:
    ours, theirs = lockstep_stream_pair()
    service, statistics = Recorder(lambda command: command.reply(body=bytes(1000))), Statistics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve_one(service, ours, statistics, max_queued_bytes=10_000))
        await theirs.send_all(encode_frame(Command(1)))
        await trio.testing.wait_all_tasks_blocked()
        [session] = service.sessions
        for _ in range(20):
            session.send(Command(2, body=bytes(1000)))
        with trio.fail_after(HANG_S):
            await service.left.wait()
    assert statistics.slow_reader_count == 1
    assert session.closed


async def test_readers_that_are_slow_together_are_bounded_too() -> None:
    """The one that holds most is closed, the others keep theirs."""
    statistics = Statistics(slow_readers=SlowReaders(100_000))
    services = [Recorder(lambda command: command.reply(body=bytes(1000))) for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for service in services:
            ours, theirs = lockstep_stream_pair()
            nursery.start_soon(serve_one, service, ours, statistics)
            await theirs.send_all(encode_frame(Command(1)))
        await trio.testing.wait_all_tasks_blocked()
        greedy, *modest = [service.sessions[0] for service in services]
        for session in modest:
            for _ in range(25):
                session.send(Command(2, body=bytes(1000)))
        assert statistics.slow_reader_count == 0 and statistics.queued_bytes > 50_000
        for _ in range(50):
            greedy.send(Command(2, body=bytes(1000)))
        with trio.fail_after(HANG_S):
            await services[0].left.wait()
        assert statistics.slow_reader_count == 1
        assert greedy.closed and not any(session.closed for session in modest)
        assert 50_000 < statistics.queued_bytes < 60_000
        nursery.cancel_scope.cancel()
    assert statistics.queued_bytes == 0


async def test_what_is_queued_at_the_end_is_still_written() -> None:
    ours, theirs = memory_stream_pair()
    service = Recorder(lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_one, service, ours, Statistics())
        await theirs.send_all(encode_frame(Command(1, opaque=3)))
        await service.arrived.wait()
        service.sessions[0].send(service.batches[0][0].reply(14))
        nursery.cancel_scope.cancel()
    [reply] = FrameParser(FRAME_LIMIT).feed(await receive_until_closed(theirs))
    assert (reply.code, reply.opaque) == (14, 3)


async def test_last_words_take_a_second_at_most(autojump_clock: MockClock) -> None:
    ours, theirs = lockstep_stream_pair()
    service = Recorder(lambda _: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_one, service, ours, Statistics())
        await theirs.send_all(encode_frame(Command(1)))
        await service.arrived.wait()
        service.sessions[0].send(Command(2))
        started = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - started == pytest.approx(1)


async def test_half_a_frame_is_never_continued() -> None:
    """A write that was cut off in the middle is the last one."""
    ours, theirs = lockstep_stream_pair()
    stream = CountingStream(ours)
    service = Recorder()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_one, service, stream, Statistics())
        await theirs.send_all(encode_frame(Command(1)))
        await trio.testing.wait_all_tasks_blocked()
        service.sessions[0].send(Command(2))
        nursery.cancel_scope.cancel()
    assert len(stream.writes) == 1
