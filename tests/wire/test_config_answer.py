"""What a server tells of its keys, and what is made of it."""

from __future__ import annotations

import pytest

from rmqha.model.config import BrokerConfig
from rmqha.model.error import RmqhaError
from rmqha.wire.command import Command
from rmqha.wire.config_answer import FIELD, config_body, config_ext, parse_keys

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
