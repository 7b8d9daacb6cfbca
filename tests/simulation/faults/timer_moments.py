"""Faults that come while copies of timer messages that are due are on their way, and behind cuts of what waited.

What a delivery must not believe before the group holds its copies, and a start not of a log that was cut, shows only if
somebody dies, or the log stands still, within that time. Ticks hit it by chance only."""

from __future__ import annotations

from functools import partial
from typing import Any

from rmqha.sim.prng import SimPrng
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess

LONGEST_HOLD_MS = 6500
"""Longer than a wait for slaves lasts (`slaveTimeout`), and not as long as a slave may be behind."""
LATEST_KILL_MS = 2500
AGAIN_MS = 4000


class TimerMoments:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self._brokers = {broker.host: broker for broker in strikes.brokers}
        self._delivering: set[str] = set()

    def stepped(self, broker: BrokerProcess) -> None:
        """After a step of `broker`."""
        was_delivering = broker.host in self._delivering
        if not (broker.alive and broker.core.timers.is_delivering):
            self._delivering.discard(broker.host)
        elif not was_delivering:
            self._delivering.add(broker.host)
            self._strike("delivery", broker, self._strike_delivery)

    def traced(self, name: str, fields: dict[str, Any]) -> None:
        """An event of a process, in the midst of its handler."""
        if name == "log_truncated" and fields["node"] in self._brokers:
            self._strike("timers-cut", self._brokers[fields["node"]], self._strike_cut)

    def _strike(self, name: str, broker: BrokerProcess, act: Any) -> None:
        strikes = self._strikes
        if strikes.begun and strikes.may_strike(broker):
            moment = f"{broker.host} {strikes.scheduler.now_ms}"
            chance = strikes.options.timer_moment_per_mille
            strikes.chance(f"at-{name}", moment, chance, partial(act, broker))

    def _strike_delivery(self, broker: BrokerProcess, draws: SimPrng) -> None:
        """The log stands still on its way to the slaves while the tables go on; half of the masters die before it goes
        on too."""
        strikes, hold_ms = self._strikes, draws.between(100, LONGEST_HOLD_MS)
        strikes.tell("late log", broker.host, *(item.host for item in strikes.group_with(broker).brokers))
        for conn in broker.ha_links.connections():
            strikes.transport.hold(conn, hold_ms)
        if draws.chance(1, 2):
            self._kill_within(draws, broker, draws.between(1, min(hold_ms, LATEST_KILL_MS)))

    def _strike_cut(self, broker: BrokerProcess, draws: SimPrng) -> None:
        """Who has just cut its log dies once it has copied what came in its place, or before."""
        self._kill_within(draws, broker, draws.between(1, AGAIN_MS))

    def _kill_within(self, draws: SimPrng, broker: BrokerProcess, after_ms: int) -> None:
        strikes, life = self._strikes, broker.life

        def kill() -> None:
            if broker.life == life and broker.alive and not strikes.over:
                strikes.tell("kill", broker.host)
                broker.kill(power_loss=False)
                strikes.restart_later(broker, draws)

        strikes.scheduler.after(after_ms, kill)
