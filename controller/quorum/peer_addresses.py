"""Addresses of the other controllers. Pure.

The configuration in the Raft log has those of all members, controllerDLegerPeers those of a group that is not formed
yet. A controller that was added after the last known entry tells its address in its messages.
"""

from __future__ import annotations

from controller.config import ControllerConfig
from rmqha.ha.stream.registered import is_host_name, same_host
from rmqha.raft.node import RaftNode
from rmqha.raft.quorum import id_of

MAX_HEARD_COUNT = 64


class PeerAddresses:
    def __init__(self, config: ControllerConfig, raft: RaftNode) -> None:
        self._config = config
        self._raft = raft
        self._heard: dict[str, str] = {}

    def heard(self, sender: str, address: str) -> None:
        """Remember the address in a message of `sender`, for at most MAX_HEARD_COUNT senders."""
        if not address or self._raft.configuration.address_of(sender):
            return
        self._heard.pop(sender, None)
        self._heard[sender] = address
        if len(self._heard) > MAX_HEARD_COUNT:
            del self._heard[next(iter(self._heard))]

    def of(self, member: str) -> str:
        """Address of an identity or a bare id, "" if unknown. The own address is always that of the own key."""
        if id_of(member) == id_of(self._raft.node_id):
            return self._config.self_address
        known = self._raft.configuration.address_of(member) or self._heard.get(member, "")
        return known or self._config.peers.get(id_of(member), "")

    def members(self) -> list[tuple[str, str]]:
        """(bare id, address) of every member, by id."""
        return [(id_of(member), self.of(member)) for member in self._raft.configuration.members]

    def may_be_at(self, host: str) -> bool:
        """True if a controller of the group may connect from `host`: its address is equal, or a name that is not
        resolved here."""
        addresses = [*self._config.peers.values(), *(address for _, address in self.members())]
        return any(is_host_name(item) or same_host(item, host) for item in map(_host, addresses) if item)

    def finding(self) -> str:
        """One sentence about the group at the start, "" if all is as expected."""
        configuration, own = self._raft.configuration, self._raft.node_id
        key, log, own_id = dict(self._config.peers), dict(self.members()), id_of(own)
        if not configuration.formed:
            others = ", ".join(node for node in key if node != own_id)
            return f"the group is not formed yet: its first election needs {others} as well" if others else ""
        if not configuration.knows(own):
            return f"{own_id} is no member of the group; add it with `rmqha quorum add`, or stop it"
        if key.keys() == log.keys() and all(key[node] == log[node] for node in key if node != own_id):
            return ""
        told = ";".join(f"{node}-{address}" for node, address in log.items())
        return f"controllerDLegerPeers differs from the group's own record, which is used: {told}"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
