"""Freezes what this release leaves on a disk and says on a wire, for the tests of later ones (tests/test_upgrade.py).

    python -m tools.upgrade_states tests/golden/upgrade-0.1

runs a real group of three brokers and three controllers in a scratch directory, for half a minute and as root, since it
listens on loopback: topics, messages by key and tag, a batch queue, a delayed message, a consumer group, a switch, a
replica in maintenance, snapshots and events behind them, a master killed with kill -9, the others stopped in order.
Written are `states.tar.zst` (every node's directory but its log), `wire.jsonl` (some frames of each kind) and
`manifest.json` (what clients and servers said of it). Made once for each release, from its tag, and never changed.
"""

from __future__ import annotations

import base64
import importlib.metadata
import io
import json
import signal
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio
import zstandard

from rmqha.client import Admin, Consumer, Producer
from rmqha.drill.cluster import GROUP, Cluster, quickstart
from rmqha.model.code import RequestCode
from rmqha.ops.local.supervisor import send_signal, wait_gone
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from rmqha.wire.ha_stream import MasterStreamParser, SlaveStreamParser
from rmqha.wire.lenient_json import loads
from rmqha.wire.raft_codec import decode_message
from tools.loopback import Loopback, Stream

KEYS: dict[str, str | int | bool] = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 1000,
    "mapperFileSizeBatchConsumeQueue": 460,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "maxMessageSize": 16 * 1024,
}
MAX_FRAME_BYTES = 4 * 1024 * 1024
FRAMES_OF_A_KIND = 2
HA_BYTES = 8 * 1024
LARGE_BYTES = 4 * 1024
WAIT_S = 20
DURABLE = (
    "masterBrokerId", "masterEpoch", "syncStateSet", "syncStateSetEpoch", "eligible", "uncleanIds", "drainedIds",
    "maintenanceIds", "setKnown", "totalReplicas", "nextTotalReplicas", "elections",
)  # fmt: skip
Message = dict[str, Any]


# --- the run ----------------------------------------------------------------------------------------------------------
async def run(scratch: Path) -> tuple[bytes, dict[str, Any], tuple[set[int], set[int]]]:
    """The archive of all directories, what was said of them, the nodes' ports and those among them for replication."""
    document = quickstart("cp", 3, KEYS, controllers=3)
    with Cluster.of(document, scratch, quiet=True) as cluster:
        await cluster.up()
        name_servers = cluster.state.namesrv_addresses
        async with Admin(name_servers) as admin, Producer(name_servers, "upgrade-producer") as producer:
            await admin.create_topic("Orders", queue_count=3)
            await admin.create_topic("Batches", queue_count=1, attributes={"queue.type": "BatchCQ"})
            await _send(producer, 0, 60)
            await _read(name_servers, "upgrade-readers", 25)
            await _switch(cluster, admin)
            await _send(producer, 60, 90)
            await _maintain(cluster, admin, "broker-a-3")
            for address in cluster.state.controller_addresses:
                await admin.ask(address, Command(RequestCode.RMQHA_TAKE_SNAPSHOT))
            await cluster.wait_level()
            killed = await cluster.master()
            broker_ids = {name: state.broker_id for name, state in (await cluster.replica_states()).items()}
            at_kill = await _messages(name_servers)
            await cluster.kill(killed)
            await cluster.master(without=killed)
            await _send(producer, 90, 120)
            messages = await _messages(name_servers)
            await cluster.wait_healthy([name for name in cluster.brokers if name != killed])
            states = await cluster.replica_states([name for name in cluster.brokers if name != killed])
            master = await cluster.master(without=killed)
            manifest = {
                "release": importlib.metadata.version("rmqha"),
                "killed": killed,
                "messagesOfTheKilled": len(at_kill),
                "messages": messages,
                "progress": await admin.progress("upgrade-readers", "Orders"),
                "epochs": (await admin.epochs(cluster.state.node(master).address))["epochList"],
                "brokerIds": broker_ids,
                "master": master,
            }
            _stop(cluster, [*(name for name in states if name != master), master])
            manifest["group"] = await _settled(cluster, admin)
        _stop(cluster, [name for name in cluster.state.nodes if name not in cluster.brokers])
        return _pack(cluster.state.directory), manifest, _ports(cluster)


def _ports(cluster: Cluster) -> tuple[set[int], set[int]]:
    listening = {int(node.address.rpartition(":")[2]): node.is_broker for node in cluster.state.nodes.values()}
    ha = {port + 1 for port, is_broker in listening.items() if is_broker}
    fast = {port - 2 for port, is_broker in listening.items() if is_broker}
    return {*listening, *fast, *ha}, ha


async def _send(producer: Producer, first: int, end: int) -> None:
    for number in range(first, end):
        properties = {"color": "red" if number % 2 else "blue"} | ({"DELAY": "18"} if number % 25 == 7 else {})
        topic = "Batches" if number % 10 == 9 else "Orders"
        body = b"%d|" % number + b"upgrade" * (number * 17 % 150)
        tags = f"tag{number % 4}"
        await producer.send(
            topic, body, keys=f"key-{number}", tags=tags, properties=properties, timeout_ms=20_000, require_ok=True
        )


async def _read(name_servers: str, group: str, count: int) -> None:
    """Read as a member of a group, which commits what it has read when it leaves."""
    async with Consumer(name_servers, group, "Orders", start="first") as consumer:
        for _ in range(count):
            await consumer.receive()


async def _messages(name_servers: str) -> list[Message]:
    """All that consumers can see, in the order of the log."""
    found = []
    for topic in ("Orders", "Batches"):
        async with Consumer(name_servers, "upgrade-look", topic, start="first", standalone=True) as consumer:
            while True:
                with trio.move_on_after(2) as silence:
                    item = await consumer.receive()
                    found.append(
                        {
                            "topic": topic,
                            "queueId": item.queue_id,
                            "queueOffset": item.queue_offset,
                            "phyOffset": item.phy_offset,
                            "storedAtMs": item.stored_at_ms,
                            "keys": item.keys,
                            "tags": item.tags,
                            "body": said(item.body),
                        }
                    )
                if silence.cancelled_caught:
                    break
    return sorted(found, key=lambda item: item["phyOffset"])


async def _switch(cluster: Cluster, admin: Admin) -> None:
    """To another master, so that there are two epochs."""
    old = await cluster.master()
    target = next(name for name in cluster.brokers if name not in (old, "broker-a-3"))
    broker_id = (await cluster.replica_states([target]))[target].broker_id
    ext = {"clusterName": "drill", "brokerName": GROUP, "brokerId": str(broker_id), "designateElect": "true"}
    await _ask_leader(cluster, admin, Command(RequestCode.CONTROLLER_ELECT_MASTER, ext))
    await cluster.master(without=old)
    await cluster.wait_healthy()


async def _maintain(cluster: Cluster, admin: Admin, name: str) -> None:
    broker_id = (await cluster.replica_states([name]))[name].broker_id
    ext = {"brokerName": GROUP, "brokerId": str(broker_id), "on": "true"}
    await _ask_leader(cluster, admin, Command(RequestCode.RMQHA_SET_MAINTENANCE, ext))


async def _explained(cluster: Cluster, admin: Admin) -> dict[str, Any]:
    reply = await _ask_leader(cluster, admin, Command(RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": GROUP}))
    told: dict[str, Any] = loads(bytes(reply.body))
    return told


async def _settled(cluster: Cluster, admin: Admin) -> dict[str, Any]:
    """The group as the controllers keep it, once nothing happens any more. Raises trio.TooSlowError."""
    before: dict[str, Any] = {}
    with trio.fail_after(2 * WAIT_S):
        while True:
            now = kept(await _explained(cluster, admin))
            if now == before:
                return now
            before = now
            await trio.sleep(3)


def kept(told: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer to 52010 that is in the controllers' log and snapshot."""
    return {name: told[name] for name in DURABLE} | {
        "replicas": [{"brokerId": item["brokerId"], "address": item["address"]} for item in told["replicas"]]
    }


async def _ask_leader(cluster: Cluster, admin: Admin, command: Command) -> Command:
    for address in cluster.state.controller_addresses:
        if (await admin.controller_state(address))["leading"]:
            return await admin.ask(address, command, WAIT_S * 1000)
    raise RuntimeError("no controller leads")


def _stop(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        process = cluster.state.node(name).process
        assert process is not None
        send_signal(process, signal.SIGTERM)
        if wait_gone([process], WAIT_S):
            raise RuntimeError(f"{name} has not ended: {cluster.last_log_line(name)}")


def _pack(directory: Path) -> bytes:
    """The nodes' files; their logs and locks are nobody's state."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(directory.rglob("*")):
            place = path.relative_to(directory)
            if path.is_file() and "log" not in place.parts[:-1] and path.suffix != ".lock" and path.name != "lock":
                tar.add(path, str(place), filter=_nobodys)
    return zstandard.ZstdCompressor(level=19).compress(buffer.getvalue())


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


# --- the wire ---------------------------------------------------------------------------------------------------------
def recorded(streams: list[Stream], ha_ports: set[int]) -> Iterator[dict[str, Any]]:
    """The beginning of one replication stream in both directions, then FRAMES_OF_A_KIND of each kind."""
    to_masters = {(stream.source, stream.target): stream for stream in streams if stream.target in ha_ports}
    for stream in streams:
        slave = to_masters.get((stream.target, stream.source))
        if slave is not None and len(stream.data) >= HA_BYTES:
            yield _ha("slave", bytes(slave.data[:HA_BYTES]))
            yield _ha("master", bytes(stream.data[:HA_BYTES]))
            break
    commands = [
        (stream, frame, parsed(frame))
        for stream in streams
        if not {stream.source, stream.target} & ha_ports
        for frame in _whole_frames(bytes(stream.data))
    ]
    answers = {
        (stream.target, stream.source, command.opaque): frame
        for stream, frame, command in commands
        if command.is_response
    }
    seen: Counter[str] = Counter()
    for stream, frame, request in commands:
        if request.is_response:
            continue
        answer = answers.get((stream.source, stream.target, request.opaque))
        heard = None if answer is None else said(parsed(answer))
        line = {"stream": "remoting", "request": said(request), "answer": heard}
        raft = next(iter(line["request"].get("raft", [""])))
        kind = str((request.code, sorted(request.ext), raft, heard and (heard["code"], sorted(heard["ext"]))))
        if seen[kind] < FRAMES_OF_A_KIND:
            yield {**line, "raw": [_text(frame), None if answer is None else _text(answer)]}
        # a large answer is kept once
        seen[kind] += 1 if len(answer or b"") < LARGE_BYTES else FRAMES_OF_A_KIND


def _whole_frames(data: bytes) -> Iterator[bytes]:
    """The frames of a remoting stream; the last one may have been cut by the end of a process."""
    at = 0
    while at + 4 <= len(data) and (end := at + 4 + int.from_bytes(data[at : at + 4], "big")) <= len(data):
        yield data[at:end]
        at = end


def _ha(direction: str, data: bytes) -> dict[str, Any]:
    return {"stream": "ha", "direction": direction, "said": said_by(direction, data), "raw": _text(data)}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def said_by(direction: str, data: bytes) -> list[Any]:
    """The frames that one side of a replication stream sends."""
    parser = SlaveStreamParser() if direction == "slave" else MasterStreamParser()
    return [said(frame) for frame in parser.feed(data)]


def parsed(frame: bytes) -> Command:
    (command,) = FrameParser(MAX_FRAME_BYTES).feed(frame)
    return command


def said(value: Any) -> Any:
    """A decoded value as JSON: what a later release must make of the same bytes."""
    if isinstance(value, Command):
        names = ("code", "flag", "opaque", "remark", "language", "version", "ext")
        found = {name: said(getattr(value, name)) for name in names} | {"body": said(value.body)}
        is_raft = value.code == RequestCode.RMQHA_RAFT_MESSAGE and not value.is_response
        return found | ({"raft": said(decode_message(bytes(value.body)))} if is_raft else {})
    if is_dataclass(value):
        return {type(value).__name__: {item.name: said(getattr(value, item.name)) for item in fields(value)}}
    if hasattr(value, "_asdict"):
        return {type(value).__name__: {name: said(item) for name, item in value._asdict().items()}}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex() if len(value) <= 32 else f"sha256 {sha256(value).hexdigest()}"
    if isinstance(value, dict):
        return {str(key): said(item) for key, item in value.items()}
    if isinstance(value, str | int | None):
        return value
    return [said(item) for item in value]


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        with Loopback() as loopback:
            states, manifest, (ports, ha_ports) = trio.run(run, Path(scratch))
        streams = [stream for stream in loopback.streams if {stream.source, stream.target} & ports]
        frames = list(recorded(streams, ha_ports))
    target.mkdir(parents=True)
    (target / "states.tar.zst").write_bytes(states)
    (target / "wire.jsonl").write_text("".join(json.dumps(frame) + "\n" for frame in frames))
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
