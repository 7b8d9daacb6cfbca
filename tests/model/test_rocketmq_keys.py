"""RocketMQ's keys: each is taken, without effect or refused, and only a refused one ends a start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from controller.config import ControllerConfig
from nameserver.config import NamesrvConfig, parse_config
from rmqha.cli.main import cli
from rmqha.host.tracer import HostTracer
from rmqha.model.config.rocketmq_keys import RULES
from rmqha.model.config.servers import BrokerConfig, Config, parse_properties
from rmqha.model.error import ConfigError
from tools.configuration_doc import rocketmq_keys, written_keys

KINDS: dict[str, type[Config]] = {"broker": BrokerConfig, "controller": ControllerConfig, "namesrv": NamesrvConfig}
SERVERS = list(KINDS.values())
CONF = Path(__file__).parent.parent / "golden" / "conf"
TUNED = sorted(CONF.glob("*.conf"))
OLDER = "RocketMQ 5.4.0 does not read it either: a key of older releases"


def taken(kind: type[Config]) -> set[str]:
    return {*kind.keys(), *kind.aliases}


@pytest.mark.parametrize("kind", SERVERS)
def test_each_key_of_rocketmq_is_taken_or_has_a_rule(kind: type[Config]) -> None:
    file, rules = kind.file_name, RULES[kind.file_name]
    known = {*rocketmq_keys(file), *written_keys(file)}
    assert len(known) > 50
    assert known <= taken(kind) | rules.keys()
    assert not taken(kind) & rules.keys(), "a key that is taken has no rule"
    rest = {key for key, rule in rules.items() if rule.reason != OLDER} - known
    files = [other.file_name for other in SERVERS]
    everywhere = {key for other in files for key in (*rocketmq_keys(other), *written_keys(other))}
    assert rest <= everywhere, "a rule is about a key that RocketMQ does not have"


def test_the_broker_has_all_keys_of_the_broker_and_the_store() -> None:
    """427 keys: of BrokerConfig, of MessageStoreConfig, and the five of BrokerIdentity, its base; no
    file can set its isBrokerContainer. RocketMQ writes five more: four timer keys that it does not read, and
    inBrokerContainer under another name."""
    lines = [line.split() for line in (CONF.parent / "rocketmq-5.4.0-keys.txt").read_text().splitlines()]
    counts = Counter((kind, len(rest) - 1) for file, kind, *rest in lines if file == "broker.conf")
    read = {kind: counts[kind, 0] for kind in ("BrokerConfig", "MessageStoreConfig", "BrokerIdentity")}
    assert read == {"BrokerConfig": 215, "MessageStoreConfig": 207, "BrokerIdentity": 4}
    written = {kind: counts[kind, 1] for kind in read}
    assert written == {"BrokerConfig": 0, "MessageStoreConfig": 4, "BrokerIdentity": 2}
    assert sum(read.values()) + len({"isBrokerContainer"}) == 427


@pytest.mark.parametrize("server", KINDS)
def test_a_file_that_rocketmq_has_written_starts(server: str) -> None:
    """A server of RocketMQ 5.4.0 writes all its keys into its file when an operator changes one live. A broker's file
    opens the HA port to others, which has to be said."""
    kind, text = KINDS[server], (CONF / "written" / f"{server}.conf").read_text()
    given = parse_properties(text, server)
    if server == "broker":
        with pytest.raises(ConfigError, match="set haSecretFile"):
            kind.from_properties(given, server)
        given["haSecurity"] = "open"
    config = parse_config(text, server)[0] if server == "namesrv" else kind.from_properties(given, server)
    assert {key for key, _ in config.ignored_keys} == given.keys() & RULES[kind.file_name].keys()
    if server != "namesrv":  # there the embedded controller's are left out
        assert len(given) > 40 and given.keys() - RULES[kind.file_name].keys() <= taken(kind)


@pytest.mark.parametrize("path", TUNED, ids=lambda path: path.stem)
def test_a_tuned_file_starts(path: Path) -> None:
    """Written anew after deployments that are public."""
    server = path.stem.partition("-")[0]
    command = cli.get_command(click.Context(cli), server)
    assert command is not None
    shown = CliRunner().invoke(command, ["-c", str(path), "--check"])
    assert shown.exit_code == 0, shown.exception
    kind = KINDS[server]
    told = [line.split(": ")[1] for line in shown.output.splitlines()]
    given = parse_properties(path.read_text(), path.name)
    assert {key for keys in told for key in keys.split(", ")} == given.keys() & RULES[kind.file_name].keys()


def test_there_are_twenty_of_them() -> None:
    assert len(TUNED) == 20


REFUSED = [(kind, key) for kind in SERVERS for key, rule in RULES[kind.file_name].items() if rule.harmless is not None]


@pytest.mark.parametrize(("kind", "key"), REFUSED, ids=lambda item: getattr(item, "__name__", item))
def test_a_refused_key_ends_the_start_unless_it_asks_for_nothing(kind: type[Config], key: str) -> None:
    rule = RULES[kind.file_name][key]
    with pytest.raises(ConfigError, match=f"x.conf: {key} = 'else' is refused: {rule.reason[:20]}"):
        kind.from_properties({key: "else"}, "x.conf")
    for value in rule.harmless or ():
        config = kind.from_properties({key: value}, "x.conf")
        assert config.keys_without_effect() == [(key, "it asks for what is so anyway")]
    if rule.below_root:
        root = {"storePathRootDir": "/data/store/"}
        assert kind.from_properties({**root, key: f"/data/store/{rule.below_root}"}, "x.conf").ignored_keys
        with pytest.raises(ConfigError, match="is refused"):
            kind.from_properties({**root, key: f"/other/{rule.below_root}"}, "x.conf")


def test_the_log_names_what_has_no_effect() -> None:
    config = BrokerConfig.from_properties({"sendMessageThreadPoolNums": "9", "useABSLock": "true"}, "x.conf")
    assert BrokerConfig.from_properties({}, "x.conf") == config, "nothing else follows from them"
    lines: list[str] = []
    tracer = HostTracer.of(config, "broker", write=lines.append)
    tracer.close()
    told = [line for line in lines if "keys_without_effect" in line]
    assert len(told) == 2 and "sendMessageThreadPoolNums" in told[0] and "one thread" in told[1]


def test_a_running_server_says_that_a_key_has_no_effect() -> None:
    with pytest.raises(ConfigError, match=r"^request: sendMessageThreadPoolNums has no effect here: requests are"):
        BrokerConfig().updated({"sendMessageThreadPoolNums": "9"}, "request")


def test_a_controller_in_a_name_server_has_its_keys_too() -> None:
    text = "enableControllerInNamesrv=true\nelectMasterMaxRetryCount=3\nserverWorkerThreads=4\nlistenPort=9876\n"
    config, embedded = parse_config(text, "x.conf")
    assert embedded is not None and len(config.ignored_keys) == 2
    with pytest.raises(ConfigError, match="controllerType = 'jRaft' is refused"):
        parse_config(text + "controllerType=jRaft\n", "x.conf")
    assert parse_config("metricsExporterType=PROM\n", "x.conf")[1] is None


@pytest.mark.parametrize(
    ("given", "ratios"),
    [
        ({"diskMaxUsedSpaceRatio": "88"}, (88, 88, 90)),
        ({"diskMaxUsedSpaceRatio": "95"}, (95, 95, 95)),
        ({"diskSpaceCleanForciblyRatio": "95"}, (75, 95, 95)),
        ({"diskMaxUsedSpaceRatio": "60"}, (60, 85, 90)),
    ],
)
def test_ratios_that_are_not_given_follow_those_that_are(given: dict[str, str], ratios: tuple[int, ...]) -> None:
    found = BrokerConfig.from_properties(given, "x.conf")
    assert ratios == (
        found.disk_max_used_space_ratio,
        found.disk_space_clean_forcibly_ratio,
        found.disk_space_warning_level_ratio,
    )


def test_bind_address_is_the_address_to_listen_at() -> None:
    for kind in (BrokerConfig, ControllerConfig, NamesrvConfig):
        assert kind.from_properties({"bindAddress": "127.0.0.9"}, "x.conf").listen_address == "127.0.0.9"
