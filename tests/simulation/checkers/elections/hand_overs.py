"""A master that says it has handed over (ruling 18): its target holds all that it has, and it writes nothing more until
it is replaced, is told to go on, or has waited as long as it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmqha.ha.hand_over import RESUME_AFTER_MS
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess


class _Told(NamedTuple):
    """`term` is the life, the epoch and how often it was told to go on: a change of one ends the hand-over, as do
    another one and its own clock at `until_ms`."""

    term: tuple[int, int, int]
    end: int
    until_ms: int


class HandOvers:
    """`brokers` are the replicas that may become master."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._brokers = brokers
        self._told: dict[str, _Told] = {}
        """By host: where its log ended when it said so."""
        self.judged_count = 0

    def stepped(self, master: BrokerProcess) -> None:
        replica, now_ms = master.replica, master.clock.now_ms()
        waiting, told, handed_over = replica._switch._waiting, self._told.get(master.host), master.handed_over
        term, end = (master.life, int(replica.epoch), master.hand_overs_cancelled), int(master.store.max_phy_offset)
        if told is not None:
            is_another = waiting is not None and not waiting.told
            if told.term != term or is_another or now_ms >= told.until_ms or not replica.is_master:
                del self._told[master.host]
            elif end > told.end:
                raise InvariantError(f"{master.host} has handed over at {told.end}, and writes on up to {end}")
        if handed_over is None:
            return
        master.handed_over = None
        epoch, target, end = handed_over
        if epoch != replica.epoch or not replica.is_master:
            return
        self._told[master.host] = _Told(term, end, now_ms + RESUME_AFTER_MS)
        self.judged_count += 1
        if waiting_bytes := master.store.uncommitted_bytes:
            raise InvariantError(f"{master.host} hands over, and {waiting_bytes} bytes wait in its memory")
        for broker in self._brokers:
            if broker.broker_id == target and not broker.lost_power and broker.end_offset < end:
                raise InvariantError(f"{master.host} hands over at {end}; replica {target} ends at {broker.end_offset}")
