"""What a run does with the set, elections, eligibility, proposals and commits is a run of the specification
(docs/internals/spec): its steps are found from the outside, and given to `specification`, which knows the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.state.event import (
    BrokerRegistered,
    BrokersCleaned,
    Cause,
    Event,
    GroupResizing,
    GroupSized,
    MasterElected,
    MasterVacated,
    MemberRemoved,
    ReplicaDrained,
    SyncStateSetAltered,
)
from controller.state.replicas_info import BrokerGroup
from rmqha.ha.replica import Replica
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.spec.specification import NONE, Declared, MasterView, Register, View, holds

OUTSIDE = frozenset({Cause.FIRST_ELECTION, Cause.SOLE_REPLICA, Cause.UNCLEAN_BY_OPERATOR, Cause.UNCLEAN_AUTOMATIC})
"""Elections of which the model says nothing: nobody knew a set, or a loss was accepted."""


class Specified:
    """Of group `name`. Controllers must keep their disks: one that forgets all is outside the model."""

    def __init__(self, name: str, *, cp: bool) -> None:
        self._name = name
        self._cp = cp
        self.register = Register()
        self._index = 0
        """Of the newest entry that any controller has applied."""
        self._watched: dict[str, int] = {}
        """By controller: the life that is watched."""
        self._keys: dict[str, Any] = {}
        self._views: dict[tuple[str, int], MasterView] = {}
        """By host and disk."""
        self.step_count = 0

    # --- controllers ------------------------------------------------------------------------------------------------
    def applied(self, controller: ControllerProcess) -> None:
        """A step of a controller: the first of a life is before anything is applied in it."""
        if self._watched.get(controller.host) == controller.life or not controller.alive:
            return
        self._watched[controller.host] = controller.life
        machine: Any = controller.machine
        feed, real = machine._role_changes, machine._role_changes.applied

        def entry(index: int, events: list[Event]) -> None:
            real(index, events)
            self._entry(index, events, machine.info.groups.get(self._name))

        feed.applied = entry

    def _entry(self, index: int, events: Sequence[Event], group: BrokerGroup | None) -> None:
        if index <= self._index:
            return
        assert index == self._index + 1, "one of the controllers applies each entry"
        self._index = index
        for event in events:
            if event.broker_name == self._name:
                self._take(event)
                self.register.end_eligibility()
        if group is not None and events:
            found = _state_of(group)
            holds(found == self.register.state, "entry", f"{index}: {events} makes {found}, not {self.register.state}")

    def _take(self, event: Event) -> None:
        register = self.register
        self.step_count += 1
        match event:
            case BrokerRegistered():
                is_cp, total = event.ha_mode == "cp", event.total_replicas
                register.declared[event.broker_id] = Declared(is_cp, total, event.async_learner)
                if event.async_learner:
                    register.leave(frozenset({event.broker_id}))
            case MasterElected():
                eligible, outside = frozenset(event.eligible) - {event.broker_id}, event.cause in OUTSIDE
                register.elect(event.broker_id, event.master_epoch, eligible, accepts_loss=outside)
            case SyncStateSetAltered():
                members, eligible = frozenset(event.sync_state_set), frozenset(event.eligible)
                register.deliver(
                    event.master_epoch, event.sync_state_set_epoch, members, eligible - frozenset(event.sync_state_set)
                )
            case MasterVacated():
                register.vacate(event.master_epoch)
            case MemberRemoved():
                register.leave(frozenset({event.broker_id}) & register.electable)
            case ReplicaDrained() if event.drained and event.broker_id != register.master:
                register.leave(frozenset({event.broker_id}))
            case BrokersCleaned():
                register.leave(frozenset(event.broker_ids))
                for broker_id in event.broker_ids:
                    register.declared.pop(broker_id, None)
            case GroupResizing():
                register.resize(event.total_replicas)
            case GroupSized():
                register.resized(event.total_replicas)

    # --- replicas ---------------------------------------------------------------------------------------------------
    def stepped(self, broker: BrokerProcess) -> None:
        replica, sync = broker.replica, broker.replica._set.state
        leads = replica.is_master
        key = (
            *(broker.life, leads, replica.epoch, sync.confirmed, sync.set_epoch, sync.union, sync.proposed),
            *(sync.unknown, sync.blind, replica._set.total_replicas, broker.store.confirm_offset if leads else 0),
        )
        if self._keys.get(broker.host) == key:
            return
        self._keys[broker.host] = key
        if replica.broker_id is None:
            return
        self.step_count += 1
        view = _view_of(broker.life, replica, int(broker.store.confirm_offset))
        place = (broker.host, broker.disk_count)
        known = self._views.get(place)
        if known is None:
            last = View(broker.life, 0, 0)
            known = self._views[place] = MasterView(int(replica.broker_id), self._cp, self.register, last)
        try:
            known.moves(view, {int(item): int(end) for item, end in replica.slave_acks()}, replica._set._inherited_end)
        except InvariantError as violation:
            raise InvariantError(f"{broker.host}: {violation}") from None


def _view_of(life: int, replica: Replica, confirm: int) -> View:
    if not replica.is_master:
        return View(life, 0, int(replica.epoch))
    sync = replica._set.state
    return View(
        life,
        int(replica.epoch),
        int(replica.epoch),
        frozenset(sync.confirmed),
        sync.set_epoch,
        frozenset(sync.union),
        None if sync.proposed is None else frozenset(sync.proposed),
        sync.unknown,
        sync.blind,
        replica._set.total_replicas,
        confirm,
    )


def _state_of(group: BrokerGroup) -> tuple[Any, ...]:
    return (
        group.master_id,
        group.master_epoch,
        frozenset(group.sync_state_set),
        group.sync_state_set_epoch,
        frozenset(group.eligible) if group.eligible else NONE,
        group.total_replicas,
        group.next_total_replicas,
    )
