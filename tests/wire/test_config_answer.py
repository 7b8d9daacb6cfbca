"""What a server tells of its keys, and what is made of it."""

from __future__ import annotations

import dataclasses

import pytest

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from rmqha.model.access import AccessList, Account
from rmqha.model.code import RequestCode
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RmqhaError
from rmqha.model.identity import Credentials
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.command import Command, Language
from rmqha.wire.config_answer import FIELD, FOR_ADMINS, ConfigAnswer, config_body, config_ext, parse_keys

CONFIG = BrokerConfig(flush_interval_commit_log=200)
BODY = config_body(CONFIG.to_properties())
ASKED = RequestCode.GET_BROKER_CONFIG


def test_there_and_back() -> None:
    # an alias counts as the key that it stands for
    reply = Command(0, config_ext(CONFIG, ["maxHaTransferByteInSecond"]), BODY)
    told = parse_keys(reply, "a:1")
    assert told.values == CONFIG.to_properties()
    assert told.live == BrokerConfig.live_keys
    assert told.overridden == frozenset({"haTransferBytesPerSecond"})
    assert told.changed == {"flushIntervalCommitLog": "500"}


def asked(principal: Principal = UNRESTRICTED, language: Language = Language.PYTHON) -> Command:
    command = Command(ASKED, language=language)
    command.principal = principal
    return command


def test_java_programs_are_told_rocketmqs_keys_alone() -> None:
    answer, none = ConfigAnswer({"useTLS": "true"}, 3), frozenset[str]()
    ext, body = answer.of(CONFIG, none, asked(language=Language.JAVA))
    told = parse_keys(Command(0, ext, body), "a:1")
    assert told.live is None and "haMode" not in told.values
    assert (told.values["flushIntervalCommitLog"], told.values["useTLS"]) == ("200", "true")
    assert told.values["pullMessageThreadPoolNums"] == "22", "RocketMQ's default for three processors"
    # the other answer is not mixed up with it
    assert answer.of(CONFIG, none, asked()) == (config_ext(CONFIG, none), BODY)
    assert answer.of(CONFIG, none, asked(language=Language.JAVA)) == (ext, body)


def test_of_apaches_nodes_only_the_values_are_known() -> None:
    told = parse_keys(Command(0, {"version": "{}"}, b"brokerRole=SLAVE\n"), "a:1")
    assert (told.values, told.live, told.overridden, told.changed) == ({"brokerRole": "SLAVE"}, None, None, None)
    later = parse_keys(Command(0, {FIELD: '{"version":2}'}, b"a=b\n"), "a:1")
    assert (later.values, later.live) == ({"a": "b"}, None)


@pytest.mark.parametrize(
    ("field", "body"),
    [("[]", b"a=b\n"), ("{", b"a=b\n"), ('{"version":1}', b"a=b\n"), ("{}", b"\xff"), ("{}", b"nonsense")],
)
def test_nonsense_is_one_sentence(field: str, body: bytes) -> None:
    with pytest.raises(RmqhaError, match="a:1"):
        parse_keys(Command(0, {FIELD: field}, body), "a:1")


def test_an_answer_is_made_once_for_each_state_of_the_keys() -> None:
    answer, none, some = ConfigAnswer(), frozenset[str](), frozenset({"brokerName"})
    ext, body = answer.of(CONFIG, none, asked())
    assert (ext, body) == (config_ext(CONFIG, none), BODY)
    ext["other"] = "field"
    again, same = answer.of(CONFIG, none, asked())
    assert again == config_ext(CONFIG, none)
    assert same is body
    assert answer.of(CONFIG, some, asked())[0] == config_ext(CONFIG, some)
    changed = dataclasses.replace(CONFIG, broker_name="other")
    assert answer.of(changed, some, asked()) == (config_ext(changed, some), config_body(changed.to_properties()))


@dataclasses.dataclass
class Accounts:
    access: AccessList


def account(name: str, *, admin: bool) -> Account:
    return Account(credentials=Credentials(access_key=name, secret_key="12345678"), admin=admin)


ACCOUNTS = Accounts(AccessList({"guest": account("guest", admin=False), "operator": account("operator", admin=True)}))


def test_where_secrets_are_is_for_admins() -> None:
    config = dataclasses.replace(
        CONFIG, acl_file="/etc/rmqha/a", credentials_file="/etc/rmqha/c", ha_secret_file="/etc/rmqha/h"
    )
    answer, none = ConfigAnswer(), frozenset[str]()
    seen = {name: answer.of(config, none, asked(Principal(ACCOUNTS, name))) for name in ("operator", "guest", "nobody")}
    assert seen["operator"] == answer.of(config, none, asked())
    assert b"/etc/rmqha" in seen["operator"][1]
    for name in ("guest", "nobody"):
        ext, body = seen[name]
        assert b"/etc/rmqha" not in body and "/etc/rmqha" not in ext[FIELD]
        told = parse_keys(Command(0, ext, body), "a:1").values
        assert told == {key: "" if key in FOR_ADMINS else value for key, value in config.to_properties().items()}


def test_every_key_of_a_file_is_for_admins_or_known_to_be_none_of_secrets() -> None:
    """A key of tomorrow is looked at here."""
    keys = {*BrokerConfig().to_properties(), *NamesrvConfig().to_properties(), *ControllerConfig().to_properties()}
    files = {key for key in keys if key.endswith(("File", "Path")) or key == "quota.overrides"}
    assert files - FOR_ADMINS == {"controllerStorePath", "kvConfigPath", "logFile"} and files > FOR_ADMINS


@pytest.mark.parametrize("language", [Language.PYTHON, Language.JAVA])
def test_passwords_are_told_to_nobody(language: Language) -> None:
    file = {"initAuthenticationUser": '{"username":"a","password":"sesame"}', "authenticationEnabled": "true"}
    config = BrokerConfig.from_properties({**file, "aclEnable": "false"}, "broker.conf")
    _, body = ConfigAnswer().of(config, frozenset(), asked(language=language))
    assert b"authenticationEnabled=true" in body and b"sesame" not in body
