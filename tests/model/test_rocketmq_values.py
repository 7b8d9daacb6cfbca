"""What a tool of RocketMQ is told of our servers' keys."""

from __future__ import annotations

import pytest

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig, parse_config
from rmqha.model.config.base import Config
from rmqha.model.config.rocketmq_values import rocketmq_values
from rmqha.model.config.servers import BrokerConfig
from tests.golden.reader import GOLDEN

NO_DEFAULT = {
    "broker.conf": """
        brokerConfigPath dLegerGroup dLegerPeers dLegerSelfId haMasterAddress inBrokerContainer preferredLeaderId
        readOnlyCommitLogStorePaths scanAvailableNameSrv storePathBrokerIdentity storePathCommitLog
        storePathDLedgerCommitLog storePathEpochFile
    """,
    "controller.conf": "processReadEvent",
    "namesrv.conf": "isProcessReadEvent",
}
"""Keys without a default, and setters of another name than their field: seen at Apache's servers (`make interop`)."""
NOT_TOLD = {
    "broker.conf": {"AuthConfig"},
    "controller.conf": {"NettyClientConfig"},
    "namesrv.conf": {"NettyClientConfig"},
}
"""Classes whose keys a server of RocketMQ reads and does not tell."""


def rocketmq_keys(file_name: str) -> set[str]:
    lines = (line.split() for line in (GOLDEN / "rocketmq-5.4.0-keys.txt").read_text().splitlines() if line[0] != "#")
    keys = {key for name, kind, key, *_ in lines if name == file_name and kind not in NOT_TOLD[file_name]}
    return keys - set(NO_DEFAULT[file_name].split())


@pytest.mark.parametrize("kind", [BrokerConfig, ControllerConfig, NamesrvConfig])
def test_every_key_that_rocketmq_tells_and_no_other(kind: type[Config]) -> None:
    assert rocketmq_values(kind(), {}).keys() == rocketmq_keys(kind.file_name)


def test_a_value_is_ours_or_the_files_or_rocketmqs_default() -> None:
    file = {
        "flushIntervalCommitLog": "70",
        "sendMessageThreadPoolNums": "16",
        "bindAddress": "127.0.0.1",
        "authenticationEnabled": "true",
        "dLegerGroup": "g",
        "haMode": "ap",
        "mapedFileSizeCommitLog": "1",
    }
    told = rocketmq_values(BrokerConfig.from_properties(file, "broker.conf"), {"useTLS": "true"})
    assert file.items() - told.items() == {("haMode", "ap")}
    assert (told["useTLS"], told["cleanSwapedMapInterval"]) == ("true", "300000")


def test_a_live_change_is_told() -> None:
    config = BrokerConfig.from_properties({"flushIntervalCommitLog": "70"}, "broker.conf")
    changed, later = config.updated({"flushIntervalCommitLog": "90"}, "request 25")
    assert rocketmq_values(changed, {})["flushIntervalCommitLog"] == "90" and later == ()


@pytest.mark.parametrize("count", [1, 2, 16])
def test_pools_are_as_large_as_rocketmq_makes_them(count: int) -> None:
    told = rocketmq_values(BrokerConfig(), {}, count)
    assert int(told["pullMessageThreadPoolNums"]) == 16 + 2 * count
    assert int(told["endTransactionThreadPoolNums"]) == max(8 + 2 * count, 4 * int(told["sendMessageThreadPoolNums"]))


def test_a_name_server_and_its_controller_tell_the_keys_of_their_file() -> None:
    """As RocketMQ's do: one file is for both."""
    text = "enableControllerInNamesrv=true\ncontrollerDLegerPeers=n0-127.0.0.1:9870\nelectionTimeoutMs=900\n"
    config, controller = parse_config(text, "namesrv.conf")
    assert controller is not None
    told = rocketmq_values(config, {})
    assert told["controllerDLegerPeers"] == "n0-127.0.0.1:9870" and "electionTimeoutMs" not in told
    assert rocketmq_values(controller, {"listenPort": "9870"})["enableControllerInNamesrv"] == "true"
