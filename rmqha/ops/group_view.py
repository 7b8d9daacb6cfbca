"""States of the brokers of a group that a name server tells, ours and Apache RocketMQ's. Control plane.

Partial results count: a broker that does not answer has its error instead, and every answer names its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmqha.host.asking.shell import Caller
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.base import parse_properties
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError
from rmqha.ops.asking import ask
from rmqha.ops.guarantee import EffectiveValue, Guarantee, effective_keys, promise
from rmqha.ops.snapshot import NodeReport, ServerKind
from rmqha.ops.survey import BootstrapAddresses, Survey, SurveyScope
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads

ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Reports of a broker group's brokers."""

    name: str
    cluster: str
    brokers: tuple[NodeReport, ...]

    @property
    def masters(self) -> list[NodeReport]:
        """The masters: normally one; two for a moment after a cut-off master came back."""
        found = [view for view in self.brokers if view.leads_group]
        return sorted(found, key=lambda view: -((view.replica.epoch if view.replica is not None else None) or 0))

    @property
    def answering(self) -> list[NodeReport]:
        return [view for view in self.brokers if not view.error]


async def find_groups(client: Caller, namesrv: str) -> dict[str, GroupReport]:
    """The groups that the name servers know, not yet asked. Raises UnreachableError if none of `namesrv` answers."""
    trouble = ""
    for address in namesrv.split(";"):
        try:
            reply = await ask(client, address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            table = loads(bytes(reply.body)).get("brokerAddrTable") or {}
            return {
                name: GroupReport(
                    name,
                    str(row.get("cluster", "")),
                    tuple(
                        NodeReport(ServerKind.BROKER, where, routed_id=int(broker_id))
                        for broker_id, where in sorted(row["brokerAddrs"].items())
                    ),
                )
                for name, row in sorted(table.items())
            }
        except (RemoteProtocolError, ValueError, TypeError, AttributeError, KeyError) as error:
            trouble = f"the answer of {address} cannot be read: {error}"
        except RmqhaError as error:
            trouble = str(error)
    raise UnreachableError(f"no name server of {namesrv} tells the groups: {trouble}; give another with --namesrv")


async def ask_groups(client: Caller, groups: Sequence[GroupReport]) -> list[GroupReport]:
    """Ask the brokers of all groups at once. Returns the groups with their reports."""
    bootstrap = BootstrapAddresses(
        brokers=tuple((item.address, group.name) for group in groups for item in group.brokers)
    )
    found = await Survey(client, bootstrap, ASK_TIMEOUT_S, extent=SurveyScope.KEYS).run()
    told = {report.address: report for report in found.nodes}

    def asked(item: NodeReport) -> NodeReport:
        silent = replace(item, error=f"{item.address} is not an address")
        return replace(told.get(item.address, silent), routed_id=item.routed_id)

    return [replace(group, brokers=tuple(map(asked, group.brokers))) for group in groups]


async def ask_broker(client: Caller, address: str) -> NodeReport:
    """State and keys of a broker; with `error` if it does not answer."""
    unasked = GroupReport("", "", (NodeReport(ServerKind.BROKER, address),))
    (group,) = await ask_groups(client, [unasked])
    return group.brokers[0]


async def controllers_are_ours(client: Caller, addresses: list[str]) -> bool | None:
    """True if the group's controllers are rmqha's; None if none answers."""
    for address in addresses:
        try:
            await ask(client, address, Command(RequestCode.RMQHA_GET_CONTROLLER_STATE))
            return True
        except RemoteError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return False
        except RmqhaError:
            continue
    return None


async def elects_uncleanly(client: Caller, addresses: list[str]) -> bool | None:
    """Value of enableElectUncleanMaster at a controller (request 1010); None if none answers."""
    for address in addresses:
        try:
            reply = await ask(client, address, Command(RequestCode.CONTROLLER_GET_CONFIG))
            keys = parse_properties(bytes(reply.body).decode(), f"the configuration of {address}")
        except (RmqhaError, ValueError):
            continue
        if "enableElectUncleanMaster" in keys:
            return keys["enableElectUncleanMaster"] == "true"
    return None


def promise_of(view: NodeReport) -> tuple[dict[str, EffectiveValue], Guarantee]:
    """The effective keys of this broker, and what they promise in its state."""
    state = view.replica
    keys = effective_keys(view.keys, state.total_replicas if state is not None else None)
    members = None if state is None else state.ack_union if state.ha_mode == "ap" else state.sync_state_set
    found = promise(
        keys,
        set_size=None if members is None else len(members),
        one_copy_synced=state is not None and bool(state.one_copy_synced),
        needed=state.ack_rule.needed if state is not None and state.ack_rule is not None else None,
        is_static=view.keys.get("enableControllerMode") == "false",
    )
    return keys, found
