from __future__ import annotations

import pytest

from controller.config import ControllerConfig
from rmqha.model.error import ConfigError

GOOD = {
    "controllerDLegerGroup": "group1",
    "controllerDLegerPeers": "n1-127.0.0.1:9879;n0-127.0.0.1:9878;",
    "controllerDLegerSelfId": "n1",
    "listenAddress": "0.0.0.0",
}


def test_peers_and_addresses() -> None:
    config = ControllerConfig.from_properties(GOOD, "f")
    assert config.peers == {"n0": "127.0.0.1:9878", "n1": "127.0.0.1:9879"}
    assert (config.self_address, config.bind_address) == ("127.0.0.1:9879", "0.0.0.0:9879")


def test_names_with_dashes_and_ports_are_told_apart() -> None:
    peers = {"controllerDLegerPeers": "c0-my-host.example:9878", "controllerDLegerSelfId": "c0"}
    assert ControllerConfig.from_properties(peers, "f").peers == {"c0": "my-host.example:9878"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"controllerDLegerSelfId": "n9"}, "controllerDLegerSelfId = n9 is not among controllerDLegerPeers (n0, n1)"),
        ({"controllerDLegerPeers": "n0"}, "'n0' is not of the form id-host:port"),
        ({"controllerDLegerPeers": "n1-a:1;n1-b:2"}, "the id n1 is given twice"),
        ({"controllerDLegerPeers": "n1-a:1;n0-a:1"}, "the address a:1 is given twice"),
        ({"controllerDLegerPeers": "n1-a:0;n0-b:1"}, "port 0 is possible only for a sole controller"),
        ({"controllerDLegerPeers": "n1-a:99999"}, "not of the form"),
        ({"controllerStorePth": "x"}, "nearest known key is controllerStorePath"),
        ({"controllerStorePath": ""}, "must name a directory"),
        ({"totalReplicas": "12"}, "totalReplicas = 12 must lie between 0 and 9"),
        ({"electionTimeoutMs": "10"}, "electionTimeoutMs = 10 must lie between"),
        ({"probeTimeoutMs": "soon"}, "must be a whole number"),
        ({"electionPolicy": "priority,rack"}, "electionPolicy: 'rack' must be one of seniority, priority, zone"),
        ({"handOverTimeoutMs": "9000"}, "handOverTimeoutMs = 9000 must lie between 100 and 2500"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(changes: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ControllerConfig.from_properties({**GOOD, **changes}, "my.conf")
    assert str(caught.value).startswith("my.conf: ")
    assert expected in str(caught.value)


def test_the_port_that_the_system_chose_is_filled_in() -> None:
    config = ControllerConfig(controller_dleger_peers="n0-127.0.0.1:0").with_self_port(4711)
    assert config.self_address == "127.0.0.1:4711"


def test_properties_lead_back_to_the_same_configuration() -> None:
    config = ControllerConfig.from_properties(GOOD, "f")
    assert ControllerConfig.from_properties(config.to_properties(), "f") == config
