"""The worst choice that an operator can make, in CP: the only replica that lives lacks what the two others have
acknowledged, and is elected uncleanly. From then on no replica may give away a whole record without a word
(docs/start/guarantees.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.sim.prng import SimPrng
from rmqha.sim.scheduler import Scheduler
from rmqha.sim.tracer import SimTracer
from rmqha.sim.transport import Transport
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.checkers.logs.copies import end_of_records
from tests.simulation.checkers.logs.keeping import Keeping
from tests.simulation.history import Send
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

MOST_LACKED = 20
"""Acknowledged messages that the replica lacks, at most: it is drawn."""
ASKED_AGAIN_MS = 1000
ANSWERS_MS = 2000
"""Time until the last answers of those that were killed have reached their clients."""
REIGN_MS = 3000
"""Time that the stale master has before its operator looks at the others again, at most."""


class StaleElection:
    """Of one group of three that is whole, once. `lack` is asked again and again, and goes one step further."""

    def __init__(
        self,
        group: BrokerGroup,
        controllers: Sequence[ControllerProcess],
        scheduler: Scheduler,
        transport: Transport,
        prng: SimPrng,
        tracer: SimTracer,
    ) -> None:
        self._group = group
        self._controllers = controllers
        self._scheduler = scheduler
        self._transport = transport
        self._prng = prng
        self._tracer = tracer
        slaves = [broker for broker in group.members if not broker.replica.is_master]
        self._stale = slaves[prng.below(len(slaves))]
        self._holders = [broker for broker in group.members if broker is not self._stale]
        self._chosen = self._holders[prng.below(2)] if prng.chance(1, 3) else None
        """The replica that the operator elects in the end, seeing what has been lost."""
        self._dies_too = prng.chance(1, 2)
        self._steps = iter((self._cut_off, self._fall_behind, self._kill, self._elect, self._return, self._judge))
        self._step = next(self._steps)
        self._due_acked = self._end_offset = 0
        self._asked_at_ms = self._until_ms = 0
        self.keeping = Keeping()

    def lack(self) -> str:
        self._group.causes.disturbed()
        return self._step()

    def _go_on(self) -> str:
        step = next(self._steps, None)
        if step is None:
            return ""
        self._step = step
        return self.lack()

    def _cut_off(self) -> str:
        """The stale one, from all but its clients, or killed."""
        self._tell("cut-off", self._stale)
        if self._dies_too:
            self._stale.kill(power_loss=False)
        else:
            for link in self._links():
                self._transport.block(*link)
        return self._go_on()

    def _links(self) -> list[tuple[str, str]]:
        others = [item.host for item in (*self._holders, *self._controllers)]
        own = self._stale.host
        return [link for other in others for link in ((own, other), (other, own))]

    def _fall_behind(self) -> str:
        masters = [broker for broker in self._holders if broker.alive and broker.replica.is_master]
        if len(masters) != 1 or self._stale.broker_id in (masters[0].replica.state(0).sync_state_set or ()):
            return f"{self._stale.host} is in the set still"
        acked_count = len(self._acked_behind(int(self._stale.store.max_phy_offset)))
        self._due_acked = self._due_acked or self._prng.between(1, MOST_LACKED)
        return self._go_on() if acked_count >= self._due_acked else f"{acked_count} of {self._due_acked} are acked"

    def _acked_behind(self, end_offset: int) -> list[Send]:
        return [send for send in self._group.history.acked if send.phy_offset >= end_offset]

    def _kill(self) -> str:
        for broker in self._holders:
            self._tell("kill", broker)
            broker.kill(power_loss=False)
            self.keeping.holds(broker, end_of_records(broker, int(broker.store.max_phy_offset)))
            broker.checks = (*broker.checks, self.keeping.stepped)
        self._asked_at_ms = self._scheduler.now_ms + ANSWERS_MS
        if self._dies_too:
            self._stale.boot()
        for link in self._links():
            self._transport.unblock(*link)
        return self._go_on()

    def _elect(self) -> str:
        """Asked again until it leads: the controllers may not know yet that it is back."""
        if self._leads(self._stale):
            self._group.given_up |= {send.key for send in self._acked_behind(self._end_offset)}
            self._until_ms = self._scheduler.now_ms + self._prng.between(0, REIGN_MS)
            return self._go_on()
        return self._ask_for(self._stale)

    @staticmethod
    def _leads(broker: BrokerProcess) -> bool:
        return broker.alive and broker.replica.is_master

    def _ask_for(self, broker: BrokerProcess) -> str:
        if self._scheduler.now_ms >= self._asked_at_ms:
            self._asked_at_ms = self._scheduler.now_ms + ASKED_AGAIN_MS
            self._tell("elect", broker)
            self._end_offset = int(broker.store.max_phy_offset)
            self._group.accepted_loss(self._end_offset)
            self._group.clients[0].elect_unclean(self._controllers[0].config.peers, self._group.name, broker)
        return f"{broker.host} is not elected"

    def _return(self) -> str:
        """The others come back, one after the other. What was under way to the stale one has reached it since: it may
        lack nothing any more."""
        for broker in self._holders:
            if not broker.alive and (self._prng.chance(1, 4) or self._scheduler.now_ms >= self._until_ms):
                self._tell("start", broker)
                broker.boot()
        if away := [broker.host for broker in self._holders if not broker.alive]:
            return f"{away} are away"
        refusing = [broker for broker in self._holders if self.keeping.end_of(broker) > self._end_offset]
        silent = [broker.host for broker in refusing if not broker.replica.state(0).refusal]
        if silent:
            return f"{silent} do not refuse"
        if len(refusing) < len(self._holders):
            self._chosen = None  # one follows, and what both have acknowledged since would be lost for it
        return self._go_on()

    def _judge(self) -> str:
        """The operator has seen the refusals, and stays by the stale master or takes another one."""
        if self._chosen is not None and not self._leads(self._chosen):
            return self._ask_for(self._chosen)
        if self._chosen is not None:
            self._group.given_up.clear()
        self.keeping.end(self._holders)
        return self._go_on()

    def _tell(self, what: str, broker: BrokerProcess) -> None:
        self._tracer.event("fault", what=f"stale-{what}", whom=broker.host)
