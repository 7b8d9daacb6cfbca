"""Checks of nodes' files: configuration, identity, epochs, stamps; and that those of a group fit together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rmqha.broker.services.live_config import PATH as OVERRIDES_PATH
from rmqha.cli.diagnosis.checks.node_under_test import CONTROLLER_DEFAULT, NodeUnderTest
from rmqha.host.disk import HostDisk
from rmqha.host.net.network import is_own_address
from rmqha.host.read_disk import HostReadDisk
from rmqha.host.text_file import read_text
from rmqha.inspect.epoch_comparison import ReplicaHistory, compare, read_history
from rmqha.inspect.store_inspection import read_or_empty
from rmqha.inspect.timer_inspection import inspect_timers
from rmqha.model.config.servers import BrokerConfig, ServerConfig, parse_properties, unproven_peer_warnings
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.identity import Identity, is_loopback, parse_address
from rmqha.ops.finding import Finding, ok, warn, wrong
from rmqha.ops.guarantee import effective_keys, promise
from rmqha.ops.local.node_kind import NodeKind
from rmqha.store.meta.checkpoint import CHECKPOINT_BYTES, CHECKPOINT_PATH, Checkpoint
from rmqha.store.meta.config_file import unreadable_tables
from rmqha.store.meta.identity_file import IdentityFile

SAME_IN_GROUP = (
    "brokerClusterName",
    "haMode",
    "totalReplicas",
    "mappedFileSizeCommitLog",
    "messageDelayLevel",
    "timerPrecisionMs",
    "flushDiskType",
    "enableControllerMode",
    "controllerAddr",
)
"""Keys that all replicas of a group should agree on."""
FUTURE_MS = 1_000


@dataclass(slots=True)
class StoreFacts:
    """Content of a broker's store as it was read; None where there is nothing."""

    identity: Identity | None = None
    epochs: ReplicaHistory | None = None
    findings: list[Finding] = field(default_factory=list)


# --- configuration ----------------------------------------------------------------------------------------------------
def check_config(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    """Findings on the keys as the server would read them, then on keys that are allowed and dangerous."""
    if node_under_test.problem:
        yield wrong(node_under_test.name, "config", node_under_test.problem, f"edit {node_under_test.source}")
        return
    risks = list(_risks(node_under_test))
    yield from risks
    if not risks:
        yield ok(node_under_test.name, "config", f"{len(node_under_test.properties)} keys, all known, none dangerous")


def _risks(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    given, source, name = node_under_test.properties, node_under_test.source, node_under_test.name
    if node_under_test.broker is not None:
        yield from _broker_risks(node_under_test, node_under_test.broker)
        yield from check_advertised(node_under_test, node_under_test.broker)
        warnings = node_under_test.broker.warnings()
    else:
        yield from _controller_risks(node_under_test)
        shared = {key: value for key, value in given.items() if key in ServerConfig.keys()}  # noqa: SIM118 (a method)
        server = ServerConfig.from_properties(shared, source)
        warnings = server.warnings()
        if _has_controller(node_under_test):
            warnings += unproven_peer_warnings(server, given.get("haSecurity", "auto"))
    for sentence in warnings:
        risk, _, fix = sentence.rpartition("; ")
        yield warn(name, "config", risk, f"{fix} in {source}")


def _broker_risks(node_under_test: NodeUnderTest, config: BrokerConfig) -> Iterator[Finding]:
    name, source = node_under_test.name, node_under_test.source
    keys = effective_keys(node_under_test.properties)
    found = promise(keys, is_static=not config.enable_controller_mode)
    if found.kind == "AP":
        combination = f"haMode={config.ha_mode or '(not set)'} with flushDiskType={config.flush_disk_type}"
        sentence = f"{combination}: {found.losses[0]}; {found.losses[-1]}"
        yield warn(name, "config", sentence, f"haMode=cp in {source} (docs/start/guarantees.md)")
        for note in found.notes:
            if "without effect" in note:
                yield warn(name, "config", note, f"remove the key from {source}")
    elif found.kind == "static":
        yield warn(name, "config", f"a static group: {found.losses[0]}", "rmqha migrate --to controller DIR…")
    if config.enable_controller_mode and config.total_replicas == 1:
        yield warn(name, "config", "totalReplicas=1: what this disk loses is lost", f"totalReplicas=3 in {source}")
    elif found.kind == "CP" and config.total_replicas == 2:
        sentence = "totalReplicas=2: each loss of a replica stops sends until the controllers have confirmed it out"
        yield warn(name, "config", sentence, f"totalReplicas=3 in {source}, and `rmqha join` a third")
    if not config.disk_probe_interval_millis:
        sentence = "diskProbeIntervalMillis=0: a disk that fails or hangs does not move the mastership away"
        yield warn(name, "config", sentence, f"diskProbeIntervalMillis=1000 in {source}")
    if config.transient_store_pool_enable:
        sentence = "transientStorePoolEnable=true: a kill loses messages that nobody waits for (oneway, WAIT=false)"
        yield warn(name, "config", sentence, f"transientStorePoolEnable=false in {source}")
    if config.max_message_size * 2 > config.mapped_file_size_commit_log // 2:
        sentence = f"a log file of {config.mapped_file_size_commit_log} bytes holds few messages of maxMessageSize"
        yield warn(name, "config", sentence, f"a larger mappedFileSizeCommitLog in {source}")


def _has_controller(node_under_test: NodeUnderTest) -> bool:
    """True if the node is a controller, or a name server with one inside."""
    embeds = node_under_test.properties.get("enableControllerInNamesrv") == "true"
    return node_under_test.kind is not NodeKind.NAMESRV or embeds


def _controller_risks(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    given, name, source = node_under_test.properties, node_under_test.name, node_under_test.source
    if not _has_controller(node_under_test):
        return
    peers = [item for item in given.get("controllerDLegerPeers", CONTROLLER_DEFAULT).split(";") if item.strip()]
    if len(peers) == 1:
        yield warn(
            name, "config", "a sole controller: while it is away no group can elect",
            "a cluster file of yours with three controllers, or rmqha quorum add HOST:PORT",
        )  # fmt: skip
    elif len(peers) % 2 == 0:
        sentence = f"{len(peers)} controllers bear no more losses than {len(peers) - 1}"
        yield warn(name, "config", sentence, f"one more or one less in controllerDLegerPeers of {source}")
    if given.get("enableElectUncleanMaster") == "true":
        sentence = "enableElectUncleanMaster=true: if no member of the set lives, one that lacks messages is elected"
        yield warn(name, "config", sentence, f"enableElectUncleanMaster=false in {source}")


def check_advertised(node_under_test: NodeUnderTest, config: BrokerConfig) -> Iterator[Finding]:
    """Findings on brokerIP1 and brokerIP2: they are advertised, so they must lead here (ruling 23). Values that the
    server refuses itself are not checked again."""
    name, source = node_under_test.name, node_under_test.source
    told = {"brokerIP1": config.broker_ip1 or config.listen_address}
    told["brokerIP2"] = config.broker_ip2 or told["brokerIP1"]
    peers = [
        peer
        for key in ("namesrvAddr", "controllerAddr")
        for peer in _addresses(node_under_test.properties.get(key, ""))
    ]
    far = [peer for peer in peers if not is_loopback(peer)]
    for key, host in told.items():
        fix = f"{key}=<this machine's address as others see it> in {source}"
        if is_loopback(host) and far:
            yield wrong(name, "address", f"{key}: {far[0]} is told {host} and cannot reach it", fix)
        elif not is_loopback(host) and is_loopback(config.listen_address):
            listen = f"listenAddress={host} in {source}"
            sentence = f"{key}: others are told {host}, but it listens on {config.listen_address} only"
            yield wrong(name, "address", sentence, listen)
        elif is_own_address(host) is False:
            sentence = f"{key}: {host} is not an address of this machine"
            yield warn(name, "address", f"{sentence}; right only if something forwards to it", fix)


def _addresses(text: str) -> Iterator[str]:
    for item in text.split(";"):
        try:
            yield parse_address(item.strip())[0]
        except ValueError:
            continue  # the server's own reading has said so


# --- store ------------------------------------------------------------------------------------------------------------
def read_store_facts(node_under_test: NodeUnderTest) -> StoreFacts:
    """Identity, epochs, overrides, timers and stamps of a broker's store, each judged."""
    store_facts = StoreFacts()
    if node_under_test.data is None or node_under_test.broker is None:
        return store_facts
    if not node_under_test.data.is_dir():
        store_facts.findings.append(
            ok(node_under_test.name, "store", f"{node_under_test.data} is made at the first start")
        )
        return store_facts
    for step in (_identity, _epochs, _stamps, _tables, _timers, _overrides, _kept):
        store_facts.findings += step(node_under_test, store_facts)
    return store_facts


def _identity(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    name, config = node_under_test.name, node_under_test.broker
    assert config is not None
    try:
        store_facts.identity = found = IdentityFile(HostDisk(str(node_under_test.data))).read()
    except RmqhaError as error:
        yield wrong(
            name, "identity", str(error), "restore brokerIdentity from a backup, or empty the store and rmqha join"
        )
        return
    if found is None:
        yield ok(name, "identity", "no brokerIdentity yet: the controllers give an id at the first start")
    elif (found.cluster_name, found.broker_name) != (config.broker_cluster_name, config.broker_name):
        belongs = f"{node_under_test.data} belongs to {found.broker_name} of cluster {found.cluster_name}"
        sentence = f"{belongs}, not to {config.broker_name} of {config.broker_cluster_name}"
        yield wrong(
            name, "identity", sentence, f"set storePathRootDir to another directory in {node_under_test.source}"
        )
    else:
        yield ok(name, "identity", f"id {found.broker_id} of {found.broker_name}")


def _epochs(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    name, place = node_under_test.name, node_under_test.data
    try:
        store_facts.epochs = found = read_history(HostReadDisk(str(place)))
    except UsageError as error:
        yield warn(name, "epochs", f"no log to hold the epochs against: {error}", f"ls {place}")
        return
    except (RmqhaError, OSError) as error:
        yield wrong(name, "epochs", str(error), f"rmqha fsck {place}")
        return
    for note in found.notes:
        yield wrong(name, "epochs", note, f"rmqha fsck {place}")
    if not found.notes:
        last = found.history.last
        words = "no epoch yet" if last is None else f"epoch {last.epoch} from offset {last.start_offset}"
        yield ok(name, "epochs", f"{words}, the log ends at {found.end_offset}")


def _timers(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    """Findings on the files of timer messages: Apache's broker uses all of them, ours its own progress."""
    from rmqha.host.clock import HostClock

    name, place = node_under_test.name, node_under_test.data
    try:
        found = inspect_timers(HostReadDisk(str(place)))
    except RmqhaError as error:
        yield wrong(name, "timers", str(error), f"rmqha fsck {place}")
        return
    if found is None:
        return
    if found.problem:
        yield warn(name, "timers", found.problem, f"rmqha fsck {place}")
    if found.change:
        advice = "ours delivers each at its time; before Apache's broker opens the store, let them come or set it back"
        yield warn(name, "timers", found.change, advice)
    ahead_ms = found.read_ms - HostClock().wall_ms()
    if ahead_ms > FUTURE_MS:
        sentence = f"timer messages are delivered up to a time that is {ahead_ms / 1000:.0f} s ahead of this clock"
        yield warn(name, "timers", sentence, "set the clock of this machine; what is sent meanwhile comes at its time")
    elif not found.problem and not found.change:
        yield ok(name, "timers", f"what was due is delivered; all from entry {found.queue_offset} of the queue on wait")


def _stamps(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    from rmqha.host.clock import HostClock

    data = read_or_empty(HostReadDisk(str(node_under_test.data)), CHECKPOINT_PATH, CHECKPOINT_BYTES)
    try:
        stored_ms = Checkpoint.decode(data.ljust(CHECKPOINT_BYTES, b"\0")).physic_msg_timestamp_ms
    except ValueError:
        yield wrong(
            node_under_test.name,
            "checkpoint",
            "the checkpoint holds a negative number",
            f"rmqha fsck {node_under_test.data}",
        )
        return
    ahead_ms = stored_ms - HostClock().wall_ms()
    if ahead_ms > FUTURE_MS:
        sentence = f"its newest message is stamped {ahead_ms // 1000} s in the future: the clock has been set back"
        yield warn(node_under_test.name, "clock", f"{sentence}; new ones get that stamp too until then", "timedatectl")


def _tables(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    for sentence in unreadable_tables(HostReadDisk(str(node_under_test.data))):
        yield warn(node_under_test.name, "tables", sentence, f"rmqha fsck --repair {node_under_test.data}")


def _overrides(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    """Findings on keys that were set while the broker ran: they win over its file, which is easily forgotten."""
    assert node_under_test.data is not None
    path = node_under_test.data / OVERRIDES_PATH
    if not path.exists():
        return
    try:
        given = parse_properties(read_text(path, "the changed keys"), str(path))
    except RmqhaError as error:
        yield wrong(node_under_test.name, "overrides", str(error), f"mend or remove {path}")
        return
    live, ignored = BrokerConfig.live_part(given)
    if ignored:
        sentence = f"{path} has keys that need a restart, which do not count there: {', '.join(ignored)}"
        yield warn(node_under_test.name, "overrides", sentence, f"take them out of {path}")
    for key, value in sorted(live.items()):
        said = node_under_test.properties.get(key)
        if said is not None and said != value:
            sentence = f"{key}={said} in {node_under_test.source} is without effect: {value} was set while it ran"
            yield warn(
                node_under_test.name, "overrides", sentence, f"write {key}={value} there, or take it out of {path}"
            )


def _kept(node_under_test: NodeUnderTest, store_facts: StoreFacts) -> Iterator[Finding]:
    """Findings about files that no broker removes by itself."""
    from rmqha.ops.diagnosis.quarantine import find, summary

    assert node_under_test.data is not None
    try:
        found = find(node_under_test.data)
    except OSError as error:
        sentence = f"{error.filename or node_under_test.data} cannot be read: {error.strerror or error}"
        yield wrong(node_under_test.name, "kept", sentence, f"give its user {os.geteuid()} the right to read it")
        return
    if found:
        sentence = f"{summary(found)} put aside, which nobody removes: {', '.join(item.name for item in found)}"
        fix = f"rmqha log kept {node_under_test.data}, and when nobody needs them add --remove --older-than 7d"
        yield warn(node_under_test.name, "kept", sentence, fix)


# --- groups -----------------------------------------------------------------------------------------------------------
def check_groups(nodes: Sequence[NodeUnderTest], store_facts: Mapping[str, StoreFacts]) -> Iterator[Finding]:
    """Compare the replicas of each group with each other."""
    yield from _accounts(nodes)
    groups: dict[str, list[NodeUnderTest]] = {}
    for node_under_test in nodes:
        if node_under_test.broker is not None:
            groups.setdefault(node_under_test.broker.broker_name, []).append(node_under_test)
    for name, members in groups.items():
        if len(members) > 1:
            yield from _same_keys(name, members)
            yield from _same_ids(name, members, store_facts)
            yield from _histories(name, members, store_facts)


def _accounts(nodes: Sequence[NodeUnderTest]) -> Iterator[Finding]:
    """Check that, where brokers serve accounts only, the servers that ask them need one: without it nobody can be
    elected."""
    guarded = [
        node_under_test.name
        for node_under_test in nodes
        if node_under_test.broker is not None and node_under_test.broker.acl_enable
    ]
    for node_under_test in nodes if guarded else ():
        asks = node_under_test.broker is not None or bool(node_under_test.controller_address)
        if asks and not node_under_test.problem and not node_under_test.properties.get("credentialsFile"):
            sentence = f"aclEnable=true on {guarded[0]}, and this server has no account there: its requests are refused"
            fix = f"credentialsFile=FILE with accessKey and secretKey of an admin, in {node_under_test.source}"
            yield wrong(node_under_test.name, "accounts", sentence, fix)


def _same_keys(name: str, members: Sequence[NodeUnderTest]) -> Iterator[Finding]:
    differing = []
    for key in SAME_IN_GROUP:
        values = {member.name: member.broker.to_properties()[key] for member in members if member.broker}
        if len({*values.values()}) > 1:
            differing.append(key)
            told = ", ".join(f"{member} {value}" for member, value in values.items())
            yield wrong(name, "config", f"its replicas differ in {key}: {told}", f"give {key} one value and restart")
    if not differing:
        yield ok(name, "config", f"{len(members)} replicas agree on the keys of the group")


def _same_ids(name: str, members: Sequence[NodeUnderTest], store_facts: Mapping[str, StoreFacts]) -> Iterator[Finding]:
    seen: dict[int, NodeUnderTest] = {}
    for member in members:
        found = store_facts[member.name].identity
        if found is None:
            continue
        other = seen.setdefault(found.broker_id, member)
        if other is not member:
            sentence = (
                f"{other.name} and {member.name} both hold id {found.broker_id}: one store is a copy of the other"
            )
            yield wrong(name, "identity", sentence, f"empty {member.data}, then rmqha start {member.name}")


def _histories(name: str, members: Sequence[NodeUnderTest], store_facts: Mapping[str, StoreFacts]) -> Iterator[Finding]:
    """Findings on stopped replicas whose histories part from that of the one that an election would take."""
    stopped = [
        (member, history) for member in members if not member.running and (history := store_facts[member.name].epochs)
    ]
    stopped.sort(key=lambda item: item[1].seniority, reverse=True)
    if len(stopped) < len(members):
        return
    newest, best = stopped[0]
    for member, history in stopped[1:]:
        found = compare(best, history).b_follows_a
        if found.loses:
            cut = "bytes" if found.cut_bytes is None else f"{found.cut_bytes:,} bytes"
            sentence = f"its log has parted from that of {newest.name}: following it cuts {cut}"
            yield warn(member.name, "epochs", sentence, f"rmqha epochs diff {newest.data} {member.data}")
    if all(a[1].seniority == b[1].seniority for a, b in pairwise(stopped)):
        yield ok(name, "epochs", f"{len(stopped)} replicas end at the same offset")
