"""Requests 3001-3010, and what users may then, through the real guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from rmqha.broker.access import user_table
from rmqha.broker.access.user_table import UserTable
from rmqha.host.access.auth_filter import AuthFilter
from rmqha.host.access.user_accounts import UserAccounts
from rmqha.host.disk import HostDisk
from rmqha.host.net.session import Session
from rmqha.host.net.statistics import Statistics
from rmqha.model.authorization.users import AuthorizationRules, User, UserChange
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.error import ConfigError
from rmqha.model.identity import Credentials
from rmqha.wire.auth.signature import sign
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from tests.broker.support import Broker, FakeChannel, send_command
from tests.support.clock import ManualClock

C, R = RequestCode, ResponseCode
ROOT = '{"username": "root", "password": "root-secret"}'
INNER = '{"accessKey": "inner", "secretKey": "inner-secret"}'
MakeBroker = Callable[..., Broker]
PASSWORDS = {"root": "root-secret", "inner": "inner-secret", "ann": "ann-secret", "bob": "bob-secret"}


@dataclass
class World:
    broker: Broker

    def __post_init__(self) -> None:
        accounts = UserAccounts()
        accounts.follow(self.broker.core.users)
        self.guard = AuthFilter(cast(Any, self.broker.core.processor), accounts, Statistics())
        self.channel = FakeChannel("10.0.0.1:1000")

    def ask(self, command: Command, user: str = "root", password: str = "") -> Command:
        sign(command, Credentials(access_key=user, secret_key=password or PASSWORDS[user]))
        return self.send(command)

    def send(self, command: Command) -> Command:
        self.guard.received(cast(Session, self.channel), [command])
        self.broker.core.save_tables()
        self.broker.run()
        return self.channel.one()

    def create(self, name: str, as_user: str = "root", **more: str) -> Command:
        return self.ask(user_command(C.AUTH_CREATE_USER, name, password=PASSWORDS[name], **more), as_user)

    def allow(self, name: str, *resources: str, actions: list[str], **more: Any) -> Command:
        return self.ask(acl_command(C.AUTH_CREATE_ACL, name, *resources, actions=actions, **more))


def user_command(code: int, name: str, **body: str) -> Command:
    return Command(code, {"username": name}, dumps({"username": name, **body}) if body else b"")


def acl_command(code: int, name: str, *resources: str, actions: list[str], **more: Any) -> Command:
    entries = [{"resource": item, "actions": actions, "decision": "Allow", **more} for item in resources]
    body = {"subject": f"User:{name}", "policies": [{"entries": entries}]}
    return Command(code, {"subject": f"User:{name}"}, dumps(body))


@pytest.fixture
def world(make_broker: MakeBroker) -> World:
    keys = {"init_authentication_user": ROOT, "inner_client_authentication_credentials": INNER}
    on = {"authentication_enabled": True, "authorization_enabled": True}
    return World(make_broker(**on, **keys).start())


def test_a_user_may_what_its_policies_say(world: World) -> None:
    assert world.create("ann").code == R.SUCCESS
    answer = world.ask(send_command("T"), "ann")
    assert (answer.code, answer.remark) == (
        R.NO_PERMISSION,
        "User:ann has no permission to access Topic:T from 10.0.0.1, no matched policies.",
    )
    assert world.allow("ann", "Topic:T", actions=["Pub"]).code == R.SUCCESS
    assert world.ask(send_command("T"), "ann").code == R.SUCCESS
    assert world.ask(send_command("U"), "ann").code == R.NO_PERMISSION
    assert world.ask(Command(C.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}), "ann").code == R.NO_PERMISSION
    deny = acl_command(C.AUTH_UPDATE_ACL, "ann", "Topic:T", actions=["Pub"], decision="Deny")
    assert world.ask(deny).code == R.SUCCESS
    assert (world.ask(send_command("T"), "ann").remark or "").endswith("the decision is deny.")


def test_who_is_not_let_in(world: World) -> None:
    world.create("ann")
    unsigned = world.send(send_command("T"))
    assert (unsigned.code, unsigned.remark) == (R.NO_PERMISSION, "username cannot be null.")
    assert world.ask(send_command("T"), "eve", "x").remark == "User:eve is not found."
    assert world.ask(send_command("T"), "ann", "x").remark == "check signature failed."
    assert world.ask(user_command(C.AUTH_UPDATE_USER, "ann", userStatus="disable")).code == R.SUCCESS
    assert world.ask(send_command("T"), "ann").remark == "User:ann is disabled."
    enabled = world.ask(user_command(C.AUTH_UPDATE_USER, "ann", userStatus="enable", password="another"))
    assert enabled.code == R.SUCCESS
    assert world.ask(send_command("T"), "ann").remark == "check signature failed."
    assert "no matched" in (world.ask(send_command("T"), "ann", "another").remark or "")


def test_what_is_told_of_users(world: World) -> None:
    world.create("bob", userType="Super")
    world.create("ann")
    bob = {"password": "bob-secret", "userStatus": "enable", "userType": "Super", "username": "bob"}
    assert loads(world.ask(Command(C.AUTH_GET_USER, {"username": "bob"})).body) == bob
    listed = loads(world.ask(Command(C.AUTH_LIST_USER)).body)
    assert [row["username"] for row in listed] == ["ann", "bob", "inner", "root"]
    assert loads(world.ask(Command(C.AUTH_LIST_USER, {"filter": "bo"})).body) == [bob]
    nobody = world.ask(Command(C.AUTH_GET_USER, {"username": "eve"}))
    assert (nobody.code, bytes(nobody.body)) == (R.SUCCESS, b"")
    assert bytes(world.ask(Command(C.AUTH_LIST_USER, {"filter": "eve"})).body) == b""


def test_a_password_is_told_to_super_users_only(world: World) -> None:
    world.create("ann")
    world.allow("ann", "Cluster:*", actions=["Get", "Update"])
    for command in (Command(C.AUTH_GET_USER, {"username": "root"}), Command(C.AUTH_LIST_USER)):
        answer = world.ask(command, "ann")
        assert answer.code == R.SUCCESS and b"secret" not in bytes(answer.body)


def test_a_user_does_not_make_itself_super(world: World) -> None:
    world.create("ann")
    world.allow("ann", "*", actions=["All"])
    assert world.create("bob", "ann").code == R.SUCCESS
    for command, remark in (
        (user_command(C.AUTH_UPDATE_USER, "ann", userType="super"), "The super user can only be update by super user"),
        (
            user_command(C.AUTH_CREATE_USER, "eve", password="x", userType="Super"),
            "The super user can only be create by super user",
        ),
    ):
        answer = world.ask(command, "ann")
        assert (answer.code, answer.remark) == (R.SYSTEM_ERROR, remark)
    for command in (
        user_command(C.AUTH_UPDATE_USER, "root", password="taken-over"),
        Command(C.AUTH_DELETE_USER, {"username": "root"}),
    ):
        answer = world.ask(command, "ann")
        assert (answer.code, answer.remark) == (R.NO_PERMISSION, "The super user can only be update by super user")


def test_replication_is_for_super_users_whatever_is_allowed(world: World) -> None:
    """Its answers have every password."""
    world.create("ann")
    world.allow("ann", "*", actions=["All"])
    follow = {"version": "1", "masterEpoch": "1", "brokerId": "2", "topics": "0-0", "groups": "0-0", "offsets": "0-0"}
    answer = world.ask(Command(C.RMQHA_FOLLOW_TABLES, {**follow, "delays": "0-0", "users": "0-0"}), "ann")
    assert (answer.code, answer.remark) == (R.NO_PERMISSION, "User:ann is not a super user")


@pytest.mark.parametrize(
    ("command", "code", "remark"),
    [
        (user_command(C.AUTH_CREATE_USER, "", password="x"), R.INVALID_PARAMETER, "The username is blank"),
        (user_command(C.AUTH_CREATE_USER, "ann", password="x"), R.NO_PERMISSION, "The user is existed"),
        (user_command(C.AUTH_CREATE_USER, "eve", password=" "), R.NO_PERMISSION, "password can not be blank"),
        (user_command(C.AUTH_CREATE_USER, "eve"), R.NO_PERMISSION, "user can not be null"),
        (user_command(C.AUTH_CREATE_USER, "e" * 129, password="x"), R.NO_PERMISSION, "username must be printable"),
        (user_command(C.AUTH_CREATE_USER, "e\nve", password="x"), R.NO_PERMISSION, "username must be printable"),
        (user_command(C.AUTH_CREATE_USER, "peer-server", password="x"), R.NO_PERMISSION, "peer-server is the name"),
        (user_command(C.AUTH_CREATE_USER, "eve", password="x" * 257), R.NO_PERMISSION, "password must be text"),
        (user_command(C.AUTH_UPDATE_USER, "eve", password="x"), R.NO_PERMISSION, "The user is not exist"),
        (user_command(C.AUTH_UPDATE_USER, "inner", password="x"), R.NO_PERMISSION, "inner is this broker's own user"),
        (Command(C.AUTH_DELETE_USER), R.NO_PERMISSION, "username can not be blank"),
        (Command(C.AUTH_DELETE_USER, {"username": "root"}), R.NO_PERMISSION, "root stands in this broker's config"),
        (Command(C.AUTH_DELETE_USER, {"username": "eve"}), R.SUCCESS, ""),
        (Command(C.AUTH_GET_USER), R.INVALID_PARAMETER, "The username is blank"),
        (acl_command(C.AUTH_CREATE_ACL, "eve", "Topic:T", actions=["Pub"]), R.NO_PERMISSION, "The subject of User:eve"),
        (Command(C.AUTH_CREATE_ACL, {"subject": "User:ann"}, b"{}"), R.SYSTEM_ERROR, "The body of acl is null"),
        (Command(C.AUTH_CREATE_ACL, {"subject": "ann"}, b'{"policies": [1]}'), R.INVALID_PARAMETER, "the subject"),
        (acl_command(C.AUTH_UPDATE_ACL, "ann", "Topic:T", actions=["Any"]), R.NO_PERMISSION, "The actions can not be"),
        (Command(C.AUTH_GET_ACL, {"subject": "User:eve"}), R.NO_PERMISSION, "The subject is not exist."),
        (Command(C.AUTH_DELETE_ACL, {"subject": "User:eve"}), R.NO_PERMISSION, "The subject is not exist."),
        (Command(C.AUTH_DELETE_ACL, {"subject": "User:ann"}), R.NO_PERMISSION, "The acl is not exist."),
        (Command(C.AUTH_CREATE_USER, {"username": "eve"}, b"{"), R.SYSTEM_ERROR, ""),
    ],
)
def test_what_is_refused_and_changes_nothing(world: World, command: Command, code: ResponseCode, remark: str) -> None:
    world.create("ann")
    before = world.broker.core.users.to_json()
    answer = world.ask(Command(command.code, dict(command.ext), command.body))
    assert answer.code == code and (answer.remark or "").startswith(remark)
    assert world.broker.core.users.to_json() == before


def test_policies_are_shown_taken_out_and_go_with_their_user(world: World) -> None:
    world.create("ann")
    assert bytes(world.ask(Command(C.AUTH_GET_ACL, {"subject": "User:ann"})).body) == b""
    world.allow("ann", "Topic:T", "Group:G*", actions=["Pub", "Sub"], sourceIps=["10.0.0.0/8"])
    shown = loads(world.ask(Command(C.AUTH_GET_ACL, {"subject": "User:ann"})).body)
    entry = {"actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]}
    entries = [{**entry, "resource": "Topic:T"}, {**entry, "resource": "Group:G*"}]
    assert shown == {"policies": [{"entries": entries, "policyType": "Custom"}], "subject": "User:ann"}
    listed = loads(world.ask(Command(C.AUTH_LIST_ACL, {"subjectFilter": "ann", "resourceFilter": "G"})).body)
    assert [row["resource"] for row in listed[0]["policies"][0]["entries"]] == ["Group:G*"]
    assert bytes(world.ask(Command(C.AUTH_LIST_ACL, {"subjectFilter": "bob"})).body) == b""
    assert world.ask(Command(C.AUTH_DELETE_ACL, {"subject": "User:ann", "resource": "Topic:T"})).code == R.SUCCESS
    left = loads(world.ask(Command(C.AUTH_LIST_ACL)).body)
    assert left[0]["policies"][0]["entries"] == entries[1:]
    assert world.ask(Command(C.AUTH_DELETE_USER, {"username": "ann"})).code == R.SUCCESS
    assert bytes(world.ask(Command(C.AUTH_LIST_ACL)).body) == b""
    world.create("ann")
    assert world.ask(send_command("T"), "ann").code == R.NO_PERMISSION, "a new user of an old name has no rights"


def test_a_slave_answers_what_it_holds_and_changes_nothing(make_broker: MakeBroker) -> None:
    master, slave = make_broker("master").start(), make_broker("slave")
    slave.controller.away = True
    asked = user_command(C.AUTH_CREATE_USER, "ann", password="ann-secret")
    refused = slave.ask(asked)
    assert refused.code == R.SYSTEM_ERROR and "not the master" in (refused.remark or "")
    master.core.users.put_user("ann", UserChange("ann-secret"))
    slave.core.users.replace(master.core.users.to_json())
    assert slave.ask(asked).code == R.SUCCESS
    assert slave.ask(user_command(C.AUTH_UPDATE_USER, "ann", password="other")).code == R.SYSTEM_ERROR
    assert slave.core.users.to_json() == master.core.users.to_json()
    assert slave.ask(Command(C.AUTH_DELETE_USER, {"username": "eve"})).code == R.SUCCESS


def test_users_and_policies_are_there_after_a_restart(make_broker: MakeBroker, world: World) -> None:
    world.create("ann")
    world.allow("ann", "Topic:T", actions=["Pub"])
    told = world.broker.core.users.to_json()
    world.broker.close()
    assert make_broker().core.users.to_json() == told


def test_a_broker_without_users_writes_no_file(make_broker: MakeBroker) -> None:
    broker = make_broker().start()
    broker.close()
    assert (broker.directory / "config").is_dir() and not list(broker.directory.glob("config/auth*"))


def test_the_configuration_tells_nobody_a_password(world: World) -> None:
    answer = world.ask(Command(C.GET_BROKER_CONFIG))
    assert answer.code == R.SUCCESS
    text = bytes(answer.body).decode() + repr(answer.ext) + repr(world.broker.config)
    assert "initAuthenticationUser=\n" in text and "root-secret" not in text and "inner-secret" not in text


# --- the table --------------------------------------------------------------------------------------------------------
class Events:
    def table_changed(self) -> None: ...

    def save_tables_soon(self) -> None: ...

    def topics_changed(self) -> None: ...

    def batch_topics_changed(self, topics: set[str]) -> None: ...


@pytest.fixture
def table(tmp_path: Any) -> UserTable:
    return UserTable(HostDisk(tmp_path), ManualClock(), Events(), AuthorizationRules())


def test_the_table_is_bounded(table: UserTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.put_user("ann", UserChange("ann-secret"))
    monkeypatch.setattr(user_table, "MAX_USER_COUNT", 1)
    with pytest.raises(ConfigError, match="as many users as there may be"):
        table.put_user("bob", UserChange("bob-secret"))
    table.put_user("ann", UserChange("another"))
    monkeypatch.setattr(user_table, "MAX_TABLE_BYTES", 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        table.put_user("ann", UserChange("a much longer one than before"))
    assert table.user("ann") == User("ann", "another")
    table.put_user("ann", UserChange("short"))
    table.remove_user("ann")
    assert table.users() == []


def test_a_version_is_never_given_twice(table: UserTable) -> None:
    table.new_epoch(3)
    assert table.version.counter == 0, "a table without users stays as it is"
    table.put_user("ann", UserChange("x"))
    before = table.version.stamp
    table.new_epoch(3)
    assert table.version.stamp > before, "the last life may have told of changes that its file lacks"
    told = table.version.stamp
    table.new_epoch(4)
    assert table.version.stamp == told, "an election alone changes no user"
    table.put_user("ann", UserChange("y"))
    assert table.version.stamp > told and table.version.state_version == 4


def test_a_table_that_cannot_be_read_is_refused(table: UserTable) -> None:
    bodies: tuple[dict[str, Any], ...] = ({"users": {"ann": {}}}, {"users": []}, {"policies": {"ann": [{}]}})
    for body in bodies:
        with pytest.raises(ValueError):
            table.replace(body)
    assert table.users() == []
