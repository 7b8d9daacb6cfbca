"""Ruling 14: while a name server lists a master, none of an older epoch takes its place, however late or often it
registers. Who only registers, and sends no heartbeats, is listed as long as the connection of that lives. At the end
every name server lists every replica, under its id."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.model.offset import MASTER_ID
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.name_server_process import NameServerProcess


class Routes:
    """Of group `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[str, tuple[int, str, int]] = {}
        """By name server: its life, the master that it lists, and the epoch that this one registered with."""
        self.change_count = 0
        """How often a master took another one's place."""

    def stepped(self, process: NameServerProcess) -> None:
        group = process.server.routes._groups.get(self._name)
        for listed, live in group.live.items() if group is not None else ():
            if not live.lite and live.session_id in process.ended:
                raise InvariantError(
                    f"{process.host} lists {listed}, which sends no heartbeats, and whose connection has ended"
                )
        address = group.master if group is not None else None
        if group is None or address is None:
            self._held.pop(process.host, None)
            return
        now = process.life, address, group.live[address].version.state_version
        before = self._held.get(process.host)
        if now == before:
            return
        self._held[process.host] = now
        if before is None or before[0] != now[0]:
            return
        self.change_count += before[1] != address
        if now[2] < before[2]:
            raise InvariantError(
                f"{process.host} lists {address}, master of epoch {now[2]}, in the place of {before[1]} of {before[2]}"
            )


def missing(name: str, name_servers: Sequence[NameServerProcess], brokers: Sequence[BrokerProcess]) -> str:
    """What a name server does not list of group `name` as it is, or ""."""
    wanted = {
        MASTER_ID if broker.replica.is_master else broker.replica.broker_id: broker.config.address for broker in brokers
    }
    for process in name_servers:
        found = {data.broker_name: dict(data.addresses) for data in process.server.routes.groups()}.get(name, {})
        if found != wanted:
            return f"{process.host} lists {found} as {name}, not {wanted}"
    return ""
