"""Faults that come at a moment: right after a first acknowledgement, a first sync, a change of the set, a hand-over.

What a rule guards against often needs a loss of power, a stop or an old answer within a few milliseconds of such an
event. Ticks hit those by chance only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rmqha.sim.prng import SimPrng
from rmqha.sim.transport import Delays
from tests.simulation.faults.disk_faults import DiskFaults
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

FIRST_ACK, FIRST_SYNC = "first-ack", "first-sync"
OF_BROKERS = frozenset(
    (
        "booted", "ha_aligned", "id_applied", "log_restarted", "log_rolled", "log_trimmed", "log_truncated",
        "offsets_taken_back", "queue_ends_learned", "registered", "role_changed", "serving", "set_changed",
        "unclean_accepted", "whole_again", "writable",
    )
)  # fmt: skip
OF_CONTROLLERS = frozenset(
    (
        "controller_leads", "controller_resigned", "group_masterless", "hand_over_begins", "hand_over_failed",
        "master_elected", "member_removed", "replica_drained",
    )
)  # fmt: skip
MOST_CHANGES = 8
"""Such an event stands in the midst of a handler: what is to become durable with it follows soon."""
SOON_MS = 5
LATE_MS = 3000


class Moments:
    def __init__(self, strikes: Strikes, disks: DiskFaults) -> None:
        self._strikes = strikes
        self._disks = disks
        self._brokers = {broker.host: broker for broker in strikes.brokers}
        self._controllers = {process.host: process for process in strikes.controllers}
        self._sets: dict[str, tuple[int, int, frozenset[int]]] = {}
        """By group: the master epoch, the set's epoch and its members, as its leading controller has applied them."""
        self._firsts: dict[str, tuple[int, int | None, int | None]] = {}
        """By host: its life, and what was acknowledged and synced when something happened to it; None: there was more
        since."""

    def applied(self, controller: ControllerProcess) -> None:
        """After a step of `controller`: a set that it has applied is news, its answer is on its way."""
        strikes = self._strikes
        if controller.led_term is None:
            return
        for group in strikes.groups:
            known = controller.machine.info.groups.get(group.name)
            if known is None:
                continue
            epoch, set_epoch = int(known.master_epoch), int(known.sync_state_set_epoch)
            members = frozenset(map(int, known.sync_state_set))
            before = self._sets.get(group.name)
            self._sets[group.name] = epoch, set_epoch, members
            if before is None or before[0] != epoch or before[1] >= set_epoch or not strikes.may_strike(controller):
                continue
            moved = [item for item in group.members if item.broker_id in members ^ before[2]]
            masters = [item for item in group.members if item.alive and item.broker_id == known.master_id]
            if not masters or not strikes.begun:
                continue
            moment = f"{group.name} {strikes.scheduler.now_ms}"
            strikes.chance(
                "set-applied",
                moment,
                strikes.options.set_moment_per_mille,
                partial(self._strike_set, controller, masters[0], moved),
            )

    def _strike_set(
        self, controller: ControllerProcess, master: BrokerProcess, moved: list[BrokerProcess], draws: SimPrng
    ) -> None:
        """The master hears late of its set; meanwhile who came or went stands still, or is slow, or somebody dies."""
        self._hold(draws, {controller.host}, {master.host}, "answers")
        kind = draws.below(6)
        for broker in moved:
            if kind < 2:
                self._strikes.hold_still(broker, draws, 300, 2000)
            elif kind < 4:
                self._strikes.tell("slow", f"{master.host}>{broker.host}", master.host, broker.host)
                self._strikes.transport.slow_down(master.host, broker.host, Delays(100, draws.between(101, 800)))
            elif kind == 4 and broker is not master:
                self._kill_soon(draws, broker, power_loss=draws.chance(1, 4))
        if kind != 4 and draws.chance(1, 2):
            self._kill_within(draws, master, draws.between(1, LATE_MS // 2))

    def traced(self, name: str, fields: dict[str, Any]) -> None:
        """An event of a process, in the midst of its handler."""
        if name in OF_BROKERS:
            broker = self._brokers.get(fields["node"])
            if broker is not None and broker.alive:
                self._firsts[broker.host] = broker.life, -1, -1
                self._strike(name, broker, self._strike_broker)
        elif name in OF_CONTROLLERS:
            controller = self._controllers.get(fields["node"])
            if controller is not None:
                self._strike(name, controller, self._strike_controller)

    def stepped(self, broker: BrokerProcess) -> None:
        """After a step of `broker`."""
        life, acked, synced = self._firsts.get(broker.host, (0, None, None))
        if life != broker.life or (acked is None and synced is None):
            return
        ack, sync = int(broker.replica.releasable_offset), int(broker.store.synced_offset)
        if synced is not None and sync > synced >= 0:
            synced = None
            self._strike(FIRST_SYNC, broker, self._strike_broker)
        if acked is not None and ack > acked >= 0 and broker.alive and broker.replica.is_master:
            acked = None
            self._strike(FIRST_ACK, broker, self._strike_broker)
        self._firsts[broker.host] = life, None if acked is None else ack, None if synced is None else sync

    def _strike(self, name: str, process: Any, act: Callable[[SimPrng, Any], None]) -> None:
        strikes = self._strikes
        if not strikes.begun or not strikes.may_strike(process):
            return
        moment = f"{process.host} {strikes.scheduler.now_ms}"
        strikes.chance(f"at-{name}", moment, strikes.options.moment_per_mille, lambda draws: act(draws, process))

    def _strike_broker(self, draws: SimPrng, broker: BrokerProcess) -> None:
        kind = draws.below(8)
        if kind < 2:
            self._disks.stop_within(broker, draws, draws.between(1, MOST_CHANGES), power_loss=kind == 1)
        elif kind < 4:
            self._kill_soon(draws, broker, power_loss=kind == 3)
        elif kind < 6:
            self._strike_master(draws, broker)
        elif kind == 6:
            self._hold(draws, set(self._controllers), {broker.host}, "answers")
        else:
            self._hold(draws, {broker.host}, set(self._controllers), "requests")

    def _strike_controller(self, draws: SimPrng, controller: ControllerProcess) -> None:
        kind = draws.below(4)
        if kind == 0:
            self._disks.stop_within(controller, draws, draws.between(1, MOST_CHANGES), power_loss=draws.chance(1, 2))
        elif kind == 1:
            self._kill_soon(draws, controller, power_loss=draws.chance(1, 2))
        elif kind == 2:
            self._hold(draws, {controller.host}, set(self._brokers), "answers")
        else:
            masters = [item for item in self._brokers.values() if item.alive and item.replica.is_master]
            if masters:
                self._kill_soon(draws, masters[0], power_loss=draws.chance(1, 2))

    def _strike_master(self, draws: SimPrng, broker: BrokerProcess) -> None:
        """Of the same group, or `broker` itself if it leads: what has just happened to a slave, its successor meets."""
        group = self._strikes.group_with(broker).brokers
        masters = [item for item in group if item.alive and item.replica.is_master] or [broker]
        self._kill_soon(draws, masters[-1], power_loss=draws.chance(1, 4))

    def _kill_soon(self, draws: SimPrng, process: BrokerProcess | ControllerProcess, *, power_loss: bool) -> None:
        self._kill_within(draws, process, draws.between(0, SOON_MS), power_loss=power_loss)

    def _kill_within(
        self,
        draws: SimPrng,
        process: BrokerProcess | ControllerProcess,
        after_ms: int,
        *,
        power_loss: bool = False,
    ) -> None:
        strikes, life = self._strikes, process.life

        def kill() -> None:
            if process.life != life or not process.alive or strikes.over:
                return
            may = not isinstance(process, BrokerProcess) or strikes.may_lose_power(process)
            strikes.tell("power" if power_loss and may else "kill", process.host)
            process.kill(power_loss=power_loss and may)
            strikes.restart_later(process, draws)

        strikes.scheduler.after(after_ms, kill)

    def _hold(self, draws: SimPrng, sources: set[str], targets: set[str], what: str) -> None:
        """What these say on the connections that they have comes late, and newer words on new connections before it."""
        strikes, late_ms, gives_up = self._strikes, draws.between(100, LATE_MS), draws.chance(1, 2)
        strikes.tell(f"late {what}", sorted(targets if what == "answers" else sources)[0], *sources, *targets)
        for conn in strikes.transport.open_connections():
            if conn.host in sources and conn.peer_host in targets:
                strikes.transport.hold(conn, late_ms)
                if gives_up and what == "requests":
                    strikes.scheduler.after(0, partial(strikes.transport.give_up, conn))
