"""Faults of disks and machines: stops between two changes of a disk, syncs that forget or lie, sectors that rot or
cannot be read, bits that flip on the way, clocks that stand still or jump, disks of before.

What rots or is lost by a lie is one replica's of each group, and one controller's of three: a majority keeps sound
copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.state.replicas_info import BrokerGroup as KnownGroup
from rmqha.ha.controller_client import RegistrationState
from rmqha.model.offset import PhyOffset
from rmqha.sim.disk import SECTOR_BYTES, SimDisk
from rmqha.sim.prng import SimPrng
from tests.simulation.faults.strikes import Strikes
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess

Struck = BrokerProcess | ControllerProcess
MOST_CHANGES = 40
"""A handler seldom makes more changes of its disk."""
UNTOUCHED_BYTES = 4096
"""Of the log's end: what is written now may be torn, and is told from rot by other rules."""
LOOK_MS = 50
LARGE = ("commitlog/", "consumequeue/", "batchconsumequeue/", "index/")


class DiskFaults:
    def __init__(self, strikes: Strikes) -> None:
        self._strikes = strikes
        self._rotten: dict[str, str] = {}
        """By group: the host whose disk may rot in this run."""
        self._ended: dict[str, int] = {}
        """By host: how often its bad disk has ended it."""
        self._copies: dict[str, tuple[int, SimDisk]] = {}
        """By host: a copy of its disk, and the highest epoch that it has accepted."""
        options = strikes.options
        self.kinds: Sequence[tuple[str, int, Callable[[SimPrng], None]]] = (
            ("stop", options.stop_per_mille, self._stop),
            ("suspend", options.suspend_per_mille, self._suspend),
            ("clock-step-controller", options.step_controller_per_mille, self._step_controller),
            ("flip", options.flip_per_mille, self._flip),
            ("forget-sync", options.forget_sync_per_mille, self._forget_sync),
            ("lie", options.lie_per_mille, self._lie),
            ("rot-log", options.rot_log_per_mille, self._rot_log),
            ("misdirect", options.misdirect_per_mille, self._misdirect),
            ("rot-file", options.rot_file_per_mille, self._rot_file),
            ("restore", options.restore_broker_per_mille, self._restore),
        )
        """Name, chance per tick, and what happens."""

    def heal(self) -> None:
        strikes = self._strikes
        for process in (*strikes.controllers, *strikes.brokers):
            process.stop_no_more()
            process.disk.forgetting_syncs = process.disk.lying_syncs = 0
        for broker in strikes.brokers:
            broker.flip_next = None

    def stop_within(self, process: Struck, draws: SimPrng, change_count: int, *, power_loss: bool) -> None:
        """Let `process` die at that change of its disk, in the midst of whatever it does then."""
        strikes = self._strikes

        def strike() -> None:
            may = not isinstance(process, BrokerProcess) or strikes.may_lose_power(process)
            strikes.tell("stop", process.host)
            process.kill(power_loss=power_loss and may)
            strikes.restart_later(process, draws)

        if process.alive:
            process.stop_within(change_count, strike)

    def _stop(self, draws: SimPrng) -> None:
        process = self._any(draws)
        power_loss = draws.chance(1, 3)
        self.stop_within(process, draws, draws.between(1, MOST_CHANGES), power_loss=power_loss)

    def _any(self, draws: SimPrng) -> Struck:
        """A controller now and then."""
        strikes = self._strikes
        if strikes.options.spared or not draws.chance(1, 4):
            return strikes.broker_of(draws)
        return strikes.controllers[draws.below(len(strikes.controllers))]

    def _suspend(self, draws: SimPrng) -> None:
        strikes, process = self._strikes, self._any(draws)
        if not process.alive or process.is_paused:
            return
        strikes.tell("suspend", process.host)
        process.pause()
        life, began_at_ms = process.life, strikes.scheduler.now_ms

        def resume() -> None:
            if process.life == life and process.alive and process.is_paused:
                process.clock.suspended_for(strikes.scheduler.now_ms - began_at_ms)
                process.resume()
                strikes.disturbed((process.host,))

        strikes.scheduler.after(draws.between(100, 4000), resume)

    def _step_controller(self, draws: SimPrng) -> None:
        process = self._strikes.controllers[draws.below(len(self._strikes.controllers))]
        self._strikes.tell("clock-step", process.host)
        process.clock.step_wall(draws.between(-3_600_000, 3_600_000))

    def _flip(self, draws: SimPrng) -> None:
        """On the way to one replica of each group, whoever is master."""
        broker = self._rotting(draws)
        if broker is None:
            return
        self._strikes.tell("flip", broker.host)
        for other in self._strikes.group_with(broker).brokers:
            other.flip_next = broker.host, draws

    # --- disks of before --------------------------------------------------------------------------------------------
    def _restore(self, draws: SimPrng) -> None:
        """A slave's disk is copied, as by a snapshot of its virtual machine; or the slave dies, and gets the copy of an
        older epoch, while it is in the set and the others hold all."""
        strikes = self._strikes
        group = strikes.group_of(draws)
        broker = group.members[draws.below(len(group.members))]
        if not broker.alive or broker.store.unclean or broker.replica.is_master:
            return
        epoch, disk = self._copies.get(broker.host, (-1, None))
        known = self._applied(group.name)
        if disk is None or known is None or broker.broker_id not in known.sync_state_set:
            self._copies[broker.host] = int(broker.store.highest_epoch), broker.disk.copy(draws)
            return
        if epoch < known.master_epoch == known.replicas[broker.broker_id].joined_epoch and group.do_without(broker):
            strikes.tell("restore", broker.host)
            strikes.wiped(broker)
            disk.crash(power_loss=False)
            broker.restore_disk(disk)
            del self._copies[broker.host]
            strikes.restart_later(broker, draws)
            self._until_known(broker)

    def _applied(self, name: str) -> KnownGroup | None:
        """The group as some controller has applied it last."""
        newest = max(self._strikes.controllers, key=lambda item: (item.wipe_count, item.applied_index))
        return newest.machine.info.groups.get(name)

    def _until_known(self, broker: BrokerProcess) -> None:
        """Judge the replica as others once the controllers have heard it."""
        if broker.alive and broker.replica._controller.state is RegistrationState.REGISTERED:
            broker.is_restored = False
        else:
            self._strikes.scheduler.after(LOOK_MS, lambda: self._until_known(broker))

    # --- one disk of each group -------------------------------------------------------------------------------------
    def _rotting(self, draws: SimPrng) -> BrokerProcess | None:
        """The replica of a group whose disk is the bad one; None if others would not do without it."""
        group = self._strikes.group_of(draws)
        host = self._rotten.setdefault(group.name, group.members[draws.below(len(group.members))].host)
        broker = next(broker for broker in group.members if broker.host == host)
        if not self._are_well(broker):
            return None
        broker.has_bad_disk = True
        return broker

    def _rotting_controller(self, draws: SimPrng) -> ControllerProcess | None:
        controllers = self._strikes.controllers
        if len(controllers) < 3 or self._strikes.options.spared:
            return None
        names = [process.host for process in controllers]
        host = self._rotten.setdefault("controllers", names[draws.below(len(names))])
        well = all(process.alive for process in controllers if process.host != host)
        if not well:
            return None
        controllers[names.index(host)].has_bad_disk = True
        return controllers[names.index(host)]

    def _one_bad(self, draws: SimPrng) -> Struck | None:
        return self._rotting_controller(draws) if draws.chance(1, 4) else self._rotting(draws)

    def _replace(self, broker: BrokerProcess) -> None:
        self._strikes.tell("new-disk", broker.host)
        self._strikes.wiped(broker)
        broker.replace_disk()
        broker.boot()

    def look_after(self) -> None:
        """A bad disk may end its process at any time: that is started again, and the second time with a new disk."""
        for broker in self._strikes.brokers:
            if broker.has_bad_disk and not broker.alive and broker.failed:
                self._ended[broker.host] = count = self._ended.get(broker.host, 0) + 1
                if count > 1 and self._strikes.group_with(broker).do_without(broker):
                    self._replace(broker)
                else:
                    self._strikes.tell("start", broker.host)
                    broker.boot()

    def _are_well(self, one: BrokerProcess) -> bool:
        """Whether the other replicas of its group are."""
        others = [broker for broker in self._strikes.group_with(one).members if broker is not one]
        return len(others) > 1 and all(item.alive and not item.store.unclean and not item.lost_power for item in others)

    def _forget_sync(self, draws: SimPrng) -> None:
        process = self._one_bad(draws)
        if process is None or not process.alive:
            return
        strikes, life = self._strikes, process.life
        strikes.tell("forget-sync", process.host)
        process.disk.forgetting_syncs = 1

        def look() -> None:
            if process.life == life and not process.alive and not strikes.over:
                strikes.tell("sync-failed", process.host)
                if draws.chance(1, 2):
                    process.disk.drop_cache()
                strikes.restart_later(process, draws)
                strikes.scheduler.after(draws.between(1, 4000), process.disk.drop_cache)

        strikes.scheduler.after(draws.between(20, 400), look)

    def _lie(self, draws: SimPrng) -> None:
        broker = self._rotting(draws)
        if broker is None or not broker.alive:
            return
        strikes = self._strikes
        strikes.tell("lie", broker.host)
        broker.disk.lying_syncs = draws.between(1, 3)
        broker.disk.misdirects = False  # text over the end of a record takes its checksum along

        def lose_power() -> None:
            if broker.alive and not strikes.over and strikes.may_lose_power(broker):
                strikes.tell("power", broker.host)
                broker.kill(power_loss=True)
                strikes.restart_later(broker, draws)

        strikes.scheduler.after(draws.between(50, 2000), lose_power)

    def _rot_log(self, draws: SimPrng) -> None:
        broker = self._rotting(draws)
        if broker is None or not broker.alive:
            return
        start, end = int(broker.store.min_phy_offset), int(broker.store.max_phy_offset)
        if end - start >= 4096 and broker.rot_byte(draws.between(start, end - 512), 1 << draws.below(8)):
            self._strikes.tell("rot-log", broker.host)

    def _misdirect(self, draws: SimPrng) -> None:
        """A write lands at another place of the file; in half of the cases its own keeps what stood there before."""
        broker = self._rotting(draws)
        if broker is None or not broker.alive:
            return
        file_bytes, log = broker.config.mapped_file_size_commit_log, broker.store
        start = draws.between(int(log.min_phy_offset), int(log.max_phy_offset)) // file_bytes * file_bytes
        low, high = (
            max(start, int(log.min_phy_offset)),
            min(start + file_bytes, int(log.max_phy_offset) - UNTOUCHED_BYTES),
        )
        first, last = -(-low // SECTOR_BYTES), high // SECTOR_BYTES - 1
        if last - first < 2:
            return
        aim, landed = (draws.between(first, last) * SECTOR_BYTES for _ in range(2))
        written = bytes(log.view(PhyOffset(aim), SECTOR_BYTES))
        struck = broker.overwrite(landed, written)
        if struck and draws.chance(1, 2):
            broker.overwrite(aim, bytes(SECTOR_BYTES))
        if struck:
            self._strikes.tell("misdirect", broker.host)

    def _rot_file(self, draws: SimPrng) -> None:
        """It dies, and comes back with a small file that has rotted or cannot be read. If it refuses to start, its
        operator gives it an empty disk."""
        process, strikes = self._one_bad(draws), self._strikes
        if process is None or not process.alive:
            return
        paths = [path for path in process.disk.paths() if not path.startswith(LARGE) and path not in ("lock", "abort")]
        if not paths:
            return
        path = paths[draws.below(len(paths))]
        strikes.tell(f"rot {path}", process.host)
        process.kill(power_loss=False)
        if isinstance(process, BrokerProcess):
            process.lost_power = True
        if draws.chance(1, 4):
            process.disk.spoil(path, 0)
        else:
            process.disk.rot_sector(path, draws)

        def start() -> None:
            if process.alive:
                return
            strikes.tell("start", process.host)
            process.boot()

        strikes.scheduler.after(draws.between(1, strikes.options.restart_after_ms), start)
