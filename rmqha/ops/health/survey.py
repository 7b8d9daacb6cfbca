"""Ask every node that a cluster has, each for its own word, at once and within a fixed time. Control plane.

The nodes are those of the cluster directory or of the given addresses, and whoever those name: name servers name
brokers, brokers name their controllers and name servers, controllers name replicas and each other. A node that is
silent costs its own time and nobody else's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import trio

from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import parse_properties
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.model.identity import parse_address
from rmqha.ops.cluster_view import asked
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from rmqha.wire.state.controller_state import ControllerState, GroupState
from rmqha.wire.state.replica_state import ReplicaState

NODE_SHARE = 0.4
"""Part of the whole time that one node may take to answer."""
SECOND_LOOK_S = 0.4
"""Pause ahead of the second look at whatever may be a moment's difference."""
_REPLICA, _CONTROLLER = RequestCode.RMQHA_GET_REPLICA_STATE, RequestCode.RMQHA_GET_CONTROLLER_STATE

LARGE_BYTES = 64 * 1024
"""A larger answer is parsed beside the event loop."""
StateT = TypeVar("StateT", ReplicaState, ControllerState)


class ServerKind(Enum):
    NAME_SERVER = "name server"
    CONTROLLER = "controller"
    BROKER = "broker"


@dataclass(slots=True)
class NodeReport:
    """A report of one node. `error` is one sentence if it says nothing; what it says is then empty."""

    kind: ServerKind
    address: str
    name: str = ""
    """Name of a node of the cluster directory; "" of any other."""
    groups: frozenset[str] = frozenset()
    """Groups in which a broker was heard of."""
    runs: bool | None = None
    """True if its process lives; None: it is none of the cluster directory."""
    error: str = ""
    is_ours: bool = True
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of a broker, by request 26."""
    replica: ReplicaState | None = None
    """State of a broker, None of Apache's."""
    before: ReplicaState | None = None
    """`replica` a moment earlier, if there was a second look."""
    controller: ControllerState | None = None
    """State of a controller, None of Apache's."""
    routed_id: int | None = None
    """Id under which clients are routed to a broker; the master is 0. None: the name servers do not know it."""
    routes: dict[str, dict[int, str]] = field(default_factory=dict)
    """Routes of a name server: group → broker id → address; the master is id 0."""
    security: list[dict[str, Any]] = field(default_factory=list)
    """Rows of 52017: the files of certificates, accounts and credentials; [] of a node that has no such request."""
    leads: bool = False
    """True of a controller that says so."""
    replicas: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Replicas by the word of Apache's leading controller: group → row of request 1006."""

    @property
    def answers(self) -> bool:
        return not self.error

    @property
    def title(self) -> str:
        """The name by which people know it."""
        return self.name or self.address

    @property
    def group(self) -> str:
        """Group of a broker; "" if nobody told."""
        named = (self.replica.broker_name if self.replica is not None else "") or self.keys.get("brokerName")
        return named or next(iter(sorted(self.groups)), "")

    @property
    def leads_group(self) -> bool:
        """True for a master, by its own word; by where clients are routed if it is not ours or is silent."""
        return self.routed_id == 0 if self.replica is None else self.replica.leads

    @property
    def told_groups(self) -> Mapping[str, GroupState]:
        """Groups that a controller of ours knows."""
        return {} if self.controller is None else self.controller.groups


@dataclass(frozen=True, slots=True)
class BootstrapAddresses:
    """Addresses to begin at, by kind, and the names of the nodes of a cluster directory."""

    name_servers: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    brokers: tuple[tuple[str, str], ...] = ()
    """(address, group)."""
    names: tuple[tuple[ServerKind, str, str, bool], ...] = ()
    """(kind, address, name, whether its process lives)."""

    @classmethod
    def of_state(cls, state: ClusterState) -> BootstrapAddresses:
        names = []
        for node in state.nodes.values():
            if node.is_broker:
                names.append((ServerKind.BROKER, node.address, node.name, node.alive))
            elif node.controller_address != node.address:
                names.append((ServerKind.NAME_SERVER, node.address, node.name, node.alive))
            if node.controller_address:
                names.append((ServerKind.CONTROLLER, node.controller_address, node.name, node.alive))
        return cls(
            tuple(item for item in state.namesrv_addresses.split(";") if item),
            tuple(state.controller_addresses),
            tuple((node.address, node.group) for node in state.brokers),
            tuple(names),
        )


class Survey:
    """One round of questions. `only` limits the brokers to one group. `words` fills while `run` runs."""

    def __init__(
        self, client: RemotingClient, seeds: BootstrapAddresses, time_s: float, only: str | None = None
    ) -> None:
        self._client = client
        self._seeds = seeds
        self._only = only
        self._time_s = time_s
        self._node_ms = max(1, round(time_s * NODE_SHARE * 1000))
        self._nursery: trio.Nursery | None = None
        self.words: dict[tuple[ServerKind, str], NodeReport] = {}

    async def run(self) -> list[NodeReport]:
        """Everybody's word, by kind and address; within the time, whatever the nodes do."""
        with trio.move_on_after(self._time_s):
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for address in self._seeds.name_servers:
                    self._meet(ServerKind.NAME_SERVER, address)
                for address in self._seeds.controllers:
                    self._meet(ServerKind.CONTROLLER, address)
                for address, group in self._seeds.brokers:
                    self._meet(ServerKind.BROKER, address, group)
            groups = sorted({group for word in self.words.values() for group in word.groups})
            for word in self.words.values():
                if word.kind is ServerKind.CONTROLLER and word.leads and not word.is_ours and groups:
                    await self._ask_apaches_groups(word, groups)
        order = {kind: place for place, kind in enumerate(ServerKind)}
        return sorted(self.words.values(), key=lambda word: (order[word.kind], word.name, word.address))

    async def look_again(self) -> None:
        """The states of those that answered, a second time: `before` keeps the first."""
        with trio.move_on_after(self._time_s * NODE_SHARE):
            async with trio.open_nursery() as nursery:
                for word in self.words.values():
                    if word.answers:
                        nursery.start_soon(self._again, word)

    # --- who is asked -----------------------------------------------------------------------------------------------
    def _meet(self, kind: ServerKind, address: str, group: str = "") -> None:
        """Somebody has named this node; it is asked once."""
        if kind is ServerKind.BROKER and self._only is not None and group != self._only:
            return
        try:
            parse_address(address)
        except ValueError:
            return
        word = self.words.get((kind, address))
        if word is None:
            word = self.words[(kind, address)] = NodeReport(kind, address, error=f"{address} has not answered yet")
            for known_kind, known_address, name, runs in self._seeds.names:
                if (known_kind, known_address) == (kind, address):
                    word.name, word.runs = name, runs
            assert self._nursery is not None
            self._nursery.start_soon(self._ask, word)
        if group:
            word.groups |= {group}

    async def _ask(self, word: NodeReport) -> None:
        """Never raises for a node that does not answer, or answers nonsense."""
        question = {
            ServerKind.NAME_SERVER: self._name_server,
            ServerKind.CONTROLLER: self._controller,
            ServerKind.BROKER: self._broker,
        }[word.kind]
        try:
            with trio.move_on_after(self._node_ms / 1000) as scope:
                await question(word)
                word.security = await self._security(word.address)
                word.error = ""
            if scope.cancelled_caught:
                word.error = f"{word.address} did not answer within {self._node_ms} ms"
        except RmqhaError as error:
            word.error = str(error)
        except (ValueError, TypeError, AttributeError, KeyError):
            word.error = f"the answer of {word.address} cannot be read: it is no {word.kind.value} that we know"

    async def _again(self, word: NodeReport) -> None:
        try:
            if word.kind is ServerKind.NAME_SERVER:
                word.routes = await self._routes(word.address)
            elif word.controller is not None:
                word.controller = await self._state(word.address, _CONTROLLER, ControllerState)
            elif word.replica is not None:
                state = await self._state(word.address, _REPLICA, ReplicaState)
                word.before, word.replica = word.replica, state
        except (RmqhaError, ValueError, TypeError, AttributeError, KeyError):
            return  # the first look counts

    # --- what is asked ----------------------------------------------------------------------------------------------
    async def _call(self, address: str, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b"") -> Any:
        return asked(await self._client.call(address, Command(code, ext or {}, body), self._node_ms), address)

    async def _state(self, address: str, code: RequestCode, schema: type[StateT]) -> StateT:
        body = bytes((await self._call(address, code)).body)
        if len(body) < LARGE_BYTES:
            return schema.from_json(json.loads(body))
        return await trio.to_thread.run_sync(lambda: schema.from_json(json.loads(body)))

    async def _routes(self, address: str) -> dict[str, dict[int, str]]:
        body = loads(bytes((await self._call(address, RequestCode.GET_BROKER_CLUSTER_INFO)).body))
        table = body.get("brokerAddrTable") or {}
        return {
            str(name): {int(broker_id): str(where) for broker_id, where in row["brokerAddrs"].items()}
            for name, row in table.items()
        }

    async def _name_server(self, word: NodeReport) -> None:
        word.routes = await self._routes(word.address)
        for name, addresses in word.routes.items():
            for address in addresses.values():
                self._meet(ServerKind.BROKER, address, name)

    async def _broker(self, word: NodeReport) -> None:
        reply = await self._call(word.address, RequestCode.GET_BROKER_CONFIG)
        word.keys = parse_properties(str(reply.body, "utf-8"), f"the configuration of {word.address}")
        word.replica = await self._ours(word, _REPLICA, ReplicaState)
        if word.keys.get("enableControllerMode") == "true":
            self._meet_all(ServerKind.CONTROLLER, word.keys.get("controllerAddr", ""))
        self._meet_all(ServerKind.NAME_SERVER, word.keys.get("namesrvAddr", ""))

    async def _controller(self, word: NodeReport) -> None:
        word.controller = await self._ours(word, _CONTROLLER, ControllerState)
        if word.controller is None:
            await self._apaches_controller(word)
            return
        word.leads = word.controller.leading
        for name, group in word.controller.groups.items():
            for replica in group.replicas:
                self._meet(ServerKind.BROKER, replica.address, name)
        quorum = await self._call(word.address, RequestCode.RMQHA_GET_QUORUM, {"version": "1"})
        for address in json.loads(bytes(quorum.body))["addresses"].values():
            self._meet(ServerKind.CONTROLLER, str(address))

    async def _apaches_controller(self, word: NodeReport) -> None:
        ext = (await self._call(word.address, RequestCode.CONTROLLER_GET_METADATA_INFO)).ext
        for peer in ext.get("peers", "").split(";"):
            self._meet(ServerKind.CONTROLLER, peer.partition(":")[2])
        word.leads = ext.get("isLeader") == "true"

    async def _ask_apaches_groups(self, word: NodeReport, groups: list[str]) -> None:
        """Apache's controller tells of the groups that it is asked for."""
        try:
            reply = await self._call(word.address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps(groups))
            word.replicas = dict(loads(bytes(reply.body)).get("replicasInfoTable") or {})
        except RmqhaError as error:
            word.error = str(error)
        except (ValueError, TypeError, AttributeError):
            word.error = f"the answer of {word.address} about its groups cannot be read"

    async def _security(self, address: str) -> list[dict[str, Any]]:
        try:
            told = loads(bytes((await self._call(address, RequestCode.RMQHA_GET_SECURITY_STATE)).body))
        except RemoteError:
            return []
        now_ms = int(told["nowMs"])
        return [
            {**row, "expiresInMs": None if row["expiresAtMs"] is None else int(row["expiresAtMs"]) - now_ms}
            for row in told["files"]
        ]

    async def _ours(self, word: NodeReport, code: RequestCode, schema: type[StateT]) -> StateT | None:
        """The answer to one of our own requests; None of a node of Apache's, which has none."""
        try:
            return await self._state(word.address, code, schema)
        except RemoteError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            word.is_ours = False
            return None

    def _meet_all(self, kind: ServerKind, addresses: str) -> None:
        for address in addresses.split(";"):
            self._meet(kind, address.strip())


async def look(
    seeds: BootstrapAddresses, time_s: float, only: str | None, unsettled: Callable[[Iterable[NodeReport]], bool]
) -> list[NodeReport]:
    """Ask everybody; a second time, a moment later, if what they said is `unsettled`. Ends within `time_s`."""
    with trio.move_on_after(time_s):
        async with RemotingClient() as client:
            survey = Survey(client, seeds, time_s * 0.6, only)
            words = await survey.run()
            if unsettled(words):
                await trio.sleep(min(SECOND_LOOK_S, time_s * 0.1))
                await survey.look_again()
            return words
    return list(survey.words.values())
