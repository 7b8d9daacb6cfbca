"""Requests for a new set that outlive what they were asked for: a copy stands still on its way while later ones are
refused, since the controllers do not hear of who is to come in; or its master has died and is back in its epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from controller.state.answers import parse_set
from rmqha.sim.prng import SimPrng
from rmqha.wire.command import Command
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess

HELD_PER_MILLE = 400
"""Chance that a request for a set with a slave that the controllers do not hear comes late, or the answer to one of a
master that is back."""
LEFT_AFTER_MS = 2300
"""Who is silent for so long leaves the set, and is dead to the controllers."""


class SetFaults:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self._outcasts: set[str] = set()
        """Hosts that the controllers do not hear."""
        self.kinds: Sequence[tuple[str, int, Callable[[SimPrng], None]]] = (
            ("outcast", strikes.options.outcast_per_mille, self._cast_out),
            ("return", strikes.options.return_per_mille, self._return),
        )
        """Name, chance per tick, and what happens."""

    def _pair(self, draws: SimPrng) -> tuple[BrokerProcess, BrokerProcess] | None:
        """A master and one of its slaves."""
        brokers = self._strikes.group_of(draws).brokers
        masters = [item for item in brokers if item.alive and item.replica.is_master and not item.is_paused]
        slaves = [item for item in brokers if item.alive and not item.replica.is_master]
        return (masters[0], slaves[draws.below(len(slaves))]) if len(masters) == 1 and slaves else None

    def _cast_out(self, draws: SimPrng) -> None:
        """A slave stands still until it has left the set, and is level again while it is dead to the controllers: they
        refuse each set with it until they hear it once more."""
        found = self._pair(draws)
        if found is None:
            return
        strikes, slave = self._strikes, found[1]
        links = [link for item in strikes.controllers for link in ((slave.host, item.host), (item.host, slave.host))]
        for link in links:
            strikes.transport.block(*link)
        self._outcasts.add(slave.host)
        strikes.hold_still(slave, draws, LEFT_AFTER_MS, LEFT_AFTER_MS + 300)

        def end() -> None:
            for link in links:
                strikes.transport.unblock(*link)
            self._outcasts.discard(slave.host)
            strikes.disturbed([slave.host])

        strikes.scheduler.after(LEFT_AFTER_MS + draws.between(800, 2500), end)

    def asked(self, master: BrokerProcess, command: Command) -> None:
        """`master` is about to ask for a set."""
        strikes = self._strikes
        if not strikes.may_strike(master):
            return
        members, moment = parse_set(bytes(command.body))[0], f"{master.host} {strikes.scheduler.now_ms}"
        brokers = strikes.group_with(master).brokers
        if any(item.host in self._outcasts and item.broker_id in members for item in brokers):
            strikes.chance("held-set", moment, HELD_PER_MILLE, partial(self._hold, master))
        if master.replica._set.state.blind:
            strikes.chance("held-answer", moment, HELD_PER_MILLE, partial(self._hold_answers, master))

    def _hold(self, master: BrokerProcess, draws: SimPrng) -> None:
        """What it says on the connections that it has comes late, and newer words on new ones before it."""
        strikes, late_ms = self._strikes, draws.between(500, 4000)
        controllers = {item.host for item in strikes.controllers}
        strikes.tell("late set", master.host, master.host, *controllers)
        for conn in strikes.transport.open_connections():
            if conn.host == master.host and conn.peer_host in controllers:
                strikes.transport.hold(conn, late_ms)
                strikes.scheduler.after(0, partial(strikes.transport.give_up, conn))

    def _hold_answers(self, master: BrokerProcess, draws: SimPrng) -> None:
        """Slaves acknowledge before the controllers have."""
        strikes, late_ms = self._strikes, draws.between(100, 1200)
        controllers = {item.host for item in strikes.controllers}
        strikes.tell("late answers", master.host, master.host, *controllers)
        for conn in strikes.transport.open_connections():
            if conn.host in controllers and conn.peer_host == master.host:
                strikes.transport.hold(conn, late_ms)

    def _return(self, draws: SimPrng) -> None:
        """The controllers stand still for a moment, in which a master dies and is back: it goes on in its epoch, and
        what its former life has asked for may still come."""
        found = self._pair(draws)
        if found is None:
            return
        strikes, master = self._strikes, found[0]
        for controller in strikes.controllers:
            strikes.hold_still(controller, draws, 100, 1000)
        strikes.tell("kill", master.host)
        master.kill(power_loss=False)
        strikes.restart_later(master, draws, 1, 50)
