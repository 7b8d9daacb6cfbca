"""The measurements against scripted brokers: what is counted, lost, doubled, refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from rmqha.cli.bench.command import bench
from rmqha.cli.bench.figures import show
from rmqha.cli.render import Printer
from rmqha.host.net.session import Session
from rmqha.model.code import RequestCode as Code
from rmqha.model.code import ResponseCode
from rmqha.model.error import UnreachableError, UsageError
from rmqha.ops.bench import load as loads
from rmqha.ops.bench.figures import Figures
from rmqha.ops.bench.histogram import LatencyHistogram
from rmqha.ops.bench.load import Load, MasterSampler
from rmqha.ops.bench.pace import Pace
from rmqha.ops.bench.topic import HEADER, OWN, BenchTarget, check_own, prepare
from rmqha.wire.command import Command
from tests.client.fake import Do, FakeCluster, Node
from tests.client.test_admin import Peer, peers
from tests.support.patience import HANG_S

TARGET = BenchTarget(OWN, ("g-a",), created=False, other_count=0)


def load_of(fake: FakeCluster, *, rate: float = 200, count: int = 40, timeout_ms: int = 2_000) -> Load:
    for server in fake.name_servers:
        server.topics.add(OWN)
    return Load(fake.namesrv, TARGET, Pace(rate, 10, count, grace_s=2), 64, timeout_ms)


async def test_produce_counts_what_came_of_each() -> None:
    async with FakeCluster() as fake:
        load = load_of(fake)
        answers = iter(
            [Do.STORE] * 5 + [(ResponseCode.FLUSH_SLAVE_TIMEOUT, True), (ResponseCode.MESSAGE_ILLEGAL, False)]
        )
        fake.group.master.script = lambda node, command: next(answers, Do.STORE)
        figures = await loads.produce(load)
    counts = figures.counts
    assert (counts["offered"], counts["acknowledged"], counts["weak"], counts["failed"]) == (40, 38, 1, 1)
    assert figures.latency.count == 39
    assert figures.done == 39
    assert figures.failed
    assert figures.reasons["FLUSH_SLAVE_TIMEOUT"] == (1, "stored, but FLUSH_SLAVE_TIMEOUT")
    assert {len(item.body) for item in fake.stored} == {64}


async def test_e2e_sees_everything_once_and_counts_copies() -> None:
    async with FakeCluster() as fake:
        load = load_of(fake)
        sent = 0

        def script(node: Node, command: Command) -> Do:
            nonlocal sent
            sent += 1
            # an answer that is lost: the message is sent again
            return Do.CLOSE_AFTER if sent == 30 else Do.STORE

        fake.group.master.script = script
        with trio.fail_after(HANG_S):
            figures = await loads.e2e(load)
    counts = figures.counts
    assert (counts["offered"], counts["received"], counts["lost"]) == (40, 40, 0)
    assert counts["duplicates"] == 1 <= counts["duplicatesPossible"]
    assert figures.latency.count == 40
    assert not figures.failed


async def test_e2e_tells_what_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "DRAIN_S", 0.3)
    async with FakeCluster() as fake:
        load = load_of(fake)

        def script(node: Node, command: Command) -> Any:
            # acknowledged and not stored: number 7
            number = HEADER.unpack_from(bytes(command.body))[1]
            return (ResponseCode.SUCCESS, False) if number == 7 else Do.STORE

        fake.group.master.script = script
        with trio.fail_after(HANG_S):
            figures = await loads.e2e(load)
    assert figures.counts["lost"] == 1
    assert figures.failed
    assert figures.latency.count == 40, "the lost one with its age"
    assert figures.latency.max >= 300_000


async def test_consume_reads_what_is_there_and_ends() -> None:
    async with FakeCluster() as fake:
        load = load_of(fake, rate=2000, count=100)
        await loads.produce(load)
        with trio.fail_after(HANG_S):
            figures = await loads.consume(fake.namesrv, TARGET, limit_s=5, limit_count=None, idle_s=0.3)
            some = await loads.consume(fake.namesrv, TARGET, limit_s=5, limit_count=1, idle_s=0.3)
    assert figures.done == 100
    assert figures.size_bytes == 64
    assert figures.counts["batches"] == figures.latency.count
    assert 1 <= some.done <= 100


# --- replication ------------------------------------------------------------------------------------------------------
def state(end: int, confirm: int, acks: dict[int, int | None]) -> dict[str, Any]:
    slaves = [{"brokerId": broker_id, "ackOffset": offset} for broker_id, offset in acks.items()]
    return {"role": "MASTER", "maxPhyOffset": end, "confirmOffset": confirm, "slaves": slaves}


def test_how_long_after_the_master_each_slave_has_a_byte() -> None:
    watch = MasterSampler()
    for at_ms, told in (
        (0, state(100, 100, {2: 100, 3: None})),
        (10, state(200, 100, {2: 200, 3: 100})),
        (20, state(300, 200, {2: 300, 3: 200})),
        (50, state(300, 300, {2: 300, 3: 300})),
    ):
        watch.seen(at_ms * 1_000_000, "h:1", told)
    found = watch.as_dict()
    assert (found["samples"], found["bytes"], found["masters"]) == (4, 200, ["h:1"])
    assert found["slaves"]["2"]["microseconds"]["max"] == 10_000, "appended and copied between two looks"
    assert found["slaves"]["2"]["microseconds"]["count"] == 2, "what stood there before is not counted"
    assert found["slaves"]["3"]["microseconds"]["max"] == 40_000
    assert found["confirm"]["microseconds"]["count"] == 2
    assert found["confirm"]["microseconds"]["max"] == 40_000
    assert found["slaves"]["3"]["lagBytes"]["max"] == 100
    assert found["slaves"]["3"]["unreached"] == 0


def test_another_master_with_a_shorter_log_and_a_slave_that_never_comes() -> None:
    watch = MasterSampler()
    watch.seen(0, "h:1", state(500, 500, {2: 400}))
    watch.seen(10_000_000, "h:2", state(450, 450, {2: 400}))
    watch.seen(20_000_000, "h:2", state(460, 460, {2: 400}))
    follower = watch.slaves[2]
    follower.ended(120_000_000)
    assert watch.masters == ["h:1", "h:2"]
    assert follower.latency.count == len(follower.waiting) == 1
    assert follower.latency.max == 110_000


async def test_replicate_watches_the_master_under_load() -> None:
    async with FakeCluster() as fake:
        load = load_of(fake, count=20)
        end = 0

        def answer(session: Any, command: Command) -> Command | None:
            nonlocal end
            if command.code == Code.RMQHA_GET_REPLICA_STATE:
                end += 10
                return command.reply(body=json.dumps(state(end, end - 10, {2: end - 10})).encode())
            return Node._answer(fake.group.master, session, command)

        fake.group.master._answer = answer  # type: ignore[method-assign]
        with trio.fail_after(HANG_S):
            figures = await loads.replicate(load, "g-a", 0.005)
        with pytest.raises(UsageError, match="know no group g-z; there are g-a"):
            await loads.replicate(load, "g-z", 0.005)
        fake.group.master._answer = lambda session, command: command.reply(3)  # type: ignore[method-assign]
        with pytest.raises(UsageError, match="is Apache RocketMQ's and tells nothing of its slaves"):
            await loads.replicate(load, "g-a", 0.005)
    assert figures.counts["acknowledged"] == 20
    assert figures.extra["samples"] >= 1
    assert figures.extra["slaves"]["2"]["lagBytes"]["max"] == 10


# --- topic ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["orders", "rmqha_benchmark", "%RETRY%rmqha_bench"])
def test_only_a_topic_of_its_own(name: str) -> None:
    with pytest.raises(UsageError, match="may be somebody's"):
        check_own(name)
    check_own("rmqha_bench_2")


def as_namesrv(peer: Peer, masters: dict[str, str], routed: Iterable[str], topics: list[str]) -> None:
    brokers = {
        name: {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": where}} for name, where in masters.items()
    }
    datas = [{"brokerName": name, "cluster": "c", "brokerAddrs": {"0": masters[name]}} for name in routed]
    queues = [
        {"brokerName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0} for name in routed
    ]
    route = json.dumps({"brokerDatas": datas, "queueDatas": queues}).encode()
    peer.replies = {
        Code.GET_BROKER_CLUSTER_INFO: (
            0, {}, json.dumps({"brokerAddrTable": brokers, "clusterAddrTable": {"c": list(masters)}}).encode(),
        ),
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (0, {}, json.dumps({"topicList": topics}).encode()),
        Code.GET_ROUTEINFO_BY_TOPIC: (0, {}, route) if routed else (ResponseCode.TOPIC_NOT_EXIST, {}, b""),
    }  # fmt: skip


async def test_the_topic_is_made_where_it_is_not() -> None:
    async with peers(3) as (names, a, b):
        masters = {"g-a": a.address, "g-b": b.address}
        as_namesrv(names, masters, ["g-a"], ["c", "g-a", "TBW102", "%RETRY%x", "RMQ_SYS_TRACE_TOPIC", "orders", OWN])
        b.replies[Code.UPDATE_AND_CREATE_TOPIC] = (0, {}, b"")
        received = b.received

        def registers(session: Session, commands: list[Command]) -> None:
            received(session, commands)
            as_namesrv(names, masters, ["g-a", "g-b"], ["orders"])

        b.received = registers  # type: ignore[method-assign]
        with trio.fail_after(HANG_S):
            target = await prepare(names.address, OWN, 2)
        assert (target.groups, target.created, target.other_count) == (("g-a", "g-b"), True, 1)
        assert "1 topic of others on the same brokers" in target.text
        assert a.asked == [], "it has the topic"
        (command,) = b.asked
        assert (command.ext["topic"], command.ext["writeQueueNums"]) == (OWN, "2")


async def test_a_group_without_a_master_is_said() -> None:
    async with peers(1) as (names,):
        as_namesrv(names, {"g-a": "127.0.0.1:9"}, [], [])
        body = json.dumps({"brokerAddrTable": {"g-a": {"brokerAddrs": {"2": "127.0.0.1:9"}}}, "clusterAddrTable": {}})
        names.replies[Code.GET_BROKER_CLUSTER_INFO] = (0, {}, body.encode())
        with pytest.raises(UnreachableError, match="group g-a has no master; see rmqha explain g-a"):
            await prepare(names.address, OWN, 2)


# --- figures and command ----------------------------------------------------------------------------------------------
def filled(*values_us: int) -> LatencyHistogram:
    made = LatencyHistogram()
    for value in values_us:
        made.record(value)
    return made


def test_a_rate_that_was_not_reached_and_a_client_that_is_late_are_said() -> None:
    figures = Figures("produce", "latency", OWN, 100, 1000.0, filled(900), filled(10), 2.4, done=2000)
    figures.counts = {"offered": 2000}
    assert figures.warning() == "", "the last answers come after the last request"
    figures.elapsed_s = 4.0
    assert "only 500/s of 1,000/s were done" in figures.warning()
    figures.elapsed_s, figures.late, figures.latency = 2.0, filled(9_000), filled(10_000)
    assert "began 9.0 ms late" in figures.warning()


def test_what_people_see() -> None:
    figures = Figures("produce", "latency", OWN, 100, 100.0, filled(1000, 1000, 900_000), filled(5), 3.0, done=3)
    figures.counts, figures.interrupted = {"acknowledged": 3, "failed": 0}, True
    figures.add_failure("a", "no route to g-a")
    figures.add_failure("a", "no route to g-b")
    out = io.StringIO()
    show(figures, Printer(out, 80, is_styled=False))
    text = out.getvalue()
    for words in (
        "3 messages of 100 bytes in 3.0 s",
        "(interrupted)",
        "acknowledged 3",
        "2 × no route to g-a",
        "max 900.00",
    ):
        assert words in text
    assert "failed" not in text
    assert "█" * 40 + " 2" in text
    assert "…" in text
    assert figures.as_dict()["histogram"][0] == [512, 1024, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("produce", "--topic", "orders"), "topic orders may be somebody's"),
        (("replicate", "g", "--topic", "orders"), "topic orders may be somebody's"),
        (("consume", "--namesrv", "nonsense"), "--namesrv"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(bench, list(arguments))
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


@pytest.mark.parametrize(
    ("counts", "interrupted", "expected"),
    [({"acknowledged": 3}, False, 0), ({"failed": 1}, False, 1), ({"lost": 1}, False, 1), ({"failed": 1}, True, 130)],
)
def test_exit_codes(counts: dict[str, int], interrupted: bool, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(load: Load) -> Figures:
        made = Figures("produce", "latency", OWN, load.size_bytes, load.pace.rate, filled(1), filled(1), 1.0, done=3)
        made.counts, made.interrupted = counts, interrupted
        return made

    async def prepared(*arguments: Any) -> BenchTarget:
        return TARGET

    monkeypatch.setattr(loads, "produce", measured)
    monkeypatch.setattr("rmqha.cli.bench.command.prepare", prepared)
    done = CliRunner().invoke(bench, ["produce", "--rate", "7", "--size", "99", "-o", "json"])
    assert done.exit_code == expected
    found = json.loads(done.stdout)
    assert (found["rate"], found["sizeBytes"], found["interrupted"]) == (7.0, 99, interrupted)
    assert f"topic {OWN} (there already, it stays) on g-a" in done.stderr


def test_nobody_to_ask() -> None:
    for name in ("produce", "consume", "e2e", "replicate"):
        done = CliRunner().invoke(bench, [name, "--namesrv", "127.0.0.1:9"])
        assert isinstance(done.exception, UnreachableError)
