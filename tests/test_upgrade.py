"""What an earlier release left on a disk and said on a wire is read by this one (ruling 21).

tests/golden/upgrade-<release> comes from that release's tools/upgrade_states.py and is never changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from controller.quorum.raft_log import DurableRaftLog
from controller.server import read_config as read_controller_config
from controller.state.image import encode_image
from rmqha.cli.local.broker import read_config as read_broker_config
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.finding import FindingKind
from rmqha.inspect.fsck import check
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.message import decode_properties
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.store.log.record import decode
from rmqha.wire import lenient_json
from rmqha.wire.command import Command
from rmqha.wire.raft_message import HardState
from tests.broker.support import Broker
from tests.controller.harness import Cluster, Prng
from tests.golden.reader import GOLDEN, unpack
from tests.support.tracer import RecordingTracer
from tools.upgrade_states import kept, parsed, said, said_by

RELEASES = sorted(path.name.removeprefix("upgrade-") for path in GOLDEN.glob("upgrade-*"))
ANSWERED_AT_ONCE = (1012, 1003, 904, 1004, 52003, 52010)
"""Requests to controllers that an old broker or command may send whenever it likes, in an order that makes sense."""
KNOWN = {"0.1": {FindingKind.CONFIG_KEYS}}
"""Findings that a sound store of that release has: its tables had keys that Apache's broker cannot pass over."""
OF_A_MASTER = {"masterBrokerId", "masterAddress", "masterHaAddress"}
"""Left out of answers while a group has none."""


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@cache
def manifest(release: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / f"upgrade-{release}/manifest.json").read_text())
    return value


@cache
def exchanges(release: str, stream: str) -> list[dict[str, Any]]:
    lines = (GOLDEN / f"upgrade-{release}/wire.jsonl").read_text().splitlines()
    return [item for item in map(json.loads, lines) if item["stream"] == stream]


@pytest.fixture
def directory(release: str, tmp_path: Path) -> Path:
    """The cluster's directory, in a machine that has booted since."""
    return unpack(f"upgrade-{release}/states", tmp_path)


# --- brokers ----------------------------------------------------------------------------------------------------------
def opened(directory: Path, name: str, **keys: Any) -> Broker:
    """The broker `name` with the keys that its own file gives; `keys` overrule them."""
    config = asdict(read_broker_config(directory / name / "node.conf"))
    return Broker(directory / name / "store", **(config | keys))


def pulled(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """What consumers get of a topic, as the manifest writes it."""
    found = []
    for queue_id in broker.store.queues()[topic]:
        offset, end = broker.store.queue_range(topic, queue_id)
        while offset < end:
            result = broker.store.pull(topic, queue_id, offset, 32, 1 << 20)
            assert result.status is ResponseCode.SUCCESS, result.remark
            for record in map(decode, result.records):
                properties = decode_properties(record.properties)
                found.append(
                    {
                        "topic": topic,
                        "queueId": queue_id,
                        "queueOffset": record.queue_offset,
                        "phyOffset": record.phy_offset,
                        "storedAtMs": record.store_timestamp_ms,
                        "keys": properties["KEYS"],
                        "tags": properties["TAGS"],
                        "body": said(record.body),
                    }
                )
            offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("name", ["broker-a-1", "broker-a-2", "broker-a-3"])
def test_a_broker_opens_its_store(release: str, directory: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in order or killed: every message by queue, offset and key, epochs, tables, identity, how it stopped."""
    told, killed = manifest(release), name == manifest(release)["killed"]
    monkeypatch.setattr(HostDisk, "boot_id", lambda self: "of another boot")
    if not killed:
        assert {found.kind for found in check(HostReadDisk(directory / name / "store")).faults} <= KNOWN[release]
    broker = opened(directory, name)
    try:
        store = broker.store
        assert store.unclean == killed, "the machine of one that was killed may have lost power"
        messages = told["messages"][: told["messagesOfTheKilled"]] if killed else told["messages"]
        found = [*pulled(broker, "Orders"), *pulled(broker, "Batches")]
        found.sort(key=lambda item: item["phyOffset"])
        visible = messages[: len(found)] if killed else messages
        assert found == visible, "what a killed one had not noted as committed waits for its group"
        for item in messages:
            record = store.record_at(item["phyOffset"])
            assert record is not None and said(decode(record).body) == item["body"]
        assert len(messages) > 80
        for item in visible[::7]:
            (hit,) = store.index.query(item["topic"], item["keys"]).records
            assert decode(hit).phy_offset == item["phyOffset"]
        epochs = [(item["epoch"], item["startOffset"]) for item in told["epochs"]]
        wanted = epochs[:-1] if killed else epochs
        assert [(item.epoch, item.start_offset) for item in store.epochs] == wanted
        assert store.highest_epoch == wanted[-1][0]
        assert store.batch_topics == {"Batches"}
        orders = broker.core.topics.get("Orders")
        assert orders is not None and orders.read_queue_count == 3
        assert broker.core.groups.get("upgrade-readers") is not None
        committed = {row["queue"]: row["committed"] for row in told["progress"]}
        for queue_id, offset in committed.items():
            assert (broker.core.offsets.query("upgrade-readers", "Orders", queue_id) or 0) == offset
        known = broker.core.driver.state().to_json()
        assert known["brokerId"] == told["brokerIds"][name]
    finally:
        broker.close()


def test_old_consumers_get_the_same_bytes(release: str, directory: Path) -> None:
    """The pulls that consumers of the old release sent, answered from the old store by this release."""
    broker = opened(directory, manifest(release)["master"], total_replicas=1, ha_mode="ap", in_sync_replicas=1)
    try:
        broker.controller.epoch = manifest(release)["group"]["masterEpoch"] + 1
        broker.start()
        compared = 0
        for exchange in exchanges(release, "remoting"):
            if exchange["request"]["code"] == RequestCode.PULL_MESSAGE and (exchange["answer"] or {}).get("code") == 0:
                request, answer = (parsed(base64.b64decode(frame)) for frame in exchange["raw"])
                ours = broker.ask(request)
                assert ours.code == 0 and bytes(ours.body).startswith(bytes(answer.body)), "there may be more by now"
                assert answer.ext.keys() <= ours.ext.keys()
                compared += len(answer.body)
        assert compared > 10_000
    finally:
        broker.close()


# --- controllers ------------------------------------------------------------------------------------------------------
def restored(directory: Path) -> Cluster:
    """The three controllers on what their disks hold; the harness stands for the network."""
    cluster = Cluster(3)
    for number, node in enumerate(cluster.nodes.values(), 1):
        place = directory / f"ctl-{number}"
        node.config = read_controller_config(str(place / "node.conf"))
        assert node.config.controller_dleger_self_id == node.node_id
        log = DurableRaftLog(HostDisk(place / "controller"), node.node_id, RecordingTracer(), Prng(1))
        log.close()
        assert log.recovery_lines == [] and log.stored.snapshot is not None and log.stored.entries
        node.incarnation = log.identity.partition("#")[2]
        node.hard_state = HardState(log.stored.term, log.stored.voted_for)
        node.snapshot, node.entries = log.stored.snapshot, list(log.stored.entries)
    for node in cluster.nodes.values():
        node.start()
    cluster.run(5000, until=cluster.has_leader)
    return cluster


def test_controllers_know_their_group(release: str, directory: Path) -> None:
    """From a snapshot and what follows it; all three agree on a leader and on the group."""
    cluster = restored(directory)
    told = json.loads(bytes(cluster.call(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": "broker-a"}).body))
    assert kept(told) == manifest(release)["group"]
    cluster.run(1000)
    assert len({encode_image(node.machine.info) for node in cluster.nodes.values()}) == 1


def test_old_requests_are_answered_with_all_that_old_askers_read(release: str, directory: Path) -> None:
    """Controllers of this release, brokers and commands of the old one: no field that those were given is missing."""
    cluster = restored(directory)
    by_code = {
        exchange["request"]["code"]: exchange
        for exchange in reversed(exchanges(release, "remoting"))
        if exchange["answer"] is not None
        and exchange["answer"]["code"] == 0
        # name servers have a 904 of their own, which says less
        and (exchange["request"]["code"] != 904 or "epoch" in exchange["request"]["ext"])
    }
    for code in ANSWERED_AT_ONCE:
        request, answer = (parsed(base64.b64decode(frame)) for frame in by_code[code]["raw"])
        token = cluster.send(Command(code, dict(request.ext), request.body), session_id=1)
        cluster.run(2000, until=lambda token=token: token in cluster.replies)  # type: ignore[misc]
        ours = cluster.replies[token]
        assert (ours.code, ours.remark) == (0, None), code
        assert answer.ext.keys() - OF_A_MASTER <= ours.ext.keys(), code
        if answer.body:
            assert list(missing(lenient_json.loads(bytes(answer.body)), lenient_json.loads(bytes(ours.body)))) == []


def missing(old: Any, new: Any) -> Iterator[str]:
    """Members that an old answer has and a new one lacks, in whatever the new one has at that place."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (str(name) for name in old.keys() - new.keys())
        for name in old.keys() & new.keys():
            yield from missing(old[name], new[name])
    elif isinstance(old, list) and isinstance(new, list) and old and new:
        yield from missing(old[0], new[0])


def test_a_missing_member_is_seen() -> None:
    assert list(missing({"a": [{"b": 1, "c": 2}], "d": None}, {"a": [{"c": 3}], "d": {}, "e": 1})) == ["b"]


# --- wire -------------------------------------------------------------------------------------------------------------
def test_every_frame_says_what_it_said(release: str) -> None:
    """Requests, answers and Raft messages between nodes of the old release, both directions of the HA stream."""
    codes = set()
    for exchange in exchanges(release, "remoting"):
        frames = [base64.b64decode(frame) for frame in exchange["raw"] if frame is not None]
        heard = [said(parsed(frame)) for frame in frames]
        assert heard == [item for item in (exchange["request"], exchange["answer"]) if item is not None]
        codes.add(exchange["request"]["code"])
    assert {103, 310, 904, 1001, 1003, 1008, 52002, 52012, 52013, 52030} <= codes
    streams = {item["direction"]: item for item in exchanges(release, "ha")}
    for direction, stream in streams.items():
        assert said_by(direction, base64.b64decode(stream["raw"])) == stream["said"]
    assert streams.keys() == {"slave", "master"}


# --- the cluster's record ---------------------------------------------------------------------------------------------
def test_commands_find_the_cluster(release: str, directory: Path) -> None:
    state = ClusterState.read(directory)
    assert state is not None and (state.name, state.ha_mode, state.groups) == ("drill", "cp", ["broker-a"])
    assert [node.name for node in state.brokers] == ["broker-a-1", "broker-a-2", "broker-a-3"]
    assert len(state.controller_addresses) == 3 and state.namesrv_addresses
    addresses = {item["address"] for item in manifest(release)["group"]["replicas"]}
    assert {node.address for node in state.brokers} == addresses
