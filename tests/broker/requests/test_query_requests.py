from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, cast

import pytest

from rmqha.broker.requests.query_requests import FRAME_SPARE_BYTES, MAX_SEARCH_COUNT_OF_ONE, QueryRequests
from rmqha.broker.requests.request import RequestError
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import encode_properties
from rmqha.store.cold_range import NO_BOUNDS, Bounds, ColdRange
from rmqha.store.index import index_service, queue_search
from rmqha.store.index.index_key import INDEX_KEY_TYPE, key_hash
from rmqha.store.index.queue_search import QueueSearch
from rmqha.store.index.wanted import Wanted
from rmqha.store.log.record import decode
from rmqha.wire.command import Command
from tests.broker.requests.test_pull import bodies
from tests.broker.rights.acl_world import FOREIGN, OWN, principal
from tests.broker.support import Broker, FakeChannel, golden_frames, send_command
from tests.support.steps import done


def query(key: str, index_type: str = "K", **ext: str) -> Command:
    fields = {"topic": "T", "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    return Command(RequestCode.QUERY_MESSAGE, {**fields, "indexType": index_type, **ext})


def put(broker: Broker, body: bytes, **properties: str) -> None:
    assert broker.ask(send_command(body=body, i=encode_properties(properties).decode())).code == ResponseCode.SUCCESS


def test_by_key_unique_key_and_tags(broker: Broker) -> None:
    put(broker, b"1", KEYS="a b", UNIQ_KEY="U1", TAGS="x")
    put(broker, b"2", KEYS="b", UNIQ_KEY="U2", TAGS="x")
    reply = broker.ask(query("b"))
    assert (reply.code, bodies(reply)) == (0, [b"1", b"2"]), "in the log's order"
    last = decode(broker.store.record_at(int(reply.ext["indexLastUpdatePhyoffset"])) or memoryview(b""))
    assert bytes(last.body) == b"2"
    assert reply.ext["indexLastUpdateTimestamp"] == str(last.store_timestamp_ms)
    assert bodies(broker.ask(query("b", maxNum="1"))) == [b"2"], "the newest"
    assert bodies(broker.ask(query("U1", "U", maxNum="0", _UNIQUE_KEY_QUERY="true"))) == [b"1"]
    assert bodies(broker.ask(query("U1", "", _UNIQUE_KEY_QUERY="true"))) == [b"1"], "as older clients ask"
    assert bodies(broker.ask(query("x", "T"))) == [b"1", b"2"]


def test_what_is_not_found(broker: Broker) -> None:
    put(broker, b"1", KEYS="a")
    for command in (query("b"), query("a", "T"), query("a", topic="U"), query("a", endTimestamp="5")):
        reply = broker.ask(command)
        assert (reply.code, bytes(reply.body)) == (ResponseCode.QUERY_NOT_FOUND, b"")
        assert reply.remark == "can not find message, maybe time range not correct"


def asked(requests: QueryRequests, channel: FakeChannel, command: Command) -> Command | None:
    """The answer of this turn, None if the search waits in line."""
    steps = requests.handlers()[RequestCode.QUERY_MESSAGE](channel, command)
    assert isinstance(steps, Generator)
    return done(cast("Generator[None, None, Command | None]", steps))


def test_what_lags_is_entered_in_steps_before_a_search(broker: Broker) -> None:
    """A query entered 64 KiB of messages with many keys at once."""
    for number in range(100):
        put(broker, b"%d" % number * 100, KEYS=" ".join(f"k{key}" for key in range(60)))
    steps = broker.core.queries.handlers()[RequestCode.QUERY_MESSAGE](FakeChannel(), query("k1"))
    assert isinstance(steps, Generator)
    positions = [broker.store.index.position for _ in steps]
    assert len(positions) > 5 and positions == sorted(set(positions))
    assert broker.store.index.behind_bytes == 0


def test_what_is_refused(broker: Broker) -> None:
    for name in ("topic", "key", "maxNum", "beginTimestamp", "endTimestamp"):
        command = query("a")
        command.ext[name] = ""
        reply = broker.ask(command)
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, f"request 12 lacks the field {name}")
    broker.store.index.is_enabled = False
    reply = broker.ask(query("a"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "messageIndexEnable=false" in (reply.remark or "")


def test_an_answer_fits_into_a_frame(broker: Broker) -> None:
    for number in range(5):
        put(broker, b"%d" % number * 1000, KEYS="k")
    whole = broker.ask(query("k"))
    size = len(whole.body) // 5
    requests = QueryRequests(broker.config, broker.store.index, broker.store, broker.core.topics, lambda: None)
    for limit, expected in ((3 * size, 3), (3 * size - 1, 2), (1, 1)):
        requests._body_limit_bytes = limit
        reply = asked(requests, FakeChannel(), query("k"))
        assert isinstance(reply, Command)
        assert bytes(reply.body) == bytes(whole.body)[-expected * size :]
    assert broker.config.max_frame_bytes > FRAME_SPARE_BYTES


def test_a_long_search_waits_in_line(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one request of forty bytes holds up everybody for a tenth of a second."""
    for number in range(6):
        put(broker, b"%d" % number, KEYS="k")
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 2)
    broker.shell.searches = False
    ask = partial(asked, broker.core.queries)
    first, second = FakeChannel(), FakeChannel()
    for channel, count in ((first, MAX_SEARCH_COUNT_OF_ONE), (second, 1)):
        for _ in range(count):
            assert ask(channel, query("k")) is None
    with pytest.raises(RequestError, match="too many searches") as refused:
        ask(first, query("k"))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert broker.shell.woken["searches"] == MAX_SEARCH_COUNT_OF_ONE + 1
    while broker.core.queries.step():
        pass
    expected = [b"%d" % number for number in range(6)]
    assert bodies(second.one()) == expected
    assert [bodies(reply) for reply in first.take()] == [expected] * MAX_SEARCH_COUNT_OF_ONE


def test_one_account_leaves_half_of_the_line_to_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        put(broker, b"%d" % number, KEYS="k")
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 2)
    broker.core.queries._places.most = 4
    broker.shell.searches = False

    def ask(key: str) -> None:
        command = query("k")
        command.principal = principal(key)
        assert asked(broker.core.queries, FakeChannel(), command) is None

    for _ in range(2):
        ask(OWN.name)
    with pytest.raises(RequestError, match="too many searches"):
        ask(OWN.name)
    ask("operator")
    ask(FOREIGN.name)


def test_searches_of_a_connection_that_has_gone_leave_the_line(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 of them kept everybody else out until the last one was done."""
    for number in range(6):
        put(broker, b"%d" % number, KEYS="k")
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 2)
    broker.core.queries._places.most = MAX_SEARCH_COUNT_OF_ONE
    broker.shell.searches = False
    gone, other = FakeChannel(), FakeChannel()
    for _ in range(MAX_SEARCH_COUNT_OF_ONE):
        assert asked(broker.core.queries, gone, query("k")) is None
    with pytest.raises(RequestError, match="too many searches"):
        asked(broker.core.queries, other, query("k"))
    broker.core.processor.closed(gone)
    assert asked(broker.core.queries, other, query("k")) is None
    while broker.core.queries.step():
        pass
    assert gone.take() == [] and bodies(other.one()) == [b"%d" % number for number in range(6)]


def test_a_search_that_the_log_was_cut_under_says_so(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        put(broker, b"%d" % number, KEYS="k")
    monkeypatch.setattr(index_service, "WALK_STEP_COUNT", 2)
    broker.shell.searches = False
    channel = FakeChannel()
    assert asked(broker.core.queries, channel, query("k")) is None
    broker.store.index.files.truncate(broker.store.index.files.end_offset)
    assert not broker.core.queries.step()
    reply = channel.one()
    assert (reply.code, "has changed" in (reply.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def test_what_mqadmin_asked_a_real_broker(broker: Broker) -> None:
    """The captured requests are taken as they are; the captured answers have the fields that ours have."""
    put(broker, b"wire", KEYS="wk-1", UNIQ_KEY="FD0000000000000000000000000000021FEF4E0E2F2A677D43F90002")
    asked = 0
    for _, command in golden_frames("mqadmin"):
        if command.code == RequestCode.QUERY_MESSAGE and not command.is_response:
            reply = broker.ask(Command(command.code, {**command.ext, "topic": "T", "endTimestamp": str(1 << 62)}))
            if int(command.ext["beginTimestamp"]) <= broker.clock.wall_ms():
                assert bodies(reply) == [b"wire"]
            assert set(reply.ext) == {"indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}
            asked += 1
    assert asked >= 2


def test_runtime_info_says_how_far_behind_the_queues_are_and_not_the_index(broker: Broker) -> None:
    """Which is a metric: mqadmin brokerStatus prints whatever the answer has."""
    put(broker, b"1", KEYS="a")
    assert broker.store.index.behind_bytes == broker.store.dispatched_offset > 0
    reply = broker.ask(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert b"index" not in bytes(reply.body)
    assert b'"dispatchBehindBytes":"0"' in bytes(reply.body)


# --- keys of the same hash --------------------------------------------------------------------------------------------
HIDDEN, HIDING = "Aa", "BB"
"""Topics whose keys have the same hashes."""
MINUTE_MS = 60_000


def hide(broker: Broker, monkeypatch: pytest.MonkeyPatch, count: int = 8) -> list[int]:
    """Messages of one topic, a minute apart in several queues; then more of the other than a search passes over.
    Returns the times of the former."""
    monkeypatch.setattr(index_service, "WALK_COUNT", 5)
    assert key_hash(HIDDEN, "x") == key_hash(HIDING, "x")
    times = []
    for number in range(count):
        properties = encode_properties({"KEYS": "x" if number % 2 else "y", "UNIQ_KEY": f"U{number}"}).decode()
        assert broker.ask(send_command(HIDDEN, number % 4, b"%d" % number, i=properties)).code == 0
        times.append(broker.clock.wall_ms())
        broker.clock.ms += MINUTE_MS
    for number in range(10):
        keys = " ".join(["x", "y", *(f"U{item}" for item in range(count))])
        properties = encode_properties({"KEYS": keys, "UNIQ_KEY": f"H{number}"}).decode()
        assert broker.ask(send_command(HIDING, 0, b"hiding", i=properties)).code == 0
    return times


def test_keys_of_one_topic_hide_none_of_another(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may send to any topic made every key of all others unfindable."""
    times = hide(broker, monkeypatch)
    assert bodies(broker.ask(query("x", topic=HIDDEN))) == [b"1", b"3", b"5", b"7"]
    assert bodies(broker.ask(query("x", topic=HIDDEN, maxNum="2"))) == [b"5", b"7"], "the newest"
    assert bodies(broker.ask(query("U6", "U", topic=HIDDEN, _UNIQUE_KEY_QUERY="true"))) == [b"6"]
    within = {"beginTimestamp": str(times[3]), "endTimestamp": str(times[5])}
    assert bodies(broker.ask(query("x", topic=HIDDEN, **within))) == [b"3", b"5"]
    just_within = {"beginTimestamp": str(times[3] + 1), "endTimestamp": str(times[5] - 1)}
    assert bodies(broker.ask(query("y", topic=HIDDEN, **just_within))) == [b"4"]
    for missing in (query("none", topic=HIDDEN), query("x", topic=HIDDEN, beginTimestamp=str(times[7] + 1))):
        assert broker.ask(missing).code == ResponseCode.QUERY_NOT_FOUND


def test_a_topic_with_too_many_messages_is_searched_for_a_shorter_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = hide(broker, monkeypatch)
    monkeypatch.setattr(queue_search, "QUEUE_WALK_COUNT", 3)
    reply = broker.ask(query("U1", topic=HIDDEN))
    assert reply.code == ResponseCode.SYSTEM_ERROR and "ask for a shorter time" in (reply.remark or "")
    assert bodies(broker.ask(query("U1", topic=HIDDEN, endTimestamp=str(times[2])))) == [b"1"]


def test_a_search_of_queues_is_done_in_steps(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(broker, monkeypatch, 40)
    monkeypatch.setattr(queue_search, "QUEUE_STEP_COUNT", 4)
    monkeypatch.setattr(queue_search, "UNITS_AT_A_TIME", 3)
    broker.shell.searches = False
    channel = FakeChannel()
    assert asked(broker.core.queries, channel, query("U1", topic=HIDDEN)) is None
    steps = 1
    while broker.core.queries.step():
        steps += 1
    assert bodies(channel.one()) == [b"1"] and steps > 38 // 4


class WatchedLog:
    """The queues of a broker, with what one search asks of them."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.core.store
        self.counts: list[int] = []
        """Entries of each read of a queue."""
        self.cold: set[int] = set()
        """Queue offsets that are not in memory, of each queue."""
        self.replaced: dict[int, int] = {}
        """Physical offsets at which another record stands now, and where that one was."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        self.counts.append(count)
        return self._store.units(topic, queue_id, offset, count)

    def memory_bounds(self, topic: str, queue_id: int, offset: int, count: int) -> Bounds | ColdRange:
        return ColdRange(0, 0, 0, 0) if offset in self.cold else NO_BOUNDS

    def record_at(self, phy_offset: int) -> memoryview | None:
        return self._store.record_at(self.replaced.get(phy_offset, phy_offset))


def wanted(key: str) -> Wanted:
    return Wanted(HIDDEN, key, 64, 0, 1 << 62, INDEX_KEY_TYPE)


def steps_of(search: QueueSearch) -> int:
    count = 1
    while not search.step():
        count += 1
    return count


def test_a_search_keeps_few_entries_of_many_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 queues with 64 entries each took 10 MB, and 256 searches wait in turns."""
    hide(broker, monkeypatch, 40)
    for queue_count, most in ((4, 10), (2048, 2)):
        log = WatchedLog(broker)
        search = QueueSearch(log, range(queue_count), wanted("x"), 1 << 62)
        steps_of(search)
        assert len(search.records()) == 20 and max(log.counts) == most


def test_a_step_ends_behind_a_message_that_the_disk_must_be_waited_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(broker, monkeypatch, 40)
    warm, cold = WatchedLog(broker), WatchedLog(broker)
    cold.cold = set(range(10))
    warm_count, cold_count = (steps_of(QueueSearch(log, range(4), wanted("x"), 1 << 62)) for log in (warm, cold))
    assert warm_count <= 4 and cold_count >= 40


def test_a_record_that_another_one_has_replaced_since_is_not_given(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is cut between two steps may hold others' messages there."""
    hide(broker, monkeypatch)
    log = WatchedLog(broker)
    search = QueueSearch(log, range(4), wanted("x"), 1 << 62)
    steps_of(search)
    (foreign, _, _), *_ = broker.core.store.units(HIDING, 0, 0, 1)
    newest, *_ = broker.core.store.units(HIDDEN, 3, 1, 1)
    assert len(search.records()) == 4
    log.replaced[newest[0]] = foreign
    assert len(search.records()) == 3


def test_a_topic_that_is_not_there_is_not_said_to_lack_the_key(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(broker, monkeypatch)
    broker.core.topics.remove(HIDDEN)
    assert broker.ask(query("x", topic=HIDDEN)).code == ResponseCode.SYSTEM_ERROR
