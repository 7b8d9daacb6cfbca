"""The cluster file: what it expands to, and that every slip in it is one sentence naming file and key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import controller.server
import nameserver.config
from rmqha.model.config.servers import BrokerConfig, parse_properties
from rmqha.model.error import ConfigError, UsageError
from rmqha.ops.local.cluster_file import ClusterSpec, counted_from_zero, load, parse, promise, properties_text
from rmqha.ops.local.node_kind import NodeKind

CONF = Path(__file__).parents[3] / "conf"
GROUP = '[[group]]\nname = "broker-a"\n'


def spec(text: str, **overrules: Any) -> ClusterSpec:
    return parse("my.toml", tomllib.loads(text), **overrules)


def broker_config(found: ClusterSpec, name: str) -> BrokerConfig:
    text = properties_text(found, found.node(name))
    return BrokerConfig.from_properties(parse_properties(text, name), name)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_shipped_cluster_files_are_right(path: Path) -> None:
    found = load(path)
    assert found.groups
    for node in found.nodes:
        if node.kind is NodeKind.BROKER:
            assert broker_config(found, node.name).mapped_file_size_commit_log == 64 * 1024 * 1024
    assert found.name in str(found.directory)


def test_shipped_broker_file_is_right() -> None:
    path = CONF / "broker.conf"
    config = BrokerConfig.from_properties(parse_properties(path.read_text(), str(path)), str(path))
    assert (config.ha_mode, config.total_replicas, config.listen_port) == ("cp", 3, 10911)


def test_shipped_server_files_are_right() -> None:
    namesrv, embedded = nameserver.config.read_config(str(CONF / "namesrv.conf"))
    assert namesrv.listen_port == 9876
    assert embedded is not None
    assert dict(embedded.peers) == {"n0": "127.0.0.1:9878"}
    assert len(controller.server.read_config(str(CONF / "controller.conf")).peers) == 3


def test_quickstart_is_one_name_server_with_controller_and_three_brokers() -> None:
    found = load(CONF / "quickstart.toml")
    assert [(node.name, node.kind.value, node.address) for node in found.nodes] == [
        ("ns-1", "namesrv", "127.0.0.1:9876"),
        ("broker-a-1", "broker", "127.0.0.1:10911"),
        ("broker-a-2", "broker", "127.0.0.1:10921"),
        ("broker-a-3", "broker", "127.0.0.1:10931"),
    ]
    server = found.node("ns-1")
    assert server.embeds_controller
    assert server.properties["controllerDLegerPeers"] == "n1-127.0.0.1:9878"
    config = broker_config(found, "broker-a-2")
    assert config.broker_id == 2, "the controllers give a node the id that its name says"
    assert config.controller_addr == "127.0.0.1:9878"
    assert config.store_path_root_dir == str(Path("rmqha-data/quickstart/broker-a-2/store").absolute())
    assert (config.broker_role, config.all_ack_in_sync_state_set) == ("SYNC_MASTER", True)


def test_controllers_of_their_own_know_each_other_and_themselves() -> None:
    found = load(CONF / "three-controllers.toml")
    peers = "n1-127.0.0.1:9878;n2-127.0.0.1:9879;n3-127.0.0.1:9880"
    for number in range(3):
        properties = found.node(f"ctl-{number + 1}").properties
        assert properties["controllerDLegerPeers"] == peers
        assert properties["controllerDLegerSelfId"] == f"n{number + 1}"
    kept = counted_from_zero(found.node("ctl-2")).properties
    assert kept["controllerDLegerPeers"] == "n0-127.0.0.1:9878;n1-127.0.0.1:9879;n2-127.0.0.1:9880"
    assert kept["controllerDLegerSelfId"] == "n1"
    assert counted_from_zero(found.node("broker-a-1")) == found.node("broker-a-1")
    assert not found.node("ns-1").embeds_controller
    assert found.namesrv_addresses == "127.0.0.1:9876;127.0.0.1:9877"


def test_mode_and_directory_of_the_command_line_win() -> None:
    found = spec('[cluster]\nname = "c"\nhaMode = "cp"\n' + GROUP, ha_mode="ap", directory=Path("/nowhere/else"))
    assert broker_config(found, "broker-a-1").broker_role == "ASYNC_MASTER"
    assert broker_config(found, "broker-a-1").store_path_root_dir == "/nowhere/else/broker-a-1/store"


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (1, "one replica is all there is"),
        (2, "at least 2 of 2 replicas"),
        (3, "1 replica of 3 gone for good, or without power: nothing"),
        (5, "2 replicas of 5 gone for good, or without power: nothing"),
    ],
)
def test_cp_says_its_guarantee_in_words(replicas: int, words: str) -> None:
    assert words in promise(spec(GROUP + f"replicas = {replicas}\n"))


def test_cp_says_what_a_power_loss_of_all_takes() -> None:
    assert "ASYNC_FLUSH" in promise(spec(GROUP))
    synced = promise(spec(GROUP + '[broker]\nflushDiskType = "SYNC_FLUSH"\n'))
    assert "all replicas lose power at once: nothing acknowledged is lost" in synced


def test_ap_says_what_is_lost() -> None:
    assert "not yet copied is lost" in promise(spec('[cluster]\nhaMode = "ap"\n' + GROUP))


def test_ap_goes_by_the_plain_keys_of_the_file() -> None:
    keys = '[broker]\nbrokerRole = "SYNC_MASTER"\ninSyncReplicas = 2\n'
    told = promise(spec('[cluster]\nhaMode = "ap"\n' + GROUP + "replicas = 3\n" + keys))
    assert told.startswith("haMode=ap: brokerRole=SYNC_MASTER allAckInSyncStateSet=false; ")
    assert "when 2 of the set's replicas have it" in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clutser]\n" + GROUP, "unknown section clutser; the nearest known one is cluster"),
        ('[cluster]\nhamode = "cp"\n' + GROUP, "unknown key in [cluster]: hamode; the nearest known one is haMode"),
        (GROUP + "[broker]\nflushDiskTyp = 1\n", "flushDiskTyp; the nearest known one is flushDiskType"),
        (GROUP + "replica = 3\n", "unknown key in [[group]]: replica; the nearest known one is replicas"),
        ('[cluster]\nhaMode = "pc"\n' + GROUP, "haMode = 'pc' must be ap or cp"),
        ('[cluster]\nname = "../up"\n' + GROUP, "must be letters, digits"),
        (GROUP + 'replicas = "3"\n', "replicas = '3' must be a whole number"),
        (GROUP + "replicas = true\n", "replicas = True must be a whole number"),
        (GROUP + "replicas = 0\n", "replicas = 0 must lie between 1 and 9"),
        (GROUP + "listenPort = 65530\nreplicas = 3\n", "the last replica's listenPort = 65550"),
        (GROUP + GROUP, "'broker-a' is given twice"),
        ('[[group]]\nname = "ns"\n', "is how name servers or controllers are called"),
        ("[[group]]\nreplicas = 3\n", "a [[group]] has no name"),
        ('[group]\nname = "a"\n', "must be given as [[group]]"),
        ("[cluster]\n", "there is no [[group]]"),
        (GROUP + "[controllers]\ncount = 3\n", "[controllers] count contradicts [namesrv] embedController"),
        (GROUP + "[namesrv]\nembedController = false\n", "needs a section [controllers]"),
        (GROUP + "[broker]\nlistenPort = 1\n", "[broker] listenPort is set by [[group]] listenPort"),
        (GROUP + '[broker]\nbrokerRole = "ASYNC_MASTER"\n', "brokerRole = ASYNC_MASTER contradicts haMode = cp"),
        (GROUP + "[broker]\nenableAutoInSyncReplicas = true\n", "enableAutoInSyncReplicas contradicts haMode=cp"),
        (GROUP + "[broker]\nslaveTimeout = 'soon'\n", "slaveTimeout = 'soon' must be a whole number"),
        (GROUP + "[broker]\nslaveTimeout = [1]\n", "must be a text, a whole number, or true or false"),
        (GROUP + "portStep = 1\nreplicas = 2\n", "would both bind port 10912"),
        (
            GROUP + '[[group]]\nname = "b"\nlistenPort = 10921\n' + GROUP.replace("-a", "-c"),
            "would both bind port 10911",
        ),
        ('[[group]]\nname = "a"\nreplicas = 1\n[[group]]\nname = "a-1"\nlistenPort = 11911\n', None),
    ],
)
def test_slips_are_named(text: str, words: str | None) -> None:
    if words is None:
        assert [node.name for node in spec(text).nodes] == ["ns-1", "a-1", "a-1-1"]
        return
    with pytest.raises(ConfigError) as raised:
        spec(text)
    sentence = str(raised.value)
    assert sentence.startswith("my.toml: ")
    assert words in sentence
    assert "\n" not in sentence


def test_security_counts_for_every_server_and_names_files_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        GROUP + '[security]\naclEnable = true\naclFile = "acl.yml"\ntls.enable = true\ntls.server.mode = "disabled"\n'
    )
    for node in spec(text).nodes:
        assert node.properties["aclEnable"] == node.properties["tls.enable"] == "true"
        assert node.properties["aclFile"] == str(tmp_path / "acl.yml")
        assert node.properties["tls.server.mode"] == "disabled"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('aclFiel = "x"', "unknown key in [security]: aclFiel; the nearest known one is aclFile"),
        ("tls.enabel = true", "unknown key in [security]: tls.enabel; the nearest known one is tls.enable"),
        ("aclFile = 3", "[security] aclFile = 3 must be a text, or true or false"),
        ('tls.server.mode = "on"', "tls.server.mode"),
    ],
)
def test_slips_in_security_are_named(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as slip:
        parse("f", tomllib.loads(f"{GROUP}[security]\n{line}\n"))
    assert words in str(slip.value)


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the cluster file"):
        load(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("name = \n")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(bad)
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        load(bad)
    for text, reason in (("a = " + "[" * 100_000, "nested too deeply"), ("a = " + "9" * 5000, "is not TOML")):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            load(bad)
    with pytest.raises(UsageError, match="it is a device"):
        load(Path("/dev/zero"))


def test_a_static_group_has_a_fixed_master_and_needs_no_controller() -> None:
    found = load(CONF / "static.toml")
    assert [node.name for node in found.nodes] == ["ns-1", "broker-a-1", "broker-a-2"]
    assert found.controller_addresses == ""
    master, slave = (broker_config(found, name) for name in ("broker-a-1", "broker-a-2"))
    assert not master.enable_controller_mode and not slave.enable_controller_mode
    assert (master.broker_role, master.static_broker_id) == ("SYNC_MASTER", 0)
    assert (slave.broker_role, slave.static_broker_id) == ("SLAVE", 1)
    assert "broker-a is static: broker-a-1 is its master for good" in promise(found)


def test_a_static_group_contradicts_cp() -> None:
    with pytest.raises(ConfigError, match="static = true cannot promise haMode = cp"):
        spec(GROUP + "static = true\n")


def test_static_and_elected_groups_stand_side_by_side() -> None:
    text = '[cluster]\nhaMode = "ap"\n' + GROUP + 'static = true\n[[group]]\nname = "broker-b"\nlistenPort = 20911\n'
    found = spec(text)
    assert not broker_config(found, "broker-a-1").enable_controller_mode
    assert broker_config(found, "broker-b-1").controller_addr == "127.0.0.1:9878"
    assert promise(found).startswith("haMode=ap") and "broker-a is static" in promise(found)
    with pytest.raises(ConfigError, match="needs a section"):
        spec(text + "[namesrv]\nembedController = false\n")


QUICK: dict[str, Any] = {"group": [{"name": "broker-a", "replicas": 3}]}


def test_keys_of_one_node_are_its_own_and_a_learner_is_not_counted() -> None:
    document = QUICK | {"node": {"broker-a-3": {"asyncLearner": True, "brokerZone": "east"}}}
    spec = parse("c.toml", document)
    properties = {node.name: node.properties for node in spec.nodes}
    assert properties["broker-a-3"]["asyncLearner"] == "true"
    assert "brokerZone" not in properties["broker-a-1"]
    assert {own["totalReplicas"] for name, own in properties.items() if name.startswith("broker")} == {"2"}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"broker-a-9": {}}, r"unknown broker in \[node.NAME\]: broker-a-9"),
        ({"broker-a-1": {"brokerZon": "x"}}, "the nearest known one is brokerZone"),
        ({"broker-a-1": {"listenPort": 5}}, r"\[node.broker-a-1\] listenPort is set by"),
        ({"broker-a-1": {"brokerRole": "ASYNC_MASTER"}}, "contradicts haMode = cp"),
        ({"broker-a-1": 5}, "must be a table"),
    ],
)
def test_slips_in_the_keys_of_one_node_are_named(node: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse("c.toml", QUICK | {"node": node})


def test_each_node_has_an_http_port_that_a_new_replica_does_not_move() -> None:
    text = "[cluster]\nhttpPort = 9900\n[controllers]\ncount = 2\n[namesrv]\nembedController = false\n"
    groups = '[[group]]\nname = "a"\nreplicas = {}\n[[group]]\nname = "b-2"\nreplicas = 1\nlistenPort = 12911\n'
    small, large = (spec(text + groups.format(replicas)) for replicas in (1, 2))
    ports = {node.name: node.properties["httpPort"] for node in large.nodes}
    assert ports == {"ns-1": "9900", "ctl-1": "9910", "ctl-2": "9911", "a-1": "9920", "a-2": "9921", "b-2-1": "9930"}
    assert {node.name: node.properties["httpPort"] for node in small.nodes}.items() <= ports.items()
    assert broker_config(large, "a-2").http_port == 9921
    assert "httpPort" not in spec(GROUP).node("broker-a-1").properties


def test_an_http_port_that_another_node_needs_is_named() -> None:
    with pytest.raises(ConfigError, match=r"broker-a-2 and ns-1 would both bind port 10921; change \[\[group\]\]"):
        spec("[cluster]\nhttpPort = 10921\n" + GROUP + "replicas = 2\n")
    with pytest.raises(ConfigError, match=r"broker-a-1 would bind one of its ports .* twice; change \[cluster\]"):
        spec("[cluster]\nhttpPort = 10891\n" + GROUP)
    with pytest.raises(ConfigError, match=r"\[cluster\] httpPort = 65530 must lie between 1 and"):
        spec("[cluster]\nhttpPort = 65530\n" + GROUP)
