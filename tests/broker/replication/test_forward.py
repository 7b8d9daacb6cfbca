"""Sends during and after a hand-over: held in order, passed on once, bounded."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest
import trio
from trio.testing import MockClock

from rmqha.broker.replication.forward import HOLD_MS, MAX_HELD_BYTES, MAX_HELD_COUNT, HostTasks, SendForwarder
from rmqha.broker.requests.request import FORWARDED, UNWRITTEN, Channel, Steps
from rmqha.model.access import AccessList, Account, Permission
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import NotSentError, UnreachableError
from rmqha.model.identity import Credentials, Role
from rmqha.model.principal import Principal
from rmqha.wire.auth.acl import ON_BEHALF_OF
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.support.clock import TrioClock

OWN, NEXT = "127.0.0.1:1", "127.0.0.1:2"


class Client:
    """A connection that remembers its answers."""

    peer = "127.0.0.1:9"
    waited_ms = 0

    def __init__(self) -> None:
        self.answers: list[tuple[int, int]] = []
        self.replies: list[Command] = []

    def send(self, command: Command) -> None:
        self.answers.append((command.opaque, command.code))
        self.replies.append(command)

    send_at_once = send

    def send_frames(self, frames: bytes, count: int) -> None:
        raise AssertionError("what is held is no plain send")

    def work(self, steps: Steps) -> None:
        raise AssertionError("nothing costly is held")

    def fail(self, error: Exception, commands: Sequence[Command]) -> None:
        raise error


@dataclass
class Accounts:
    access: AccessList


@dataclass
class Replica:
    role: Role = Role.MASTER
    hands_over: bool = False
    newest_master_address: str = OWN

    @property
    def is_master(self) -> bool:
        return self.role in (Role.MASTER, Role.PROMOTING)

    def becomes_slave(self, master_address: str = NEXT) -> None:
        self.role, self.hands_over, self.newest_master_address = Role.SLAVE, False, master_address


class Fate(Enum):
    """What comes of one request that is passed on, beside any answer in its words."""

    NO_CONNECTION = "nobody listens"
    NOT_YET = "refused, nothing written"
    TOO_FEW = "refused, nothing written, in other words"
    LOST = "the request is lost on its way"
    ANSWER_LOST = "stored, the answer is lost"
    DEMOTED = "stored, and the new master is deposed before its set has it"


@dataclass
class NextMaster:
    """`codes`: what it answers first; then SUCCESS."""

    codes: list[int | Fate] = field(default_factory=list)
    remark: str = ""
    ext: dict[str, str] = field(default_factory=lambda: {"queueOffset": "7"})
    body: bytes = b""
    stored: list[bytes] = field(default_factory=list)
    seen: list[Command] = field(default_factory=list)
    oneways: list[Command] = field(default_factory=list)

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        await trio.lowlevel.checkpoint()
        assert address == NEXT and 0 < timeout_ms <= HOLD_MS
        code = self.codes.pop(0) if self.codes else 0
        if code is Fate.NO_CONNECTION:
            raise NotSentError("no")
        self.seen.append(command)
        if code in (Fate.ANSWER_LOST, Fate.DEMOTED, 0, 10, 11, 12):
            self.stored.append(bytes(command.body))
        match code:
            case Fate.LOST | Fate.ANSWER_LOST:
                raise UnreachableError("closed")
            case Fate.NOT_YET:
                return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, {UNWRITTEN: "true"})
            case Fate.TOO_FEW:
                return command.reply(ResponseCode.SYSTEM_ERROR, {UNWRITTEN: "true"})
            case Fate.DEMOTED:
                return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, {})
        assert isinstance(code, int)
        return command.reply(code, dict(self.ext), self.body, self.remark if code else None)

    async def oneway(self, address: str, command: Command) -> None:
        await trio.lowlevel.checkpoint()
        self.oneways.append(command)


class Story:
    def __init__(self, nursery: trio.Nursery, window_ms: int = 35_000) -> None:
        self.replica, self.next, self.client, self.admitted = Replica(), NextMaster(), Client(), list[int]()
        self.events: list[str] = []
        self.ready = True
        self.forwarder = SendForwarder(
            OWN,
            window_ms,
            self.replica,
            lambda: self.ready,
            self.admit,
            self.next,
            HostTasks(nursery),
            TrioClock(),
            self,
        )

    def event(self, name: str, **fields: object) -> None:
        self.events.append(name)

    def admit(self, channel: Channel, commands: list[Command]) -> None:
        self.admitted += [command.opaque for command in commands]

    def send(self, opaque: int, *, client: Client | None = None, flag: int = 0, body: bytes = b"body") -> bool:
        command = Command(RequestCode.SEND_MESSAGE_V2, {}, memoryview(body), opaque=opaque, flag=flag)
        return self.forwarder.hold(client or self.client, [command])

    def switch(self) -> None:
        self.replica.becomes_slave()
        self.forwarder.role_changed()


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    async with trio.open_nursery() as nursery:
        yield Story(nursery)
        nursery.cancel_scope.cancel()


async def test_a_master_that_hands_over_nothing_holds_nothing(story: Story, autojump_clock: MockClock) -> None:
    assert not story.send(1)


async def test_a_killed_master_that_comes_back_as_slave_passes_on(story: Story, autojump_clock: MockClock) -> None:
    """Clients whose route is old work again as soon as something answers at the address that they know."""
    story.replica.role, story.replica.newest_master_address = Role.STARTING, ""
    assert not story.send(1), "there is nobody to wait for"
    story.replica.becomes_slave("")
    story.forwarder.role_changed()
    assert not story.send(2), "no master is known: the client shall ask for the route"
    story.replica.becomes_slave()
    story.forwarder.role_changed()
    assert story.events == []
    assert story.send(3) and story.send(4)
    await trio.sleep(0.1)
    assert story.client.answers == [(3, 0), (4, 0)]
    assert story.events == ["forwards_sends"]


async def test_what_comes_during_a_switch_goes_to_the_new_master_in_order(
    story: Story, autojump_clock: MockClock
) -> None:
    story.replica.hands_over = True
    assert all(story.send(number) for number in (1, 2, 3))
    await trio.sleep(0.1)
    assert story.client.answers == []
    story.switch()
    await trio.sleep(0.1)
    assert story.client.answers == [(1, 0), (2, 0), (3, 0)]
    assert [command.ext for command in story.next.seen] == [{FORWARDED: OWN}] * 3
    assert all(bytes(command.body) == b"body" for command in story.next.seen)
    assert story.send(4), "clients that have not asked for the route yet"
    await trio.sleep(0.1)
    assert story.client.answers[-1] == (4, 0) and story.forwarder.forwarded_count == 4


async def test_a_switch_that_fails_lets_the_old_master_take_them(story: Story, autojump_clock: MockClock) -> None:
    story.replica.hands_over = True
    assert story.send(1) and story.send(2)
    await trio.sleep(0.1)
    story.replica.hands_over = False
    await trio.sleep(0.1)
    assert (story.admitted, story.client.answers) == ([1, 2], [])
    assert not story.send(3)


async def test_the_new_master_is_waited_for_until_it_has_taken_over(story: Story, autojump_clock: MockClock) -> None:
    story.next.codes = [Fate.NO_CONNECTION, Fate.NOT_YET, Fate.NO_CONNECTION, Fate.NOT_YET]
    story.switch()
    assert story.send(1)
    await trio.sleep(0.1)
    assert story.client.answers == [(1, 0)]


async def test_a_new_master_whose_set_is_too_small_yet_is_waited_for(story: Story, autojump_clock: MockClock) -> None:
    """Its other refusals of that code are final, whatever their words."""
    story.next.codes = [Fate.TOO_FEW] * 2
    story.switch()
    assert story.send(1)
    await trio.sleep(0.1)
    story.next.codes, story.next.remark = [ResponseCode.SYSTEM_ERROR], "in-sync replicas not enough"
    assert story.send(2)
    await trio.sleep(0.1)
    assert story.client.answers == [(1, 0), (2, ResponseCode.SYSTEM_ERROR)]


async def test_any_other_refusal_of_the_new_master_is_the_answer(story: Story, autojump_clock: MockClock) -> None:
    story.next.codes = [ResponseCode.TOPIC_NOT_EXIST]
    story.switch()
    assert story.send(1)
    await trio.sleep(0.1)
    assert story.client.answers == [(1, ResponseCode.TOPIC_NOT_EXIST)]


async def test_what_was_sent_once_is_stored_once_and_the_answer_says_no_more_than_the_new_master(
    autojump_clock: MockClock,
) -> None:
    """Every three fates in a row."""
    fates: list[int | Fate] = [*Fate, 0, 12, 14, 17]
    for codes in itertools.product(fates, repeat=3):
        async with trio.open_nursery() as nursery:
            story = Story(nursery)
            story.next.codes = list(codes)
            story.switch()
            assert story.send(1)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        (reply,) = story.client.replies
        last = next((code for code in codes if code not in SAFE_TO_REPEAT), 0)
        assert len(story.next.stored) == (last in (Fate.ANSWER_LOST, Fate.DEMOTED, 0, 12)), codes
        assert reply.code == (14 if isinstance(last, Fate) else last), codes
        assert (reply.ext.get("duplicatePossible") == "true") == (last in (Fate.LOST, Fate.ANSWER_LOST)), codes


SAFE_TO_REPEAT = (Fate.NO_CONNECTION, Fate.NOT_YET, Fate.TOO_FEW)


@pytest.mark.parametrize("code", ResponseCode)
async def test_the_new_masters_words_are_the_answer(
    story: Story, autojump_clock: MockClock, code: ResponseCode
) -> None:
    story.next.codes, story.next.body, story.next.remark = [code], b"told", "so it is"
    story.next.ext = {"msgId": "m", "queueOffset": "9"}
    story.switch()
    assert story.send(1)
    await trio.sleep(0.1)
    (reply,) = story.client.replies
    assert (reply.opaque, reply.code, reply.ext, bytes(reply.body)) == (1, code, story.next.ext, b"told")
    assert reply.remark == ("so it is" if code else None) and len(story.next.seen) == 1


async def test_who_does_not_say_that_nothing_is_written_is_not_asked_again(
    story: Story, autojump_clock: MockClock
) -> None:
    """An answer 14 of Apache's broker, of an earlier release, or of one that was deposed while the send waited."""
    story.next.codes = [ResponseCode.SERVICE_NOT_AVAILABLE, 0]
    story.switch()
    assert story.send(1)
    await trio.sleep(1)
    assert (story.client.answers, len(story.next.seen)) == ([(1, ResponseCode.SERVICE_NOT_AVAILABLE)], 1)


async def test_a_lost_answer_is_told_as_such(story: Story, autojump_clock: MockClock) -> None:
    story.next.codes = [Fate.ANSWER_LOST]
    story.switch()
    assert story.send(1)
    await trio.sleep(1)
    (reply,) = story.client.replies
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE, "every client tries again, under the same UNIQ_KEY"
    assert "may be stored, its answer is lost: closed" in (reply.remark or "")
    assert story.events == ["forwarded_answer_lost"]


async def test_waiting_ends_before_the_client_gives_up(story: Story, autojump_clock: MockClock) -> None:
    story.replica.hands_over = True
    assert story.send(1)
    await trio.sleep(HOLD_MS / 1000 + 0.1)
    assert story.client.answers == [(1, ResponseCode.SERVICE_NOT_AVAILABLE)]


async def test_what_is_passed_on_may_no_more_than_who_has_sent_it(story: Story, autojump_clock: MockClock) -> None:
    """This broker signs it anew, as an admin."""
    story.switch()
    command = Command(RequestCode.END_TRANSACTION)
    command.principal = Principal(Accounts(AccessList({})), "orders")
    assert story.forwarder.hold(story.client, [command])
    await trio.sleep(1)
    (seen,) = story.next.seen
    assert seen.ext == {FORWARDED: OWN, ON_BEHALF_OF: "orders"}


async def test_a_request_that_was_passed_on_is_not_passed_on_again(story: Story, autojump_clock: MockClock) -> None:
    story.switch()
    command = Command(RequestCode.SEND_MESSAGE_V2, {FORWARDED: "127.0.0.1:7"})
    assert not story.forwarder.hold(story.client, [command])


async def test_a_send_waits_behind_those_of_its_connection_that_are_held(
    story: Story, autojump_clock: MockClock
) -> None:
    story.replica.hands_over = True
    assert story.send(1)
    await trio.lowlevel.checkpoint()
    story.replica.hands_over = False
    assert story.send(2), "the first one has not been taken yet"
    assert not story.send(3, client=Client()), "another connection's has nothing to wait for"
    await trio.sleep(0.1)
    assert story.admitted == [1, 2]
    assert not story.send(4)


async def test_a_oneway_send_gets_no_answer(story: Story, autojump_clock: MockClock) -> None:
    story.switch()
    assert story.send(1, flag=FLAG_ONEWAY)
    await trio.sleep(0.1)
    assert (story.client.answers, len(story.next.oneways)) == ([], 1)


async def test_what_is_held_is_bounded(story: Story, autojump_clock: MockClock) -> None:
    story.replica.hands_over = True
    assert sum(story.send(number, client=Client()) for number in range(MAX_HELD_COUNT + 10)) == MAX_HELD_COUNT
    story.switch()
    await trio.sleep(0.1)
    assert story.send(1), "they are gone"


async def test_the_bytes_of_what_is_held_are_bounded_too(story: Story, autojump_clock: MockClock) -> None:
    story.replica.hands_over = True
    large = bytes(MAX_HELD_BYTES // 16)
    assert sum(story.send(number, client=Client(), body=large) for number in range(20)) == 16
    assert not story.send(20), "there is no room for a small one either"
    story.switch()
    await trio.sleep(0.1)
    assert sum(story.send(number, client=Client(), body=large) for number in range(20)) == 16, "they are gone"


async def test_the_window_ends_and_a_new_mastership_ends_it_too(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery, window_ms=1000)
        story.switch()
        assert story.send(1)
        await trio.sleep(0.1)
        await trio.sleep(1)
        assert not story.send(2)
        story.switch()
        story.replica.role = Role.MASTER
        story.forwarder.role_changed()
        assert not story.send(3)
        nursery.cancel_scope.cancel()


async def test_a_new_master_lets_sends_wait_until_it_has_company(story: Story, autojump_clock: MockClock) -> None:
    """A Java client would use up its tries within the milliseconds that this takes."""
    story.ready = False
    story.forwarder.role_changed()
    assert story.send(1) and story.send(2)
    await trio.sleep(0.1)
    assert (story.admitted, story.client.answers) == ([], [])
    story.ready = True
    await trio.sleep(0.1)
    assert story.admitted == [1, 2]
    assert not story.send(3), "nothing to wait for"


async def test_a_new_master_without_company_refuses_in_the_end(story: Story, autojump_clock: MockClock) -> None:
    story.ready = False
    story.forwarder.role_changed()
    await trio.sleep(1)
    assert story.send(1)
    await trio.sleep(HOLD_MS / 1000)
    assert story.admitted == [1], "admission refuses it with its reason"
    assert not story.send(2)


async def test_a_send_that_was_passed_on_is_refused_at_once_while_there_is_no_company(
    story: Story, autojump_clock: MockClock
) -> None:
    """The old master tries again by itself."""
    story.ready = False
    story.forwarder.role_changed()
    command = Command(RequestCode.SEND_MESSAGE_V2, {FORWARDED: "127.0.0.1:7"})
    assert not story.forwarder.hold(story.client, [command])


async def test_a_send_that_meets_a_bug_later_takes_no_other_with_it(story: Story, autojump_clock: MockClock) -> None:
    class Hostile(Client):
        failed: str = ""

        def fail(self, error: Exception, commands: Sequence[Command]) -> None:
            self.failed = f"{error!r} {[command.opaque for command in commands]}"

    def admit(channel: Channel, commands: list[Command]) -> None:
        if channel is hostile:
            raise KeyError("topic")
        story.admitted += [command.opaque for command in commands]

    hostile = Hostile()
    story.forwarder._admit = admit
    story.replica.hands_over = True
    assert story.send(1, client=hostile) and story.send(2) and story.send(3, client=hostile)
    story.replica.hands_over = False
    await trio.sleep(0.1)
    assert hostile.failed == "KeyError('topic') [3]"
    assert story.admitted == [2]
    story.replica.hands_over = True
    assert story.send(4), "nothing of it is held any more"


def account(key: str) -> Account:
    credentials = Credentials(access_key=key, secret_key=f"{key}-secret")
    return Account(credentials=credentials, topics={"T": Permission.PUB})


def signed(accounts: Accounts, key: str, opaque: int, body: bytes = b"") -> Command:
    command = Command(RequestCode.SEND_MESSAGE_V2, {"b": "T"}, body, opaque=opaque)
    command.principal = Principal(accounts, key)
    return command


@pytest.mark.parametrize("body", [b"", bytes(MAX_HELD_BYTES // 16)])
async def test_one_account_leaves_half_of_the_places_to_others(
    story: Story, autojump_clock: MockClock, body: bytes
) -> None:
    """A thousand sends of one account that wait had all others refused during each switch."""
    accounts = Accounts(AccessList({key: account(key) for key in ("greedy", "other")}))
    story.replica.hands_over = True
    most = 8 if body else MAX_HELD_COUNT // 2
    most -= bool(body)  # the names of topics count too
    held = [story.forwarder.hold(Client(), [signed(accounts, "greedy", 1, body)]) for _ in range(most + 2)]
    assert held.count(True) == most
    assert story.forwarder.hold(Client(), [signed(accounts, "other", 2, body)])
    assert not story.forwarder.hold(Client(), [signed(accounts, "other", 3), signed(accounts, "greedy", 4, body)])
    story.switch()
    await trio.sleep(0.1)
    assert story.forwarder._held_counts.used == story.forwarder._held_bytes.used == 0


async def test_a_send_is_not_taken_that_its_account_may_not_make_any_more(
    story: Story, autojump_clock: MockClock
) -> None:
    accounts = Accounts(AccessList({"own": account("own")}))
    story.replica.hands_over = True
    for opaque in (1, 2):
        assert story.forwarder.hold(story.client, [signed(accounts, "own", opaque)])
    command = signed(accounts, "own", 3)
    command.flag = FLAG_ONEWAY
    assert story.forwarder.hold(story.client, [command])
    accounts.access = AccessList({"own": replace(account("own"), topics={})})
    story.replica.hands_over = False
    await trio.sleep(0.1)
    assert story.client.answers == [(1, ResponseCode.NO_PERMISSION), (2, ResponseCode.NO_PERMISSION)]
    assert story.admitted == []
