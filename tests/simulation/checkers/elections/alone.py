"""Ruling 5: what a group does while no controller is alive, once nothing else has happened for a while. AP: its master
takes sends, and what a member owes for long holds nothing back. CP: its master takes sends exactly if every member of
the confirmed set follows it. In both: who starts meanwhile is no master by memory."""

from __future__ import annotations

from collections.abc import Sequence

from rmqha.ha.controller_client import AWAY_AFTER_MS
from rmqha.model.code import ResponseCode
from rmqha.model.identity import Role
from rmqha.model.offset import BrokerId
from rmqha.sim.scheduler import Scheduler
from tests.simulation.checkers.elections.causes import Causes
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

NOTICED_MS = AWAY_AFTER_MS + 1500
"""Controllers that have been dead for so long count as away, by a clock that is slow, with an answer that came late."""
SETTLED_MS = 1500
"""After the last fault: who died has been missed, who can follow follows."""
SHRUNK_MS = 4500
"""In AP after the last fault: who is gone has left the set, though no controller says so: after half a second's grace,
and when the controllers have been asked twice for 1.5 s in vain, 0.5 s apart."""
STALLED_MS = 2000
"""Who is silent, but may be there, leaves so much later (haAckStallBoundMs)."""


class Alone:
    """Of one group."""

    def __init__(
        self,
        scheduler: Scheduler,
        causes: Causes,
        brokers: Sequence[BrokerProcess],
        controllers: Sequence[ControllerProcess],
        *,
        cp: bool,
    ) -> None:
        self._scheduler = scheduler
        self._causes = causes
        self._brokers = brokers
        self._controllers = controllers
        self._cp = cp
        self._gone_at_ms: int | None = None
        """Since when no controller is alive."""
        self._lives: dict[str, int] = {}
        """Of the brokers at that moment."""
        self._owed: tuple[tuple[str, int, int], int] | None = None
        """AP: the master, its life and the moment of the last fault; its end when it was first seen after that."""
        self.verdict_count = 0
        """How often there was something to judge."""

    def elected(self, broker: BrokerProcess) -> None:
        """`broker` takes the role of master."""
        if self._is_alone() and self._lives[broker.host] != broker.life:
            raise InvariantError(
                f"{broker.host} has started while all controllers were dead, and is master of epoch"
                f" {broker.replica.epoch} by memory"
            )

    def stepped(self, broker: BrokerProcess) -> None:
        if not self._is_alone() or broker.replica.role is not Role.MASTER or broker.replica.hands_over:
            return
        assert self._gone_at_ms is not None
        now_ms, faulty_at_ms = self._scheduler.now_ms, self._causes.disturbed_at_ms
        quiet_ms = now_ms - max(faulty_at_ms, *(item.disturbed_at_ms for item in self._brokers))
        if now_ms - self._gone_at_ms < NOTICED_MS or quiet_ms < SETTLED_MS or self._causes.links_disturbed:
            return
        if self._cp:
            self._judge_cp(broker)
        else:
            self._judge_ap(broker, faulty_at_ms, quiet_ms)

    def _is_alone(self) -> bool:
        for controller in self._controllers:
            if controller.alive:
                self._gone_at_ms = None
                return False
        if self._gone_at_ms is None:
            self._gone_at_ms = self._scheduler.now_ms
            self._lives = {broker.host: broker.life for broker in self._brokers}
        return True

    def _judge_cp(self, master: BrokerProcess) -> None:
        set_manager = master.replica._set
        state = set_manager.state
        confirmed, union = (self._others(master, members) for members in (state.confirmed, state.union))
        code, refusal = master.driver.admission()
        takes = code is ResponseCode.SUCCESS
        gone = [broker.host for broker in confirmed if self._is_gone(broker, master)]
        if takes and gone:
            raise InvariantError(
                f"{master.host} takes sends; {gone} of the confirmed set {list(state.confirmed)} are gone, and no"
                " controller is alive"
            )
        here = all(_follows(broker, master) and not broker.is_paused for broker in union)
        enough = not state.blind and len(state.confirmed) >= set_manager.majority
        if not takes and enough and here and not set_manager.drained_ids:
            raise InvariantError(
                f"{master.host} refuses sends ({refusal}); all of its set {list(state.union)} follow it, and no"
                " controller is alive"
            )
        self.verdict_count += 1

    def _judge_ap(self, master: BrokerProcess, faulty_at_ms: int, quiet_ms: int) -> None:
        code, refusal = master.driver.admission()
        if code is not ResponseCode.SUCCESS:
            raise InvariantError(f"{master.host} refuses sends in AP ({refusal}) while no controller is alive")
        key = (master.host, master.life, faulty_at_ms)
        if self._owed is None or self._owed[0] != key:
            self._owed = key, master.store.max_phy_offset
        elif quiet_ms >= self._shrunk_ms() and master.store.confirm_offset < self._owed[1]:
            raise InvariantError(
                f"{master.host} shows {master.store.confirm_offset} and had {self._owed[1]} long ago: its set"
                f" {list(master.replica._set.state.union)} has not shrunk though nothing holds it in AP"
            )
        self.verdict_count += 1

    def _shrunk_ms(self) -> int:
        silent = any(broker.lost_power or broker.is_paused for broker in self._brokers)
        return SHRUNK_MS + (STALLED_MS if silent else 0)

    def _others(self, master: BrokerProcess, members: Sequence[BrokerId]) -> list[BrokerProcess]:
        return [broker for broker in self._brokers if broker is not master and broker.broker_id in members]

    @staticmethod
    def _is_gone(broker: BrokerProcess, master: BrokerProcess) -> bool:
        """A process that was killed, or whose life has begun while nobody could tell it of a master, or that follows
        another. Who lost its power is not missed at once, who stands still may be there."""
        return not broker.lost_power and not broker.is_paused and not _follows(broker, master)


def _follows(broker: BrokerProcess, master: BrokerProcess) -> bool:
    replica = broker.replica
    return broker.alive and replica.is_following and replica.master_address == master.config.address
