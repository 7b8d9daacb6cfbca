"""What a server tells of its keys, and what is made of it."""

from __future__ import annotations

import dataclasses

import pytest

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig
from rmqha.model.access import AccessList, Account, Credentials
from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RmqhaError
from rmqha.model.principal import UNRESTRICTED, Principal
from rmqha.wire.command import Command
from rmqha.wire.config_answer import BESIDE, FIELD, FOR_ADMINS, ConfigAnswer, config_body, config_ext, parse_keys

CONFIG = BrokerConfig(flush_interval_commit_log=200)


def test_there_and_back() -> None:
    # an alias counts as the key that it stands for
    reply = Command(0, config_ext(CONFIG, ["maxHaTransferByteInSecond"]), config_body(CONFIG))
    told = parse_keys(reply, "a:1")
    assert told.values == CONFIG.to_properties()
    assert told.live == BrokerConfig.live_keys
    assert told.overridden == frozenset({"haTransferBytesPerSecond"})
    assert told.changed == {"flushIntervalCommitLog": "500"}


def test_what_stands_beside_is_for_apaches_programs_alone() -> None:
    ext, body = ConfigAnswer(dict.fromkeys(BESIDE, "1")).of(CONFIG, frozenset(), UNRESTRICTED)
    assert {line.partition("=")[0] for line in body.decode().splitlines()} == CONFIG.keys().keys() | set(BESIDE)
    assert parse_keys(Command(0, ext, body), "a:1").values == CONFIG.to_properties()


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
    ext, body = answer.of(CONFIG, none, UNRESTRICTED)
    assert (ext, body) == (config_ext(CONFIG, none), config_body(CONFIG))
    ext["other"] = "field"
    again, same = answer.of(CONFIG, none, UNRESTRICTED)
    assert again == config_ext(CONFIG, none)
    assert same is body
    assert answer.of(CONFIG, some, UNRESTRICTED)[0] == config_ext(CONFIG, some)
    changed = dataclasses.replace(CONFIG, broker_name="other")
    assert answer.of(changed, some, UNRESTRICTED) == (config_ext(changed, some), config_body(changed))


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
    seen = {name: answer.of(config, none, Principal(ACCOUNTS, name)) for name in ("operator", "guest", "nobody")}
    assert seen["operator"] == answer.of(config, none, UNRESTRICTED)
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
