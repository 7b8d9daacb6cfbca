"""A master that says it has handed over (ruling 18): its target holds all that it has, and it writes nothing more until
it is replaced, is told to go on, or has waited as long as it may. Where the controllers ask a master to hand over, they
elect when it has said so, and not when it has refused or says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from controller.elections.election import HANDED_OVER
from controller.state.event import Cause
from rmqha.ha.hand_over import RESUME_AFTER_MS
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.versions import TODAY, Dialect


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
        self._agreed: dict[str, int] = {}
        """By host: the epoch in which it said so last."""
        self._asked: dict[str, tuple[BrokerProcess, int, Dialect]] = {}
        """By controller: the master that it asks, the epoch that this one leads, and what it spoke then."""
        self.judged_count = 0

    def traced(self, name: str, fields: Mapping[str, Any]) -> None:
        """An event of a controller."""
        asked = None if name == "hand_over_begins" else self._asked.get(fields["node"])
        if name == "hand_over_begins":
            for broker in self._brokers:
                if broker.broker_id == fields["master"] and broker.alive and broker.replica.is_master:
                    self._asked[fields["node"]] = broker, int(broker.replica.epoch), broker.dialect
        elif name in ("hand_over_failed", "master_elected"):
            self._asked.pop(fields["node"], None)
        if asked is None or name != "master_elected":
            return
        (master, epoch, dialect), cause = asked, Cause[fields["cause"]]
        # it may be started as another release between the request and its answer
        must_agree = cause in HANDED_OVER - {Cause.DISK_FAILED} and {dialect, master.dialect} == {TODAY}
        if must_agree and epoch < fields["epoch"] and self._agreed.get(master.host, 0) < epoch:
            raise InvariantError(
                f"{fields['node']} elects replica {fields['broker_id']} ({cause.name}), and {master.host} has not said"
                f" that it hands epoch {epoch} over"
            )

    def stepped(self, master: BrokerProcess) -> None:
        replica, now_ms = master.replica, master.clock.now_ms()
        waiting, told, handed_over = replica._hand_over._waiting, self._told.get(master.host), master.handed_over
        term, end = (master.life, int(replica.epoch), master.hand_overs_cancelled), int(master.store.max_phy_offset)
        if told is not None:
            is_another = waiting is not None and not waiting.is_answered
            if told.term != term or is_another or now_ms >= told.until_ms or not replica.is_master:
                del self._told[master.host]
            elif end > told.end:
                raise InvariantError(f"{master.host} has handed over at {told.end}, and writes on up to {end}")
        if handed_over is None:
            return
        master.handed_over = None
        epoch, target, end = handed_over
        self._agreed[master.host] = epoch
        if epoch != replica.epoch or not replica.is_master:
            return
        self._told[master.host] = _Told(term, end, now_ms + RESUME_AFTER_MS)
        self.judged_count += 1
        if waiting_bytes := master.store.uncommitted_bytes:
            raise InvariantError(f"{master.host} hands over, and {waiting_bytes} bytes wait in its memory")
        for broker in self._brokers:
            if broker.broker_id == target and not broker.lost_power and broker.end_offset < end:
                raise InvariantError(f"{master.host} hands over at {end}; replica {target} ends at {broker.end_offset}")
