"""Survey of a cluster: requests to all its nodes for their own reports, at once and within a fixed time. Control plane.

The nodes are those of the cluster directory or of the given addresses, and all that these name: name servers name
brokers, brokers name their controllers and name servers, controllers name replicas and each other. A node that does not
answer delays no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from rmqha.host.asking.shell import Caller, TaskGroup, open_client, open_tasks, sleep, within
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.base import parse_properties
from rmqha.model.error import RemoteError, RmqhaError
from rmqha.model.identity import parse_address
from rmqha.ops.asking import StateT, ask, ask_state
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.node_names import with_names
from rmqha.ops.snapshot import ApacheGroup, ClusterSnapshot, NodeReport, SecurityFile, ServerKind
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps, loads
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import ReplicaState

NODE_SHARE = 0.4
"""Part of the whole time that one node may take to answer."""
SECOND_ROUND_S = 0.4
"""Pause (s) before the second round, for differences that may last only a moment."""


class SurveyScope(Enum):
    """Questions of a survey."""

    STATES = "states"
    """State of each given server, and the routes of name servers."""
    KEYS = "keys"
    """Brokers' keys too."""
    NAMED = "named"
    """Brokers' keys too, and all servers that they name are asked as well."""
    ALL = "all"
    """Files of certificates and accounts too."""


@dataclass(frozen=True, slots=True)
class BootstrapAddresses:
    """Addresses at which a survey begins, by kind, and the names of the nodes of a cluster directory."""

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

    @classmethod
    def of_living(cls, state: ClusterState) -> BootstrapAddresses:
        """All servers of processes that run, and no others."""
        found = cls.of_state(state)
        names = tuple(item for item in found.names if item[3])
        living = {kind: tuple(item[1] for item in names if item[0] is kind) for kind in ServerKind}
        return replace(
            found,
            name_servers=living[ServerKind.NAME_SERVER],
            controllers=living[ServerKind.CONTROLLER],
            brokers=tuple(item for item in found.brokers if item[0] in living[ServerKind.BROKER]),
            names=names,
        )


class Survey:
    """One round of questions. `only` limits the brokers to one group. `snapshot` fills while `run` runs."""

    def __init__(
        self,
        client: Caller,
        bootstrap: BootstrapAddresses,
        time_s: float,
        only: str | None = None,
        extent: SurveyScope = SurveyScope.ALL,
    ) -> None:
        self._client = client
        self._seeds = bootstrap
        self._only = only
        self._extent = extent
        self._time_s = time_s
        self._node_ms = max(1, round(time_s * NODE_SHARE * 1000))
        self._tasks: TaskGroup | None = None
        self._reports: dict[tuple[ServerKind, str], NodeReport] = {}

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The reports as they are by now."""
        return with_names(ClusterSnapshot.of(list(self._reports.values())))

    async def run(self) -> ClusterSnapshot:
        """Ask all nodes; ends within the time, whatever they do."""
        with within(self._time_s):
            async with open_tasks() as tasks:
                self._tasks = tasks
                for address in self._seeds.name_servers:
                    self._meet(ServerKind.NAME_SERVER, address)
                for address in self._seeds.controllers:
                    self._meet(ServerKind.CONTROLLER, address)
                for address, group in self._seeds.brokers:
                    self._meet(ServerKind.BROKER, address, group)
            groups = sorted({group for report in self._reports.values() for group in report.groups})
            for report in list(self._reports.values()):
                if report.kind is ServerKind.CONTROLLER and report.leads and not report.is_ours and groups:
                    await self._ask_apaches_groups(report.address, groups)
        return self.snapshot

    async def run_again(self) -> ClusterSnapshot:
        """Ask the servers that answered for their states a second time: `before` keeps the first."""
        with within(self._time_s * NODE_SHARE):
            async with open_tasks() as tasks:
                for report in list(self._reports.values()):
                    if report.answers:
                        tasks.start_soon(self._again, report)
        return self.snapshot

    # --- who is asked -----------------------------------------------------------------------------------------------
    def _named(self, kind: ServerKind, address: str, group: str = "") -> None:
        """Add a node that the configuration or another node names."""
        if self._extent in (SurveyScope.NAMED, SurveyScope.ALL):
            self._meet(kind, address, group)

    def _meet(self, kind: ServerKind, address: str, group: str = "") -> None:
        """Add a node to the survey and ask it, unless it was added before."""
        if kind is ServerKind.BROKER and self._only is not None and group != self._only:
            return
        try:
            parse_address(address)
        except ValueError:
            return
        report = self._reports.get((kind, address))
        if report is None:
            names = [item[2:] for item in self._seeds.names if item[:2] == (kind, address)]
            name, runs = names[-1] if names else ("", None)
            report = NodeReport(kind, address, name, runs=runs, error=f"{address} has not answered yet")
            assert self._tasks is not None
            self._tasks.start_soon(self._ask, kind, address)
        self._put(replace(report, groups=report.groups | {group}) if group else report)

    def _put(self, report: NodeReport) -> None:
        self._reports[report.kind, report.address] = report

    async def _ask(self, kind: ServerKind, address: str) -> None:
        """Ask a node. Never raises for a node that does not answer, or whose answer cannot be parsed."""
        question = {
            ServerKind.NAME_SERVER: self._name_server,
            ServerKind.CONTROLLER: self._controller,
            ServerKind.BROKER: self._broker,
        }[kind]
        error, refuses = "", False
        try:
            with within(self._node_ms / 1000) as scope:
                await question(address)
                if self._extent is SurveyScope.ALL:
                    files = await self._security(address)
                    self._put(replace(self._reports[kind, address], security=files))
            if scope.cancelled_caught:
                error = f"{address} did not answer within {self._node_ms} ms"
        except RmqhaError as trouble:
            error, refuses = str(trouble), isinstance(trouble, RemoteError)
        except (ValueError, TypeError, AttributeError, KeyError) as trouble:
            why = f"it lacks {trouble}" if isinstance(trouble, KeyError) else str(trouble)
            error = f"the answer of {address} cannot be read: {why}"
        self._put(replace(self._reports[kind, address], error=error, refuses=refuses))

    async def _again(self, report: NodeReport) -> None:
        try:
            if report.kind is ServerKind.NAME_SERVER:
                self._put(replace(report, routes=await self._routes(report.address)))
            elif report.controller is not None:
                self._put(replace(report, controller=await self._state(report.address, ControllerState)))
            elif report.replica is not None:
                state = await self._state(report.address, ReplicaState)
                self._put(replace(report, before=report.replica, replica=state))
        except (RmqhaError, ValueError, TypeError, AttributeError, KeyError):
            return  # the first round counts

    # --- what is asked ----------------------------------------------------------------------------------------------
    async def _call(
        self, address: str, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        return await ask(self._client, address, Command(code, ext or {}, body), self._node_ms)

    async def _state(self, address: str, schema: type[StateT]) -> StateT:
        return await ask_state(self._client, address, schema, self._node_ms)

    async def _state_of_ours(self, address: str, schema: type[StateT]) -> StateT | None:
        """State of a server; None of one of Apache's, which has no such request."""
        try:
            return await self._state(address, schema)
        except RemoteError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None

    async def _routes(self, address: str) -> dict[str, dict[int, str]]:
        body = loads(bytes((await self._call(address, RequestCode.GET_BROKER_CLUSTER_INFO)).body))
        table = body.get("brokerAddrTable") or {}
        return {
            str(name): {int(broker_id): str(where) for broker_id, where in row["brokerAddrs"].items()}
            for name, row in table.items()
        }

    async def _name_server(self, address: str) -> None:
        key = ServerKind.NAME_SERVER, address
        state = await self._state_of_ours(address, NameServerState)
        self._put(replace(self._reports[key], name_server=state))
        for name, rivals in ((state.contested if state is not None else None) or {}).items():
            for broker in rivals:
                self._named(ServerKind.BROKER, broker, name)
        routes = await self._routes(address)
        self._put(replace(self._reports[key], routes=routes))
        for name, addresses in routes.items():
            for broker in addresses.values():
                self._named(ServerKind.BROKER, broker, name)

    async def _broker(self, address: str) -> None:
        key = ServerKind.BROKER, address
        keys: dict[str, str] = {}
        if self._extent is not SurveyScope.STATES:
            reply = await self._call(address, RequestCode.GET_BROKER_CONFIG)
            keys = parse_properties(str(reply.body, "utf-8"), f"the configuration of {address}")
            self._put(replace(self._reports[key], keys=keys))
        state = await self._state_of_ours(address, ReplicaState)
        self._put(replace(self._reports[key], replica=state, is_ours=state is not None))
        if keys.get("enableControllerMode") == "true":
            self._all_named(ServerKind.CONTROLLER, keys.get("controllerAddr", ""))
        self._all_named(ServerKind.NAME_SERVER, keys.get("namesrvAddr", ""))

    async def _controller(self, address: str) -> None:
        key = ServerKind.CONTROLLER, address
        state = await self._state_of_ours(address, ControllerState)
        if state is None:
            self._put(replace(self._reports[key], is_ours=False))
            await self._apaches_controller(address)
            return
        self._put(replace(self._reports[key], controller=state, leads=state.leading))
        if self._extent not in (SurveyScope.NAMED, SurveyScope.ALL):
            return
        for name, group in state.groups.items():
            for replica in group.replicas:
                self._named(ServerKind.BROKER, replica.address, name)
                known = self._reports.get((ServerKind.BROKER, replica.address))
                if known is not None and replica.node_name:
                    self._put(replace(known, registered_name=replica.node_name))
        quorum = await self._call(address, RequestCode.RMQHA_GET_QUORUM, {"version": "1"})
        for member in json.loads(bytes(quorum.body))["addresses"].values():
            self._named(ServerKind.CONTROLLER, str(member))

    async def _apaches_controller(self, address: str) -> None:
        ext = (await self._call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)).ext
        for peer in ext.get("peers", "").split(";"):
            self._named(ServerKind.CONTROLLER, peer.partition(":")[2])
        leads = ext.get("isLeader") == "true"
        self._put(replace(self._reports[ServerKind.CONTROLLER, address], leads=leads))

    async def _ask_apaches_groups(self, address: str, groups: list[str]) -> None:
        """Ask Apache's controller for these groups: it reports only groups that are named."""
        report = self._reports[ServerKind.CONTROLLER, address]
        try:
            reply = await self._call(address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps(groups))
            table = loads(bytes(reply.body)).get("replicasInfoTable") or {}
            told = {str(name): ApacheGroup.from_json(row) for name, row in table.items()}
            self._put(replace(report, apache_groups=told))
        except RmqhaError as error:
            self._put(replace(report, error=str(error)))
        except (ValueError, TypeError, AttributeError):
            self._put(replace(report, error=f"the answer of {address} about its groups cannot be read"))

    async def _security(self, address: str) -> tuple[SecurityFile, ...]:
        try:
            told = loads(bytes((await self._call(address, RequestCode.RMQHA_GET_SECURITY_STATE)).body))
        except RemoteError:
            return ()
        now_ms = int(told["nowMs"])
        return tuple(
            SecurityFile(
                key=str(row["key"]),
                file=str(row["file"]),
                problem=str(row["problem"] or ""),
                expires_in_ms=None if row["expiresAtMs"] is None else int(row["expiresAtMs"]) - now_ms,
            )
            for row in told["files"]
        )

    def _all_named(self, kind: ServerKind, addresses: str) -> None:
        for address in addresses.split(";"):
            self._named(kind, address.strip())


async def run_survey(
    bootstrap: BootstrapAddresses, time_s: float, only: str | None, unsettled: Callable[[ClusterSnapshot], bool]
) -> ClusterSnapshot:
    """Run a survey, and a second round a moment later if the first snapshot is `unsettled`. Ends within `time_s`."""
    with within(time_s):
        async with open_client() as client:
            survey = Survey(client, bootstrap, time_s * 0.6, only)
            found = await survey.run()
            if unsettled(found):
                await sleep(min(SECOND_ROUND_S, time_s * 0.1))
                return await survey.run_again()
            return found
    return survey.snapshot
