"""A server that others than this machine may reach says by which key."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.model.config.servers import BrokerConfig, ServerConfig
from rmqha.model.error import ConfigError

SECURE: dict[str, Any] = {
    "listen_address": "10.0.0.1",
    "acl_enable": True,
    "tls_server_cert_path": "server.pem",
    "tls_server_mode": "enforcing",
}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_loopback_warns_of_nothing(host: str) -> None:
    assert ServerConfig(listen_address=host, http_port=1, http_host=host).warnings() == []


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, ""),
        ({"acl_enable": False}, "set aclEnable"),
        ({"tls_server_cert_path": ""}, "set tls.server.certPath"),
        ({"tls_server_mode": "disabled"}, "set tls.server.certPath"),
        ({"tls_server_mode": "permissive"}, "set tls.server.mode=enforcing"),
        ({"http_port": 9900, "http_host": "0.0.0.0"}, "set httpHost"),
        ({"http_host": "0.0.0.0"}, ""),
        ({"listen_address": "mq.example", "acl_enable": False}, "listenAddress = mq.example"),
    ],
)
def test_each_way_in_is_one_sentence_with_its_key(changes: dict[str, Any], key: str) -> None:
    found = ServerConfig(**{**SECURE, **changes}).warnings()
    assert len(found) == (1 if key else 0)
    assert key in "".join(found)


def test_a_broker_also_guards_its_ha_port() -> None:
    keys = {**SECURE, "tls_enable": True, "credentials_file": "tools.yml", "ha_secret_file": "ha.secret"}
    for mode in ("open", "disabled", "permissive"):
        (found,) = BrokerConfig(**keys, ha_security=mode).warnings()
        assert f"haSecurity = {mode}" in found and "port 10912" in found and "messages are lost" in found
    assert BrokerConfig(**keys, ha_security="enforcing").warnings() == []
    assert BrokerConfig(**keys).warnings() == []
    (found,) = BrokerConfig(**{**keys, "tls_enable": False}).warnings()
    assert "in the clear" in found
    assert BrokerConfig().warnings() == [], "nobody copies from the only replica"


@pytest.mark.parametrize(
    "keys",
    [
        {"total_replicas": 3},
        {"total_replicas": 3, "acl_enable": True},
        {"enable_controller_mode": False, "broker_role": "SLAVE", "broker_id": 1},
    ],
)
def test_a_ha_port_that_nobody_guards_is_told_on_loopback_too(keys: dict[str, Any]) -> None:
    (found,) = BrokerConfig(**keys).warnings()
    assert "haSecurity = auto without haSecretFile" in found and "set haSecretFile" in found
    assert BrokerConfig(**keys, ha_secret_file="ha.secret").warnings() == []


def test_a_ha_port_beyond_loopback_needs_the_secret_or_a_word() -> None:
    beyond = {"listenAddress": "0.0.0.0", "brokerIP1": "10.0.0.1"}
    with pytest.raises(ConfigError, match=r"set haSecretFile to a file that all replicas share .* or haSecurity=open"):
        BrokerConfig.from_properties(beyond, "x.conf")
    for more in ({"haSecretFile": "ha.secret"}, {"haSecurity": "open"}, {"haSecurity": "disabled"}):
        assert BrokerConfig.from_properties({**beyond, **more}, "x.conf")
    assert BrokerConfig.from_properties({}, "x.conf").ha_security == "auto"


def test_log_formats_are_two() -> None:
    with pytest.raises(ConfigError, match="logFormat = 'xml' must be text or json"):
        ServerConfig.from_properties({"logFormat": "xml"}, "x.conf")
