"""Plays golden interaction scripts (after etcd-io/raft): a command, `----`, then all that it made happen.

group a b c [learners=d]      fresh nodes; the first deadline is part of the trace
campaign a                    let a's deadline pass
wait 50 [a b …]               let time pass at once; whoever is due times out
endure 500 a b                let time pass in steps; what is sent meanwhile is lost
stabilize [a b …]             Ready by Ready and message by message until these nodes are quiet
deliver a>b … | drop a>b …    take that link's messages off the pool, in order
propose a TEXT | compact a | restart a | transfer a b | read a NAME | lease a | log a | state a
slow a | synced a             from now on a's disk takes its time; it has done what it was at

fresh a b c                   the same nodes, started with a mere list of ids; each has a disk with incarnation 1
boot d a b                    a new node, started with a list of ids
wipe a                        a loses its disk and restarts with the next incarnation and its first list
add a d [learner] | remove a d
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from rmqha.model.offset import RaftIndex
from rmqha.raft.config import RaftConfig
from rmqha.raft.node import RaftNode, Ready
from rmqha.raft.quorum import Configuration, id_of, identity, incarnation_of
from rmqha.raft.reconfiguration import AddNode, MembershipChange, Refused, RemoveNode
from rmqha.sim.prng import SimPrng
from rmqha.wire.raft_message import AnyMessage, Entry, EntryKind, Snapshot
from tests.raft.cluster import Storage

_CONFIG = RaftConfig(max_append_entries=3, max_inflight_appends=2, snapshot_chunk_bytes=8)


def show(value: Any) -> str:
    match value:
        case Entry(index, term, _, EntryKind.NOOP):
            return f"{index}@{term}:noop"
        case Entry(index, term, data, EntryKind.CONFIGURATION):
            return f"{index}@{term}:{show(Configuration.decode(data))}"
        case Entry(index, term, data):
            return f"{index}@{term}:{data.decode()}"
        case Snapshot(index, term, data, configuration):
            members = f" {show(Configuration.decode(configuration))}" if configuration else ""
            return f"snapshot {index}@{term}:{data.decode()}{members}"
        case Configuration(voters, learners, joining):
            found = [f"voters={','.join(voters)}"]
            found += [f"learners={','.join(learners)}"] if learners else []
            found += [f"joining={','.join(joining)}"] if joining else []
            return f"({' '.join(found)})"
        case bytes():
            return value.decode()
        case tuple():
            return "[" + " ".join(map(show, value)) + "]"
        case _:
            return str(value)


def show_message(message: AnyMessage) -> str:
    names = [item.name for item in fields(message) if item.name not in ("sender", "to", "configuration")]
    values = " ".join(f"{name}={show(getattr(message, name))}" for name in names)
    return f"{message.sender}>{message.to} {type(message).__name__} {values}"


class Script:
    def __init__(self) -> None:
        self.now_ms = 0
        self.nodes: dict[str, RaftNode] = {}
        self.stores: dict[str, Storage] = {}
        self.pool: list[AnyMessage] = []
        self.out: list[str] = []
        self.applied: dict[str, list[str]] = {}
        self.started_with: dict[str, Configuration] = {}
        self.identities: dict[str, str] = {}
        self.slow: set[str] = set()
        self.writing: dict[str, Ready] = {}

    def event(self, name: str, **values: Any) -> None:
        """port.Tracer."""
        self.out.append(f"{name} " + " ".join(f"{key}={value}" for key, value in values.items()))

    def play(self, lines: Iterable[str]) -> str:
        """Output of one block of commands."""
        self.out = []
        for line in lines:
            command, *arguments = line.split()
            getattr(self, f"do_{command}")(*arguments)
        return "\n".join(self.out) or "ok"

    # --- commands ---------------------------------------------------------------------------------------------------

    def do_group(self, *names: str) -> None:
        voters = tuple(name for name in names if "=" not in name)
        learners = tuple(name.removeprefix("learners=") for name in names if "=" in name)
        for name in (*voters, *learners):
            self._begin(name, name, Configuration(voters, learners))

    def do_fresh(self, *names: str) -> None:
        for name in names:
            self._begin(name, identity(name, "1"), Configuration.static(dict.fromkeys(names, "")))

    def do_boot(self, name: str, *names: str) -> None:
        self._begin(name, identity(name, "1"), Configuration.static(dict.fromkeys((name, *names), "")))

    def do_wipe(self, name: str) -> None:
        number = int(incarnation_of(self.identities[name])) + 1
        self._begin(name, identity(name, str(number)), self.started_with[name])

    def do_add(self, name: str, node: str, kind: str = "voter") -> None:
        wanted = AddNode(self.identities[node], "", voter=kind == "voter")
        self.out.append(self._changed(name, wanted))

    def do_remove(self, name: str, node: str) -> None:
        self.out.append(self._changed(name, RemoveNode(node)))

    def _changed(self, name: str, wanted: MembershipChange) -> str:
        placed = self.nodes[name].change_membership(self.now_ms, wanted)
        return f"refused: {placed.reason}" if isinstance(placed, Refused) else f"placed at {placed}"

    def do_slow(self, name: str) -> None:
        self.slow.add(name)

    def do_synced(self, name: str) -> None:
        ready = self.writing.pop(name)
        self.out.append(f"{name} synced" + (f" messages={len(ready.messages)}" if ready.messages else ""))
        self._finish(name, ready)

    def do_restart(self, name: str) -> None:
        self.writing.pop(name, None)
        self.pool = [message for message in self.pool if name not in (id_of(message.sender), id_of(message.to))]
        self._start(name)

    def do_campaign(self, name: str) -> None:
        deadline_ms = self.nodes[name].deadline_ms()
        assert deadline_ms is not None
        self.now_ms = max(self.now_ms, deadline_ms)
        self.nodes[name].timeout(self.now_ms)

    def do_wait(self, duration_ms: str, *names: str) -> None:
        self.now_ms += int(duration_ms)
        for name in names or self.nodes:
            self.nodes[name].timeout(self.now_ms)

    def do_endure(self, duration_ms: str, *names: str) -> None:
        for _ in range(0, int(duration_ms), 50):
            self.do_wait("50", *names)
            for name in names:
                self._take_ready(name)
        self.pool = [message for message in self.pool if id_of(message.sender) not in names]
        self.out = [line for line in self.out if " ready" not in line]

    def do_elect(self, name: str, *names: str) -> None:
        self.do_campaign(name)
        self.do_stabilize(*names)
        self.out = []
        self.do_state(*(names or self.nodes))

    def do_chat(self, duration_ms: str, *names: str) -> None:
        for _ in range(0, int(duration_ms), 50):
            self.do_wait("50", *names)
            self.do_stabilize(*names)
            self.pool = [message for message in self.pool if id_of(message.to) in names]
        self.out = [f"at {self.now_ms} ms"]

    def do_stabilize(self, *names: str) -> None:
        chosen = names or tuple(self.nodes)
        busy = True
        while busy:
            busy = sum(self._take_ready(name) for name in chosen) > 0
            for message in [item for item in self.pool if id_of(item.to) in chosen and id_of(item.sender) in chosen]:
                self._deliver(message)
                busy = True

    def do_deliver(self, *links: str) -> None:
        for message in self._on_links(links):
            self._deliver(message)

    def do_drop(self, *links: str) -> None:
        for message in self._on_links(links):
            self.pool.remove(message)
            self.out.append(f"dropped {show_message(message)}")

    def do_ready(self, *names: str) -> None:
        for name in names:
            self._take_ready(name)

    def do_propose(self, name: str, text: str) -> None:
        self.out.append(f"placed at {self.nodes[name].propose(self.now_ms, text.encode())}")

    def do_compact(self, name: str) -> None:
        data = "".join(self.applied[name]).encode()
        self.nodes[name].compact(RaftIndex(self.nodes[name].applied_index), data)

    def do_transfer(self, name: str, to: str) -> None:
        self.out.append(f"begun: {self.nodes[name].transfer_leadership(self.now_ms, self.identities[to])}")

    def do_read(self, name: str, context: str) -> None:
        self.out.append(f"begun: {self.nodes[name].read_index(self.now_ms, context.encode())}")

    def do_lease(self, *names: str) -> None:
        for name in names:
            self.out.append(f"{name} at {self.now_ms} ms: {self.nodes[name].lease_valid(self.now_ms)}")

    def do_log(self, *names: str) -> None:
        for name in names:
            stored = self.stores[name].stored()
            state = f"{name}: term={stored.term} vote={stored.voted_for or 'none'}"
            snapshot = f" {show(stored.snapshot)}" if stored.snapshot else ""
            self.out.append(f"{state}{snapshot} {show(stored.entries)}")

    def do_state(self, *names: str) -> None:
        for name in names:
            state = self.nodes[name].state(self.now_ms).to_json()
            self.out.append(
                " ".join(f"{key}={state[key]}" for key in ("node", "role", "term", "leader", "commitIndex"))
            )
            if "followers" in state:
                followers = {
                    peer: {key: view[key] for key in ("matchIndex", "state")}
                    for peer, view in state["followers"].items()
                }
                self.out.append(f"  {followers}")

    def do_members(self, *names: str) -> None:
        for name in names:
            self.out.append(f"{name}: {show(self.nodes[name].configuration)}")

    # --- work -------------------------------------------------------------------------------------------------------

    def _begin(self, name: str, own_identity: str, configuration: Configuration) -> None:
        self.stores[name] = Storage()
        self.identities[name], self.started_with[name] = own_identity, configuration
        self._start(name)

    def _start(self, name: str) -> None:
        stored = self.stores[name].stored()
        self.applied[name] = [] if stored.snapshot is None else list(stored.snapshot.data.decode())
        prng = SimPrng(0).child(f"{name} {self.now_ms}")
        self.nodes[name] = RaftNode(
            self.identities[name], self.started_with[name], stored, _CONFIG, prng, self, self.now_ms
        )

    def _on_links(self, links: tuple[str, ...]) -> list[AnyMessage]:
        return [
            message for link in links for message in self.pool if f"{id_of(message.sender)}>{id_of(message.to)}" == link
        ]

    def _deliver(self, message: AnyMessage) -> None:
        self.pool.remove(message)
        self.out.append(show_message(message))
        self.nodes[id_of(message.to)].step(self.now_ms, message)

    def _take_ready(self, name: str) -> bool:
        ready = self.nodes[name].ready(self.now_ms)
        if ready is None:
            return False
        self.out.append(f"{name} ready" + "".join(f" {part}" for part in self._parts(ready)))
        self.pool += ready.early
        if ready.snapshot is not None:
            self.applied[name] = list(ready.snapshot.data.decode())
        self.applied[name] += [entry.data.decode() for entry in ready.committed if entry.kind is EntryKind.DATA]
        if ready.must_persist and name in self.slow:
            self.writing[name] = ready
        else:
            self._finish(name, ready)
        return True

    def _finish(self, name: str, ready: Ready) -> None:
        self.stores[name].persist(ready)
        self.nodes[name].advance(ready)
        self.pool += ready.messages

    def _parts(self, ready: Ready) -> list[str]:
        parts = [f"early={len(ready.early)}"] if ready.early else []
        if ready.hard_state is not None:
            parts.append(f"term={ready.hard_state.term} vote={ready.hard_state.voted_for or 'none'}")
        for name in ("truncate_from", "snapshot", "entries", "compaction", "committed"):
            value = getattr(ready, name)
            if value is not None and value != ():
                parts.append(f"{name}={show(value)}")
        parts += [f"read={show(read.context)}@{read.index}" for read in ready.reads]
        return [*parts, f"messages={len(ready.messages)}"] if ready.messages else parts


def play_file(text: str) -> str:
    """The script with the output that it gives now."""
    script = Script()
    blocks = []
    for block in re.split(r"\n\n+", text.strip()):
        commands = block.split("\n----", 1)[0].splitlines()
        output = script.play(line for line in commands if not line.startswith("#"))
        blocks.append("\n".join([*commands, "----", output]))
    return "\n\n".join(blocks) + "\n"
