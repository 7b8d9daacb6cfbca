"""Draws faults at every tick while the chaos lasts, and undoes all of them afterwards.

Every fault has a key, its kind and its moment, and draws from that key only. So a run can be repeated with some of its
faults (`only`): the others stay as they were, and a failure is shrunk to the faults that it needs."""

from __future__ import annotations

from rmqha.model.code import RequestCode
from rmqha.sim.prng import SimPrng
from rmqha.sim.transport import Connection, Delays
from rmqha.wire.command import FLAG_ONEWAY, Command
from tests.simulation.broker_group import BrokerGroup
from tests.simulation.checkers.elections.roles import half_bytes
from tests.simulation.faults.disk_faults import DiskFaults
from tests.simulation.faults.moments import Moments
from tests.simulation.faults.quorum_faults import QuorumFaults
from tests.simulation.faults.set_faults import SetFaults
from tests.simulation.faults.strikes import Stage, Strikes
from tests.simulation.faults.timer_moments import TimerMoments
from tests.simulation.faults.version_faults import CleanStops, VersionFaults
from tests.simulation.processes.broker_process import BrokerProcess
from tests.simulation.processes.controller_process import ControllerProcess
from tests.simulation.tuning import tuned_broker, tuned_controller

KILL_ALL_MS = 2000


DAY_MS = 86_400_000


class Faults(Strikes):
    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._rolling = False
        self._disks = DiskFaults(self)
        self._quorum = QuorumFaults(self)
        self._versions = VersionFaults(self)
        self._clean_stops = CleanStops(self)
        self.sets = SetFaults(self)
        self.moments = Moments(self, self._disks)
        self.timer_moments = TimerMoments(self)

    def start(self) -> None:
        self.begun, self.over = True, False
        self.scheduler.after(self.options.fault_tick_ms, self._tick)

    def stop(self) -> None:
        """Heal everything; the processes that are down start."""
        self.over = True
        self.tell("heal", "all", *self._hosts_struck())
        self.transport.heal()
        for broker in self.brokers:
            broker.repair_disk()
            if self.options.timed_per_mille:
                broker.clock.set_ahead(DAY_MS)  # whatever jumps there were: all that waits is due
        self._disks.heal()
        for process in (*self.controllers, *self.name_servers, *self.brokers):
            if not process.alive:
                process.boot()
            elif process.is_paused:
                process.resume()

    def _tick(self) -> None:
        if self.over:
            return
        options = self.options
        for name, per_mille, act in (
            ("kill", options.kill_broker_per_mille, self._kill),
            ("power", options.power_broker_per_mille, self._power),
            ("pause", options.pause_broker_per_mille, self._pause),
            ("cut", options.cut_per_mille, self._cut),
            ("one-way", options.one_way_per_mille, self._one_way),
            ("slow", options.slow_per_mille, self._slow),
            ("kill-controller", options.kill_controller_per_mille, self._kill_controller),
            ("wipe-controller", options.wipe_controller_per_mille, self._wipe_controller),
            ("away", options.all_controllers_away_per_mille, self._all_away),
            ("heal", options.heal_per_mille, self._heal),
            ("clean", options.clean_per_mille, self._clean),
            ("fail-disk", options.fail_disk_per_mille, self._fail_disk),
            ("stick", options.stick_per_mille, self._stick),
            ("orphan", options.orphan_per_mille, self._orphan),
            ("pause-controller", options.pause_controller_per_mille, self._pause_controller),
            ("clock-step", options.clock_step_per_mille, self._step_clock),
            ("slow-disk", options.slow_disk_per_mille, self._slow_disk),
            ("rot", options.rot_per_mille, self._rot),
            ("live-rot", options.live_rot_per_mille, self._live_rot),
            ("switch", options.switch_per_mille, self._switch),
            ("resize", options.resize_per_mille, self._resize),
            ("drain", options.drain_per_mille, self._drain),
            ("kill-name-server", options.kill_name_server_per_mille, self._kill_name_server),
            ("hang-disk", options.hang_disk_per_mille, self._hang_disk),
            ("roll", options.roll_per_mille, self._roll),
            ("reset", options.reset_per_mille, self._reset),
            ("wipe-broker", options.wipe_broker_per_mille, self._wipe_broker),
            ("isolate", options.isolate_per_mille, self._isolate),
            ("kill-all", options.kill_all_per_mille, self._kill_all),
            *self._disks.kinds,
            *self._quorum.kinds,
            *self._versions.kinds,
            *self._clean_stops.kinds,
            *self.sets.kinds,
        ):
            if per_mille:
                self.chance(name, str(self.scheduler.now_ms), per_mille, act)
        self._disks.look_after()
        self.scheduler.after(options.fault_tick_ms, self._tick)

    def _kill(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        if broker.alive:
            self.tell("kill", broker.host)
            broker.kill(power_loss=False)
            self.restart_later(broker, draws)

    def _kill_all(self, draws: SimPrng) -> None:
        """None loses its power. Who dies early leaves the set and lacks what the others acknowledge then; who is back
        first knows the confirm offset of its last save."""
        for broker in self.group_of(draws).brokers:
            self._kill_later(broker, draws, draws.between(0, KILL_ALL_MS))

    def _kill_later(self, broker: BrokerProcess, draws: SimPrng, after_ms: int) -> None:
        life = broker.life

        def die() -> None:
            if broker.alive and broker.life == life and not self.over:
                self.tell("kill", broker.host)
                broker.kill(power_loss=False)
                self.restart_later(broker, draws)

        self.scheduler.after(after_ms, die)

    def half_stepped(self, broker: BrokerProcess) -> None:
        """After a step of `broker`: its master may die while half a record stands at its log's end."""
        if broker.replica.is_master or not self.may_strike(broker) or not half_bytes(broker):
            return
        masters = [item for item in self.group_with(broker).brokers if item.alive and item.replica.is_master]
        if masters:
            moment = f"{broker.host} {self.scheduler.now_ms}"
            self.chance(
                "half", moment, self.options.kill_half_per_mille, lambda draws: self._kill_later(masters[-1], draws, 0)
            )

    def elected(self, broker: BrokerProcess) -> None:
        """A new master may die before it has done anything, or in the middle of it."""
        self._dies_soon("elected", broker, self.options.kill_elected_per_mille)
        per_mille = self.options.wipe_elected_per_mille
        if per_mille and self.may_strike(broker):
            moment = f"{broker.host} {self.scheduler.now_ms}"
            self.chance("wipe-elected", moment, per_mille, self._forget_election)

    def _forget_election(self, draws: SimPrng) -> None:
        """The sole controller loses its disk when the new master has hardly begun, and no link is cut any more: who led
        before may have the longer log."""

        def strike() -> None:
            if not self.over:
                self.tell("heal", "all", *self._hosts_struck())
                self.transport.heal()
                self._wipe_controller(draws)

        self.scheduler.after(draws.between(1, 400), strike)

    def cut(self, broker: BrokerProcess) -> None:
        """So may a replica that has just cut a fork off its log."""
        self._dies_soon("cut-log", broker, self.options.kill_cut_per_mille)

    def told(self, broker: BrokerProcess, epoch: int) -> None:
        """So may a replica that has just heard of a new master, before it has greeted it. An older notice, held up on
        its way, reaches its next life before that has asked the controllers."""
        life = broker.life

        def die(draws: SimPrng) -> None:
            self.scheduler.after(0, lambda: kill(draws))

        def kill(draws: SimPrng) -> None:
            if broker.alive and broker.life == life and not self.over:
                self.tell("kill-told", broker.host)
                broker.kill(power_loss=False)
                self.scheduler.after(draws.between(1, 50), start)

        def start() -> None:
            if self.over or broker.alive:
                return
            self.tell("start", broker.host)
            broker.boot()
            for process in self.controllers:
                if process.alive and not process.is_paused:
                    process.repeat_older(broker.config.address, epoch)

        if self.may_strike(broker) and self.options.kill_told_per_mille:
            moment = f"{broker.host} {self.scheduler.now_ms}"
            self.chance("told", moment, self.options.kill_told_per_mille, die)

    def _dies_soon(self, name: str, broker: BrokerProcess, per_mille: int) -> None:
        life = broker.life

        def begin(draws: SimPrng) -> None:
            self.scheduler.after(draws.below(40), lambda: die(draws))

        def die(draws: SimPrng) -> None:
            if broker.alive and broker.life == life and not self.over:
                self.tell(f"kill-{name}", broker.host)
                broker.kill(power_loss=False)
                self.restart_later(broker, draws)

        if self.may_strike(broker) and per_mille:
            self.chance(name, f"{broker.host} {self.scheduler.now_ms}", per_mille, begin)

    def _power(self, draws: SimPrng) -> None:
        """ASYNC_FLUSH promises to survive power loss of a minority: replicas not whole again count as lost (ruling 3).
        SYNC_FLUSH promises to survive that of all at once. One of two that acknowledges alone has all synced (ruling
        6)."""
        group = self.group_of(draws)
        options, brokers = group.options, group.brokers
        if options.cp and options.sync_flush and draws.chance(1, 4):
            targets = [broker for broker in brokers if broker.alive]
        elif options.cp and len(brokers) == 2 and not options.sync_flush:
            targets = [item for item in brokers if item.alive and item.replica.sync_required]
            if any(item.lost_power for item in brokers):
                return
        else:
            not_whole = [item for item in brokers if not item.alive or item.store.unclean]
            minority = (len(brokers) - 1) // 2 if options.cp and not options.sync_flush else len(brokers)
            if len(not_whole) >= minority:
                return
            targets = [brokers[draws.below(len(brokers))]]
        for broker in targets:
            # a static group does without a slave; a master's forks are found by comparing stores
            if broker.alive and not (broker.is_static and broker.replica.is_master):
                self.tell("power", broker.host)
                broker.kill(power_loss=True)
                self.restart_later(broker, draws)

    def _pause(self, draws: SimPrng) -> None:
        self.hold_still(self.broker_of(draws), draws)

    def _pause_controller(self, draws: SimPrng) -> None:
        self.hold_still(self.controllers[draws.below(len(self.controllers))], draws)

    def _live_rot(self, draws: SimPrng) -> None:
        group = self.group_of(draws)
        host = group.live_rot.strike(group.brokers, draws)
        if host:
            self.tell("live-rot", host)

    def _hosts(self, draws: SimPrng) -> list[str]:
        """Of one group and of those that all share: hosts of two groups have nothing to say to each other."""
        return [process.host for process in (*self.group_of(draws).brokers, *self.controllers, *self.name_servers)]

    def _hosts_struck(self) -> list[str]:
        """All that faults may touch. A whole link between shared hosts concerns groups that are to be spared."""
        shared = () if self.options.spared else (*self.controllers, *self.name_servers)
        return [process.host for process in (*self.brokers, *shared)]

    def _spares(self, *hosts: str) -> bool:
        """Whether a fault of `hosts` alone would touch groups that are to be spared."""
        return self.options.spared and not any(broker.host in hosts for broker in self.brokers)

    def _cut(self, draws: SimPrng) -> None:
        """A host is cut off from some or all others, clients excepted: those see both sides."""
        hosts = self._hosts(draws)
        victim = hosts[draws.below(len(hosts))]
        whole = draws.chance(1, 2)
        if self._spares(victim):
            return
        self.tell("cut", victim)
        for other in hosts:
            if other != victim and (whole or draws.chance(1, 2)):
                self.transport.block(victim, other)
                self.transport.block(other, victim)

    def _isolate(self, draws: SimPrng) -> None:
        """A master and its clients are cut off from all others for a while: in AP its log forks."""
        brokers = self.group_of(draws).brokers
        masters = [item for item in brokers if item.alive and item.replica.is_master]
        if len(masters) != 1:
            return
        host = masters[0].host
        others = [item.host for item in (*brokers, *self.controllers) if item.host != host]
        self.tell("isolate", host)
        links = [link for other in others for link in ((host, other), (other, host))]
        for link in links:
            self.transport.block(*link)

        def end() -> None:
            for link in links:
                self.transport.unblock(*link)
            self.disturbed((host,))

        self.scheduler.after(draws.between(1000, 5000), end)

    def _link(self, draws: SimPrng) -> tuple[str, str] | None:
        hosts = self._hosts(draws)
        source, target = hosts[draws.below(len(hosts))], hosts[draws.below(len(hosts))]
        return None if source == target or self._spares(source, target) else (source, target)

    def _one_way(self, draws: SimPrng) -> None:
        if link := self._link(draws):
            self.tell("one-way", ">".join(link), *link)
            self.transport.block(*link)

    def _slow(self, draws: SimPrng) -> None:
        if link := self._link(draws):
            self.tell("slow", ">".join(link), *link)
            self.transport.slow_down(*link, Delays(50, draws.between(51, 800)))

    def _switch(self, draws: SimPrng) -> None:
        """To a replica that may be the master, away, or behind: the controllers decide."""
        self.switch_to(self.broker_of(draws))

    def switch_to(self, broker: BrokerProcess) -> None:
        ext = {
            "clusterName": broker.config.broker_cluster_name,
            "brokerName": broker.config.broker_name,
            "brokerId": str(broker.replica.broker_id),
            "designateElect": "true",
        }
        command = Command(RequestCode.CONTROLLER_ELECT_MASTER, ext, flag=FLAG_ONEWAY)
        self._ask_leader(f"switch to {broker.host}", command, broker)

    def _resize(self, draws: SimPrng) -> None:
        """n replicas make a majority of n, n + 1 and n + 2 (3, 4 and 5 for n = 3); two of 2 and 3, one of itself."""
        group = self.group_of(draws)
        count = len(group.brokers) + draws.below(min(3, len(group.brokers)))
        ext = {"brokerName": group.name, "totalReplicas": str(count)}
        command = Command(RequestCode.RMQHA_RESIZE_GROUP, ext, flag=FLAG_ONEWAY)
        self._ask_leader(f"resize to {count}", command, group.brokers[0])

    def _drain(self, draws: SimPrng) -> None:
        group = self.group_of(draws)
        broker = group.brokers[draws.below(len(group.brokers))]
        if broker.broker_id is not None:
            self.drain(group, broker.broker_id, drained=draws.chance(1, 2))

    def drain(self, group: BrokerGroup, broker_id: int, *, drained: bool) -> None:
        """What `rmqha drain` asks, and its --undo."""
        ext = {"brokerName": group.name, "brokerId": str(broker_id), "drained": str(drained).lower()}
        command = Command(RequestCode.RMQHA_DRAIN_REPLICA, ext, flag=FLAG_ONEWAY)
        self._ask_leader(f"{'drain' if drained else 'undrain'} {broker_id}", command, group.brokers[0])

    def _ask_leader(self, what: str, command: Command, touched: BrokerProcess) -> None:
        for process in self.controllers:
            if process.alive and not process.is_paused and process.led_term is not None:
                self.tell(what, process.host, touched.host)
                process.ask(command)

    def _connection(self, draws: SimPrng) -> Connection | None:
        hosts = self._hosts(draws)
        found = [item for item in self.transport.open_connections() if item.host in hosts and item.peer_host in hosts]
        conn = found[draws.below(len(found))] if found else None
        return None if conn is None or self._spares(conn.host, conn.peer_host) else conn

    def _stick(self, draws: SimPrng) -> None:
        conn = self._connection(draws)
        if conn is not None:
            self.tell("stick", ">".join(conn.link), *conn.link)
            self.transport.hold(conn, draws.between(200, 4000))
            if draws.chance(1, 2):
                self.transport.give_up(conn)

    def _reset(self, draws: SimPrng) -> None:
        """Bytes gather while the connection stands still; then it breaks, and some of them have arrived."""
        conn = self._connection(draws)
        if conn is None:
            return
        wait_ms = draws.between(1, 300)
        self.transport.hold(conn, wait_ms + 1)

        def break_off() -> None:
            if conn.is_open and not self.over:
                self.tell("reset", ">".join(conn.link), *conn.link)
                self.transport.break_off(conn, draws)

        self.scheduler.after(wait_ms, break_off)

    def _roll(self, draws: SimPrng) -> None:
        """A rolling upgrade: the next process follows when the one before should be back, whether it is or not."""
        if self._rolling:
            return
        self._rolling = True
        waiting: list[BrokerProcess | ControllerProcess] = [*self.controllers, *self.brokers]
        if draws.chance(1, 2):
            waiting.reverse()
        self.tell("roll", waiting[0].host)

        def roll_next() -> None:
            if self.over or not waiting:
                self._rolling = False
                return
            process = waiting.pop(0)
            keys = draws.child(f"{process.host}-keys")
            if isinstance(process, BrokerProcess):
                process.config = tuned_broker(process.config, keys)
            else:
                process.config = tuned_controller(process.config, keys)
            if process.alive and not process.is_paused:
                self.tell("restart", process.host)
                process.kill(power_loss=False)
                self.restart_later(process, draws, 20, 400)
            self.scheduler.after(draws.between(400, 2500), roll_next)

        roll_next()

    def _is_applied(self, master: BrokerProcess, ids: list[int]) -> bool:
        """The newest set that a controller has applied is this one too: the master may not have heard of a smaller one,
        whose last member is not to lose its disk."""
        groups = [item.machine.info.groups.get(master.config.broker_name) for item in self.controllers if item.alive]
        sets = [(group.sync_state_set_epoch, group.sync_state_set) for group in groups if group is not None]
        return not sets or sorted(max(sets)[1]) == ids

    def _wipe_broker(self, draws: SimPrng) -> None:
        """A disk is replaced by an empty one: as a loss of power, what a minority may suffer, and no second one before
        the first is made good."""
        brokers = self.group_of(draws).brokers
        masters = [item for item in brokers if item.alive and item.replica.is_master]
        whole = all(item.alive and not item.store.unclean and not item.lost_power for item in brokers)
        if not whole or len(masters) != 1:
            return
        # a replica without its disk comes back under another id: a master that has not heard of that knows the old one
        ids = sorted(item.broker_id or 0 for item in brokers)
        if sorted(masters[0].replica.state(0).to_json()["syncStateSet"]) != ids or not self._is_applied(
            masters[0], ids
        ):
            return
        broker = brokers[draws.below(len(brokers))]
        self.tell("wipe", broker.host)
        self.wiped(broker)
        broker.replace_disk()
        self.restart_later(broker, draws)

    def _orphan(self, draws: SimPrng) -> None:
        """A master's requests outlive it: a slave comes back while the link to the controllers stands still, so that
        the request for the larger set is under way when the master dies; in its next life it cannot reach that slave.
        """
        brokers = self.group_of(draws).brokers
        masters = [item for item in brokers if item.alive and item.replica.is_master]
        slaves = [item for item in brokers if item.alive and not item.replica.is_master]
        if len(masters) != 1 or not slaves or masters[0].is_paused:
            return
        master, slave = masters[0], slaves[draws.below(len(slaves))]
        stuck_ms, away_ms = draws.between(1000, 4000), draws.between(1, 800)
        self.tell("orphan", f"{master.host} {slave.host}", master.host, slave.host)
        slave.kill(power_loss=False)

        def stick() -> None:
            if self.over:
                return
            controllers = [process.host for process in self.controllers]
            for conn in self.transport.open_connections():
                if conn.host == master.host and conn.peer_host in controllers:
                    self.transport.hold(conn, stuck_ms)
            boot(slave)

        def die() -> None:
            if self.over:
                return
            self.transport.block(master.host, slave.host)
            self.transport.block(slave.host, master.host)
            if master.alive:
                master.kill(power_loss=False)
            self.scheduler.after(away_ms, lambda: boot(master))

        def boot(process: BrokerProcess) -> None:
            if not process.alive:
                process.boot()
                self.disturbed((process.host,))

        self.scheduler.after(900, stick)
        self.scheduler.after(900 + draws.between(150, 900), die)

    def _step_clock(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        self.tell("clock-step", broker.host)
        step_ms = self.options.clock_step_ms
        broker.clock.step_wall(draws.between(-step_ms, step_ms))

    def _slow_disk(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        self.tell("slow-disk", broker.host)
        broker.slow_disk(draws.between(100, 4000), draws.between(50, 3000))

    def _hang_disk(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        self.tell("hang-disk", broker.host)
        duration_ms = draws.between(1000, 6000)
        broker.hang_disk(duration_ms, draws.between(4000, 12_000))
        masters = [item for item in self.group_with(broker).brokers if item.alive and item.replica.is_master]
        if masters and draws.chance(1, 2):
            # whoever is elected then, this replica has an epoch to take, and a fork to cut perhaps
            self._kill_later(masters[-1], draws, draws.between(0, duration_ms // 2))
        if draws.chance(1, 4):
            self._kill_later(broker, draws, draws.between(duration_ms // 2, duration_ms + 1000))

    def _fail_disk(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        if not broker.alive or broker.disk_fails:
            return
        full = draws.chance(1, 2)
        self.tell("full-disk" if full else "bad-disk", broker.host)
        broker.fail_disk(full=full)

        def mend() -> None:
            broker.repair_disk()
            if not broker.alive and not self.over:
                self.restart_later(broker, draws)

        self.scheduler.after(draws.between(100, 4000), mend)

    def _rot(self, draws: SimPrng) -> None:
        """As a loss of power: what a minority may suffer. The next start must see it, whatever CP had promised."""
        group = self.group_of(draws)
        brokers = group.brokers
        broker = brokers[draws.below(len(brokers))]
        whole = all(item.alive and not item.store.unclean and not item.lost_power for item in brokers)
        if whole and (len(brokers) > 2 or not group.options.cp) and broker.rot(draws):
            self.tell("rot", broker.host)
            self.restart_later(broker, draws)

    def _heal(self, draws: SimPrng) -> None:
        self.transport.heal()
        self.disturbed(self._hosts_struck())

    def _clean(self, draws: SimPrng) -> None:
        broker = self.broker_of(draws)
        if broker.alive and not broker.is_paused:
            start_offset = draws.below(broker.store.max_phy_offset + 1) if draws.chance(1, 2) else 0
            self.tell("clean", broker.host)
            broker.post(broker.life, lambda: broker.clean(start_offset))

    def _kill_controller(self, draws: SimPrng) -> None:
        process = self.controllers[draws.below(len(self.controllers))]
        self._stop_controller(process, draws)

    def _stop_controller(self, process: ControllerProcess, draws: SimPrng, least_ms: int = 1, most_ms: int = 0) -> None:
        if process.alive:
            self.tell("kill", process.host)
            process.kill(power_loss=draws.chance(1, 2))
            self.restart_later(process, draws, least_ms, most_ms)

    def _kill_name_server(self, draws: SimPrng) -> None:
        process = self.name_servers[draws.below(len(self.name_servers))]
        if process.alive:
            self.tell("kill", process.host)
            process.kill(power_loss=draws.chance(1, 2))
            self.restart_later(process, draws)

    def _wipe_controller(self, draws: SimPrng) -> None:
        """The disk of the only controller is lost. With more of them a wiped one must be removed and added again."""
        process = self.controllers[0]
        if len(self.controllers) == 1 and process.alive:
            self.tell("wipe", process.host)
            process.kill(power_loss=False)
            process.wipe()
            self.restart_later(process, draws)

    def _all_away(self, draws: SimPrng) -> None:
        away_ms = self.options.away_ms
        for process in self.controllers:
            self._stop_controller(process, draws, max(1, away_ms // 2), away_ms)
