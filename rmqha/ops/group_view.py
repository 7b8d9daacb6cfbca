"""Ask the brokers of a group, found by a name server, how they are: ours and Apache RocketMQ's. Control plane.

Partial results count: a broker that does not answer has its error instead, and every answer names its address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import trio

from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import parse_properties
from rmqha.model.error import RemoteError, RemoteProtocolError, RmqhaError, UnreachableError
from rmqha.ops.cluster_view import ask
from rmqha.ops.guarantee import Effective, Promise, effective_keys, promise
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads


@dataclass(slots=True)
class BrokerView:
    """One broker's own word. `state` is {} if it is not ours or did not answer, `keys` what request 26 told."""

    address: str
    routed_id: int | None = None
    """The id under which clients are routed to it; the master is 0. None: the name servers do not know it."""
    state: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    is_ours: bool = True
    error: str = ""

    @property
    def is_master(self) -> bool:
        if self.state:
            return self.state.get("role") in ("MASTER", "PROMOTING")
        return self.routed_id == 0


@dataclass(slots=True)
class GroupLook:
    name: str
    cluster: str
    brokers: list[BrokerView]

    @property
    def masters(self) -> list[BrokerView]:
        """Normally one; two for a moment after a cut-off master came back."""
        found = [view for view in self.brokers if view.is_master]
        return sorted(found, key=lambda view: -(view.state.get("epoch") or 0))

    @property
    def answering(self) -> list[BrokerView]:
        return [view for view in self.brokers if not view.error]


async def find_groups(client: RemotingClient, namesrv: str) -> dict[str, GroupLook]:
    """The groups that the name servers know, not yet asked. Raises UnreachableError if none of `namesrv` answers."""
    trouble = ""
    for address in namesrv.split(";"):
        try:
            reply = await ask(client, address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
            table = loads(bytes(reply.body)).get("brokerAddrTable") or {}
            return {
                name: GroupLook(
                    name,
                    str(row.get("cluster", "")),
                    [BrokerView(where, int(broker_id)) for broker_id, where in sorted(row["brokerAddrs"].items())],
                )
                for name, row in sorted(table.items())
            }
        except (RemoteProtocolError, ValueError, TypeError, AttributeError, KeyError) as error:
            trouble = f"the answer of {address} cannot be read: {error}"
        except RmqhaError as error:
            trouble = str(error)
    raise UnreachableError(f"no name server of {namesrv} tells the groups: {trouble}; give another with --namesrv")


async def look_at_groups(client: RemotingClient, groups: list[GroupLook]) -> None:
    """Ask every broker of them at once. Also those that only the master knows: slaves a name server has dropped."""
    async with trio.open_nursery() as nursery:
        for group in groups:
            for view in group.brokers:
                nursery.start_soon(look_at_broker, client, view)


async def look_at_broker(client: RemotingClient, view: BrokerView) -> None:
    """Fill in its state and keys; never raises for a broker that does not answer."""
    try:
        reply = await ask(client, view.address, Command(RequestCode.GET_BROKER_CONFIG))
        view.keys = parse_properties(bytes(reply.body).decode(), f"the configuration of {view.address}")
        reply = await ask(client, view.address, Command(RequestCode.RMQHA_GET_REPLICA_STATE))
        state = json.loads(bytes(reply.body))
        if not isinstance(state, dict):
            raise ValueError("it is no JSON object")
        view.state = state
    except RemoteError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            view.is_ours = False
        else:
            view.error = str(error)
    except RmqhaError as error:
        view.error = str(error)
    except ValueError as error:
        view.error = f"the answer of {view.address} cannot be read: {error}"


async def controllers_are_ours(client: RemotingClient, addresses: list[str]) -> bool | None:
    """True if the group's controllers are rmqha's; None if none of them answers."""
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


async def elects_uncleanly(client: RemotingClient, addresses: list[str]) -> bool | None:
    """enableElectUncleanMaster as a controller tells it (request 1010); None if none does."""
    for address in addresses:
        try:
            reply = await ask(client, address, Command(RequestCode.CONTROLLER_GET_CONFIG))
            keys = parse_properties(bytes(reply.body).decode(), f"the configuration of {address}")
        except (RmqhaError, ValueError):
            continue
        if "enableElectUncleanMaster" in keys:
            return keys["enableElectUncleanMaster"] == "true"
    return None


def promise_of(view: BrokerView) -> tuple[dict[str, Effective], Promise]:
    """The keys as they count for this broker, and what they promise in its state."""
    state = view.state
    keys = effective_keys(view.keys, state.get("totalReplicas"))
    members = state.get("ackUnion" if state.get("haMode") == "ap" else "syncStateSet")
    found = promise(
        keys,
        set_size=None if members is None else len(members),
        one_copy_synced=bool(state.get("oneCopySynced")),
        needed=state.get("ackRule", {}).get("needed"),
        is_static=view.keys.get("enableControllerMode") == "false",
    )
    return keys, found
