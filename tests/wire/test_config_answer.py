"""What a server tells of its keys, and what is made of it."""

from __future__ import annotations

import dataclasses

import pytest

from rmqha.model.config.servers import BrokerConfig
from rmqha.model.error import RmqhaError
from rmqha.wire.command import Command
from rmqha.wire.config_answer import FIELD, ConfigAnswer, config_body, config_ext, parse_keys

CONFIG = BrokerConfig(flush_interval_commit_log=200)


def test_there_and_back() -> None:
    # an alias counts as the key that it stands for
    reply = Command(0, config_ext(CONFIG, ["maxHaTransferByteInSecond"]), config_body(CONFIG))
    told = parse_keys(reply, "a:1")
    assert told.values == CONFIG.to_properties()
    assert told.live == BrokerConfig.live_keys
    assert told.overridden == frozenset({"haTransferBytesPerSecond"})
    assert told.changed == {"flushIntervalCommitLog": "500"}


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
    ext, body = answer.of(CONFIG, none)
    assert (ext, body) == (config_ext(CONFIG, none), config_body(CONFIG))
    ext["other"] = "field"
    again, same = answer.of(CONFIG, none)
    assert again == config_ext(CONFIG, none)
    assert same is body
    assert answer.of(CONFIG, some)[0] == config_ext(CONFIG, some)
    changed = dataclasses.replace(CONFIG, broker_name="other")
    assert answer.of(changed, some) == (config_ext(changed, some), config_body(changed))
