"""Starts from where a process is, as if it died right now: a copy of its disk is killed or loses its power, and opened.

A fault ends one process at one moment; a probe asks at many moments of a run, in the midst of handlers too, what the
next start would find. The run goes on untouched: probes have chance and disks of their own. After Mohan et al.,
"Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing" (OSDI 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from controller.quorum.raft_log import DurableRaftLog
from rmqha.model.error import StoreError
from rmqha.sim.disk import SimDisk
from rmqha.sim.prng import SimPrng
from rmqha.store.store import Store
from tests.simulation.checkers.clients import waiting_timers
from tests.simulation.checkers.logs import cuts, restart
from tests.simulation.faults.moments import OF_BROKERS
from tests.simulation.history import InvariantError
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.processes.disk_process import DiskProcess

SELDOM = 150
"""Changes of a disk between two probes in the midst of handlers, at most."""
MORE = 20
"""So much more a change counts that is not the first of its handler: what two of them promise together may be torn."""
SOON = 6
"""The same right after one of `OF_BROKERS`."""
STEPS_BETWEEN = 300
"""Steps of a broker between two probes after handlers, at most; of a controller a tenth."""


class CrashProbes:
    def __init__(
        self, prng: SimPrng, brokers: Sequence[BrokerProcess], controllers: Sequence[ControllerProcess], most_count: int
    ) -> None:
        """`most_count`: probes of each process in a run, at most; half of them in the midst of handlers."""
        self._prng = prng
        self._brokers = brokers
        self._by_host = {broker.host: broker for broker in brokers}
        self._left = {process.host: [most_count // 2] * 2 for process in (*brokers, *controllers)}
        """By host: how many more in the midst of handlers, and how many after them."""
        self._until_change = {process.host: SELDOM for process in (*brokers, *controllers)}
        self._until_step = {process.host: STEPS_BETWEEN for process in (*brokers, *controllers)}
        self._known: dict[str, tuple[int, restart.Promise]] = {}
        """By host: its life, and what its store had promised after its last step."""
        self._cut: set[str] = set()
        """Hosts whose handler under way has cut the log."""
        self._change_count: dict[str, int] = {}
        """By host: 1 if the handler under way has changed its disk."""
        self.count = 0

    def traced(self, name: str, fields: dict[str, Any]) -> None:
        """An event of a process, in the midst of its handler: what goes with it is written about now."""
        if name in OF_BROKERS and fields["node"] in self._by_host:
            host = fields["node"]
            self._until_change[host] = min(self._until_change[host], 1 + self._draws(host).below(SOON))
            self._until_step[host] = 0
        if name == "log_truncated":
            self._cut.add(fields["node"])

    def stepped(self, broker: BrokerProcess) -> None:
        """After a step of `broker`."""
        host = broker.host
        if broker.disk.watch is None:
            broker.disk.watch = partial(self._changes, broker)
        was_cut = host in self._cut
        if was_cut:
            self._cut.remove(host)
        self._change_count[host] = 0
        self._until_step[host] -= 1
        due = self._until_step[host] < 0
        known = self._known.get(host)
        if due or known is None or known[0] != broker.life or known[1].is_old(broker.store):
            self._known[host] = broker.life, restart.Promise.of(broker.store)
        if was_cut and self._may_probe(broker):
            self._probe(broker, after=True, worst=True)
        if due:
            self._until_step[host] = self._draws(host).between(1, STEPS_BETWEEN)
            if self._takes(broker, after=True):
                self._probe(broker, after=True)
                self._probe_rot(broker)

    def controller_stepped(self, controller: ControllerProcess) -> None:
        host = controller.host
        self._until_step[host] -= 10
        if self._until_step[host] < 0:
            self._until_step[host] = self._draws(host).between(1, STEPS_BETWEEN)
            if self._takes(controller, after=True):
                self._probe_controller(controller)

    def _changes(self, broker: BrokerProcess) -> None:
        """A change of its disk is about to be made, in the midst of a handler or of a start."""
        host = broker.host
        self._until_change[host] -= MORE if self._change_count.get(host) else 1
        self._change_count[host] = 1
        if self._until_change[host] > 0:
            return
        self._until_change[host] = self._draws(host).between(1, SELDOM)
        known = self._known.get(host)
        if known is not None and known[0] == broker.life and self._takes(broker, after=False):
            self._probe(broker, after=False)

    def _draws(self, host: str) -> SimPrng:
        return self._prng.child(f"{host} {self.count} {sum(self._left[host])} {self._until_change[host]}")

    @staticmethod
    def _may_probe(process: DiskProcess) -> bool:
        return process.alive and not process.has_bad_disk and not process.disk.failing

    def _takes(self, process: DiskProcess, *, after: bool) -> bool:
        left = self._left[process.host]
        if not left[after] or not self._may_probe(process):
            return False
        left[after] -= 1
        self.count += 1
        return True

    def _copy(self, process: DiskProcess, *, worst: bool = False) -> tuple[SimDisk, bool]:
        """As it is after the machine has lost its power, with all that was not synced (`worst`), or the process was
        killed."""
        draws = self._draws(process.host)
        power_loss = draws.chance(2, 3) or worst
        disk = process.disk.copy(restart.NothingSurvives(0) if draws.chance(1, 2) or worst else draws)
        disk.crash(power_loss=power_loss)
        return disk, power_loss

    def _probe(self, broker: BrokerProcess, *, after: bool, worst: bool = False) -> None:
        disk, power_loss = self._copy(broker, worst=worst)
        _, promise = self._known[broker.host]
        where = f"{broker.host}, started anew after {'a loss of power' if power_loss else 'a kill'} at this moment,"
        if power_loss:
            restart.verify_marks(where, disk, broker, after=after)
        store = restart.opened(where, disk, broker)
        found = restart.Restart(where, store, broker.store, promise, power_loss=power_loss)
        found.verify_promises()
        found.verify_queues()
        found.verify_epochs(self._master_of(broker))
        if after:
            found.verify_log()
            cuts.verify_deliveries(f"{where} its disk", disk, store, broker.core.delay_offsets)
            waiting_timers.verify_start(where, disk, store, broker)

    def _probe_rot(self, broker: BrokerProcess) -> None:
        """A kill, and a bit of the last record has rotted: that is no torn write (ruling 29)."""
        at = restart.last_body(broker.store)
        if at is None or broker.store.unclean:
            return
        disk = broker.disk.copy(self._draws(broker.host))
        disk.crash(power_loss=False)
        file_bytes = broker.config.mapped_file_size_commit_log
        disk.rot(f"commitlog/{at // file_bytes * file_bytes:020d}", at % file_bytes, 1)
        where = f"{broker.host}, started anew after a kill with a bit of its last record rotten,"
        restart.verify_rot(where, restart.opened(where, disk, broker), at)

    def _master_of(self, slave: BrokerProcess) -> Store | None:
        """The store of the master that `slave` follows and is aligned with."""
        for broker in self._brokers:
            if broker.alive and broker.config.address == slave.replica.master_address and slave.replica.is_following:
                same = broker.replica.is_master and broker.replica.epoch == slave.replica.epoch
                return broker.store if same and broker is not slave else None
        return None

    def _probe_controller(self, controller: ControllerProcess) -> None:
        disk, power_loss = self._copy(controller)
        where = f"{controller.host}, started anew after {'a loss of power' if power_loss else 'a kill'} at this moment,"
        draws = self._draws(controller.host)
        try:
            log = DurableRaftLog(disk, controller.config.controller_dleger_self_id, restart.Mute(), draws)
        except StoreError as error:
            raise InvariantError(f"{where} would not start: {error}") from error
        restart.verify_raft(where, log, controller.durable_log)
