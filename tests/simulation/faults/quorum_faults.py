"""Operators change the controllers' own group in the midst of the faults: members come and go, the leader too, disks of
those that are no members are replaced, leaderships are handed on, snapshots are asked for. And links between two of
them are cut, so that a third one decides who leads, by what it has promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmqha.model.code import RequestCode
from rmqha.raft.quorum import id_of, incarnation_of
from rmqha.sim.prng import SimPrng
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.controller_process import ControllerProcess

SOON_MS = 20
PATIENCE_MS = 300
"""Who has not heard its leader for so long asks for votes."""


def leader_of(controllers: Sequence[ControllerProcess]) -> ControllerProcess | None:
    """Of the newest term, among those that believe to lead."""
    leading = [item for item in controllers if item.alive and item.led_term is not None]
    return max(leading, key=lambda item: item.led_term or 0, default=None)


def missing_members(controllers: Sequence[ControllerProcess]) -> str:
    """What keeps a controller that the leader counts as a member from being one, or ""."""
    leader = leader_of(controllers)
    if leader is None:
        return "no controller leads"
    members = {id_of(member) for member in leader.configuration.members}
    if leader.host not in members:
        return f"{leader.host} leads the controllers and is none of {sorted(members)}"
    for process in controllers:
        if process.host in members and process.applied_index < leader.applied_index:
            return (
                f"{process.host} has applied {process.applied_index} of {leader.host}'s {leader.applied_index} entries"
            )
        if process.host in members and process.configuration.members != leader.configuration.members:
            return f"{process.host} knows another group of controllers than {leader.host}"
    return ""


class QuorumFaults:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self.kinds: Sequence[tuple[str, int, Callable[[SimPrng], None]]] = (
            ("member", strikes.options.change_members_per_mille, self._change),
            ("members", strikes.options.change_members_per_mille // 2, self._change_in_turn),
            ("transfer", strikes.options.change_members_per_mille // 3, self._transfer),
            ("deafen", strikes.options.deafen_per_mille, self._deafen),
        )
        """Name, chance per tick, and what happens."""

    def _change(self, draws: SimPrng) -> None:
        strikes = self._strikes
        leader = leader_of(strikes.controllers)
        if leader is None or leader.is_paused:
            return
        process = strikes.controllers[draws.below(len(strikes.controllers))]
        member = leader.configuration.find(process.host)
        if member is not None:
            self._ask(f"remove {process.host}", RequestCode.RMQHA_REMOVE_CONTROLLER, {"node": process.host})
        elif draws.chance(1, 4):
            strikes.tell("renew", process.host)
            if process.alive:
                process.kill(power_loss=False)
            hosts = sorted({process.host, *map(id_of, leader.configuration.members)})
            process.renew_disk(";".join(f"{host}-{host}:9878" for host in hosts))
            strikes.restart_later(process, draws)
        elif process.alive:
            ext = {
                "node": process.host,
                "incarnation": incarnation_of(process.member),
                "address": process.config.self_address,
                "learner": str(draws.chance(1, 5)).lower(),
            }
            self._ask(f"add {process.host}", RequestCode.RMQHA_ADD_CONTROLLER, ext)

    def _change_in_turn(self, draws: SimPrng) -> None:
        """Operators do not wait for each other: the next change is asked for while the first may be under way. Half of
        the time whoever leads is cut off from the other controllers just before, so that its entries are cut later."""
        leader = leader_of(self._strikes.controllers)
        if leader is None or leader.is_paused:
            return
        if draws.chance(1, 2):
            self._isolate(leader, draws)
        for number in range(draws.between(2, 3)):
            self._strikes.scheduler.after(
                draws.between(0, SOON_MS), partial(self._change_one, draws.child(str(number)))
            )

    def _change_one(self, draws: SimPrng) -> None:
        if not self._strikes.over:
            self._change(draws)

    def _isolate(self, leader: ControllerProcess, draws: SimPrng) -> None:
        """From the other controllers: brokers and operators still reach it."""
        strikes = self._strikes
        others = [item.host for item in strikes.controllers if item is not leader]
        links = [link for other in others for link in ((leader.host, other), (other, leader.host))]
        strikes.tell("isolate", leader.host, leader.host, *others)
        for link in links:
            strikes.transport.block(*link)

        def end() -> None:
            for link in links:
                strikes.transport.unblock(*link)
            strikes.disturbed((leader.host,))

        strikes.scheduler.after(draws.between(300, 3000), end)

    def _deafen(self, draws: SimPrng) -> None:
        """One controller and the leader hear each other no more. Those that hear both stand by the leader; they die and
        are back at once, while its lease may still hold and the other asks for their votes."""
        strikes, leader = self._strikes, leader_of(self._strikes.controllers)
        others = [item for item in strikes.controllers if item is not leader]
        if leader is None or leader.is_paused or len(others) < 2:
            return
        deaf = others.pop(draws.below(len(others)))
        strikes.tell("deafen", deaf.host, leader.host, deaf.host)
        links = (leader.host, deaf.host), (deaf.host, leader.host)
        for link in links:
            strikes.transport.block(*link)

        def blink() -> None:
            for process in others:
                if process.alive and not process.is_paused and not strikes.over:
                    strikes.tell("blink", process.host)
                    process.kill(power_loss=False)
                    strikes.restart_later(process, draws, 1, SOON_MS)

        def end() -> None:
            for link in links:
                strikes.transport.unblock(*link)
            strikes.disturbed((deaf.host,))

        after_ms = 0
        for _ in range(draws.between(2, 5)):
            after_ms += draws.between(PATIENCE_MS, 3 * PATIENCE_MS)
            strikes.scheduler.after(after_ms, blink)
        strikes.scheduler.after(after_ms + PATIENCE_MS, end)

    def _transfer(self, draws: SimPrng) -> None:
        if draws.chance(1, 2):
            self._ask("transfer", RequestCode.RMQHA_TRANSFER_LEADERSHIP, {})
        else:
            self._ask("snapshot", RequestCode.RMQHA_TAKE_SNAPSHOT, {})

    def _ask(self, what: str, code: RequestCode, ext: dict[str, str]) -> None:
        """Of every controller that believes to lead."""
        for process in self._strikes.controllers:
            if process.alive and not process.is_paused and process.led_term is not None:
                self._strikes.tell(what, process.host)
                process.ask(Command(code, dict(ext), flag=FLAG_ONEWAY))
