"""Sets that masters have asked for and that may still be applied: the requests are on a link, wait at a controller for
another change of the group, or stand in a controller's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from controller.state.answers import parse_set
from controller.state.event import SyncStateSetAltered, decode_events
from rmqha.model.code import RequestCode
from rmqha.model.offset import RaftIndex
from rmqha.sim.transport import Transport
from rmqha.wire.command import Command
from rmqha.wire.frame import FrameParser
from rmqha.wire.raft_message import EntryKind
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.process import MAX_FRAME_BYTES

Members = tuple[int, ...]


class AskedSet(NamedTuple):
    """`set_epoch`: that of the set which it would follow."""

    master_epoch: int
    set_epoch: int
    members: Members
    where: str


def sets_under_way(transport: Transport, controllers: Sequence[ControllerProcess], name: str) -> Iterator[AskedSet]:
    """Those of the group `name`."""
    hosts = {controller.host for controller in controllers}
    for link, data in transport.under_way(hosts):
        for command in FrameParser(MAX_FRAME_BYTES).feed(data):
            if (found := _asked(command, name, " > ".join(link))) is not None:
                yield found
    for controller in controllers:
        if controller.alive:
            yield from _of_controller(controller, name)


def _of_controller(controller: ControllerProcess, name: str) -> Iterator[AskedSet]:
    machine = controller.machine
    if machine._leadership is not None:
        for waiting in machine._leadership._busy.get(name, ()):
            if (found := _asked(waiting.command, name, controller.host)) is not None:
                yield found
    log = machine._raft._core.log
    first = RaftIndex(max(machine._role_changes.index, log.snapshot_index) + 1)
    for entry in log.slice(first, RaftIndex(log.last_index + 1)):
        for event in decode_events(entry.data) if entry.kind is EntryKind.DATA else ():
            if isinstance(event, SyncStateSetAltered) and event.broker_name == name:
                members = tuple(sorted(map(int, event.sync_state_set)))
                yield AskedSet(event.master_epoch, event.sync_state_set_epoch - 1, members, controller.host)


def _asked(command: Command, name: str, where: str) -> AskedSet | None:
    if command.code != RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET or command.is_response:
        return None
    if command.ext.get("brokerName") != name:
        return None
    members, set_epoch = parse_set(bytes(command.body))
    return AskedSet(int(command.ext["masterEpoch"]), set_epoch, members, where)
