"""Groups share controllers and name servers, and nothing else: what is decided, told, listed or sent for one of them
never reaches another. Sets, ids and epochs of two groups look alike, so all that controllers have ever applied for a
group is kept, and what its brokers hear must be of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rmqha.ha.group_info import GroupInfo, parse_group_info, parse_set
from rmqha.model.code import ResponseCode
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.transport import Transport
from rmqha.wire.command import Command
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.checkers.logs.records import entries
from tests.simulation.clients.client_process import TOPIC
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.name_server_process import NameServerProcess

MISSED_MS = 1500
"""So long after its end, unless its links are cut, the controllers know that a process is dead: its connection ends,
and a probe is refused."""


@dataclass(slots=True)
class _Decided:
    """For one group, by any controller at any time."""

    addresses: frozenset[str]
    """Of its brokers: the only ones that may be told."""
    masters: set[tuple[int, str, int]] = field(default_factory=set)
    """Broker id, address and epoch."""
    sets: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """Set epoch and members, ascending."""
    sizes: set[int] = field(default_factory=set)


class Crosstalk:
    def __init__(
        self,
        scheduler: Scheduler,
        transport: Transport,
        groups: Sequence[BrokerGroup],
        controllers: Sequence[ControllerProcess],
    ) -> None:
        self._scheduler = scheduler
        self._transport = transport
        self._groups = groups
        self._controllers = [process.host for process in controllers]
        self._here_at_ms = {broker.host: 0 for group in groups for broker in group.brokers}
        """When each broker was last alive, or may have been there still for the controllers."""
        self.missed_count = 0
        """How often there was a dead replica to look for."""
        self._home: dict[str, str] = {}
        """Group of each broker's and client's host."""
        self._decided: dict[str, _Decided] = {}
        for group in groups:
            for process in (*group.brokers, *group.clients, *group.operators):
                self._home[process.host] = group.name
            configs = [broker.config for broker in group.brokers]
            addresses = frozenset(address for each in configs for address in (each.address, each.ha_address))
            self._decided[group.name] = _Decided(addresses)

    def dialed(self, host: str, target: str) -> None:
        """A process of one group looks for one of another."""
        own, other = self._home.get(host), self._home.get(target)
        if own is not None and other is not None and own != other:
            raise InvariantError(f"{host} of {own} dials {target} of {other}")

    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller."""
        for name, known in controller.machine.info.groups.items():
            decided = self._decided.get(name)
            if decided is None:
                raise InvariantError(f"{controller.host} knows a group {name}, which there is not")
            for replica in known.replicas.values():
                for address in (replica.address, replica.ha_address):
                    if address and address not in decided.addresses:
                        raise InvariantError(
                            f"{controller.host} takes {address} for replica {replica.broker_id} of {name}"
                        )
            if known.master_id is not None:
                decided.masters.add((known.master_id, known.master_address, known.master_epoch))
            decided.sets.add((known.sync_state_set_epoch, tuple(sorted(known.sync_state_set))))
            decided.sizes.add(known.binding_total_replicas)
        if controller.machine.is_leading:
            self._look_for_the_dead(controller)

    def _look_for_the_dead(self, controller: ControllerProcess) -> None:
        """Nobody is kept alive by what another group's replicas say."""
        now_ms, machine = self._scheduler.now_ms, controller.machine
        leadership = machine._leadership
        assert leadership is not None
        for group in self._groups:
            for broker in group.brokers:
                began_at_ms = broker.disturbed_at_ms  # and may have died before anybody looked
                self._here_at_ms[broker.host] = max(began_at_ms, self._here_at_ms[broker.host])
                if broker.alive or broker.lost_power or self._transport.is_disturbed((broker.host, *self._controllers)):
                    self._here_at_ms[broker.host] = now_ms
            gone = {
                item.broker_id: now_ms - self._here_at_ms[item.host]
                for item in group.brokers
                if now_ms - self._here_at_ms[item.host] >= MISSED_MS
            }
            known = machine.info.groups.get(group.name)
            if not gone or known is None or controller.clock.now_ms() < leadership.table.grace_until_ms:
                continue
            self.missed_count += 1
            for broker_id in machine.live_ids(controller.clock.now_ms(), known):
                if broker_id in gone:
                    raise InvariantError(
                        f"{controller.host} takes replica {broker_id} of {group.name} for alive, which has been dead"
                        f" for {gone[broker_id]} ms"
                    )

    def heard(self, broker: BrokerProcess, command: Command) -> None:
        """A controller's answer or notice reaches a broker."""
        own = broker.config.broker_name
        told = command.ext.get("brokerName")
        if told is not None and told != own:
            raise InvariantError(f"{broker.host} of {own} is told of {told}: {command}")
        decided = self._decided[own]
        if "nextBrokerId" in command.ext:
            self._check_id(broker, int(command.ext["nextBrokerId"]))
        info = parse_group_info(command)
        if info is not None:
            self._hold_against(broker, info, decided)
        elif command.code == ResponseCode.SUCCESS and "newSyncStateSetEpoch" in command.ext:
            members, set_epoch = parse_set(command)
            if members is not None and (set_epoch, tuple(sorted(members))) not in decided.sets:
                raise InvariantError(f"{broker.host} is told that {members} is set {set_epoch} of {own}; it never was")

    def _check_id(self, broker: BrokerProcess, broker_id: int) -> None:
        """Each group counts for itself, from 1."""
        (group,) = [item for item in self._groups if broker in item.brokers]
        most = sum(item.disk_count for item in group.brokers)
        if broker_id > most:
            raise InvariantError(f"{broker.host} is offered id {broker_id}; {group.name} has had {most} replicas")

    @staticmethod
    def _hold_against(broker: BrokerProcess, info: GroupInfo, decided: _Decided) -> None:
        own = broker.config.broker_name
        master = info.master_id, info.master_address, info.epoch
        if info.master_id is not None and master not in decided.masters:
            raise InvariantError(
                f"{broker.host} is told that {master} is master (id, address, epoch) of {own}; it never was"
            )
        if info.members is not None and (info.set_epoch, tuple(sorted(info.members))) not in decided.sets:
            raise InvariantError(
                f"{broker.host} is told that {info.members} is set {info.set_epoch} of {own}; it never was"
            )
        if info.total_replicas is not None and info.total_replicas not in decided.sizes:
            raise InvariantError(f"{broker.host} is told that {own} has {info.total_replicas} replicas; it never had")

    def traced(self, name: str, fields: dict[str, Any]) -> None:
        """Controllers call a replica dead."""
        if name not in ("master_dead", "broker_dead"):
            return
        for group in self._groups:
            if group.name == fields["group"] and not group.causes.disturbed_at_ms:
                raise InvariantError(
                    f"replica {fields['broker_id']} of {group.name} is called dead ({fields['why']}); nothing has ever"
                    " happened to its group"
                )

    def stepped(self, broker: BrokerProcess) -> None:
        """Whom it follows, whoever told it."""
        address, own = broker.replica.master_address, broker.config.broker_name
        if address and address not in self._decided[own].addresses:
            raise InvariantError(f"{broker.host} of {own} takes {address} for its master")

    def listed(self, process: NameServerProcess) -> None:
        """A step of a name server."""
        for data in process.server.routes.groups():
            decided = self._decided.get(data.broker_name)
            for address in data.addresses.values():
                if decided is None or address not in decided.addresses:
                    raise InvariantError(f"{process.host} lists {address} in {data.broker_name}")

    def verify(self, group: BrokerGroup) -> None:
        """At the end: every replica holds what was sent to its group only, and no fault was felt elsewhere."""
        if not group.causes.disturbed_at_ms:
            self._verify_quiet(group)
        for broker in group.brokers:
            for queue_id in broker.store.queues().get(TOPIC, []):
                for item in entries(broker, TOPIC, queue_id):
                    sender = item.key.partition("-")[0]
                    if self._home.get(sender) != group.name:
                        raise InvariantError(f"{broker.host} of {group.name} holds {item.key}, sent by {sender}")

    @staticmethod
    def _verify_quiet(group: BrokerGroup) -> None:
        """Of a group to which nothing has happened, whatever happened to others."""
        if group.roles.master_epochs != [1]:
            raise InvariantError(
                f"{group.name} had masters of epochs {group.roles.master_epochs}; nothing has happened to it"
            )
        sends = group.history.sends
        found_at_ms = min((send.acked_at_ms for send in sends if send.acked_at_ms is not None), default=0)
        sent_count = sum(send.begun_at_ms >= found_at_ms for send in sends)
        tried_count = sum(attempt.called_at_ms >= found_at_ms for attempt in group.history.attempts)
        if tried_count != sent_count:
            raise InvariantError(
                f"{sent_count} messages to {group.name} took {tried_count} tries; nothing has happened to it"
            )
