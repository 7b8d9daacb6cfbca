"""One seed draws everything about a run (swarm): size, mode, tunables, faults. Read by world.py and faults.py."""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.sim.prng import SimPrng

IN_SYNC_TWO, WHOLE_SET = 1, 2
"""Acknowledgement levels of AP beside the default."""


@dataclass(frozen=True)
class GroupSize:
    """Of a further broker group; all else is as the first one's."""

    broker_count: int
    cp: bool


@dataclass(frozen=True)
class Options:
    """Times in ms. `*_per_mille` are chances per fault tick."""

    broker_count: int
    controller_count: int
    client_count: int
    cp: bool
    sync_flush: bool
    file_size_bytes: int
    kept_files: int
    """commitLogMaxBytes in files; 0: no limit."""
    kept_hours: int
    """fileReservedTime; 0: everything is expired at once, and goes when an operator asks."""
    batch_bytes: int
    heartbeat_ms: int
    max_delay_ms: int
    clock_drift_ppm: int
    send_interval_ms: int
    fault_tick_ms: int
    kill_broker_per_mille: int
    power_broker_per_mille: int
    pause_broker_per_mille: int
    cut_per_mille: int
    one_way_per_mille: int
    slow_per_mille: int
    kill_elected_per_mille: int
    """Chance that a replica dies within milliseconds of becoming master."""
    kill_controller_per_mille: int
    wipe_controller_per_mille: int
    """Chance per tick that a sole controller dies and comes back with an empty disk (ruling 8)."""
    all_controllers_away_per_mille: int
    heal_per_mille: int
    clean_per_mille: int
    """An operator asks a broker for mqadmin's deleteExpiredCommitLog."""
    restart_after_ms: int
    chaos_ms: int
    # What follows is drawn by themes only, so that plain runs stay as they were.
    away_ms: int = 0
    """How long all controllers stay away at most, at least half of it; 0: as long as any process."""
    stick_per_mille: int = 0
    """A connection stands still, others between the same hosts go on."""
    orphan_per_mille: int = 0
    """A master dies while its requests are under way and arrive after it has started again."""
    echo_per_mille: int = 0
    """Chance that a notice of a controller arrives once more, late."""
    fail_disk_per_mille: int = 0
    """A broker's disk is full, or every write ends with an error, for a while."""
    kill_cut_per_mille: int = 0
    """Chance that a replica dies within milliseconds of cutting its log."""
    kill_told_per_mille: int = 0
    """Chance that a replica dies as it hears of a new master; in its next life it hears of the one before first."""
    pause_controller_per_mille: int = 0
    clock_step_per_mille: int = 0
    """A broker's wall clock jumps, either way."""
    clock_step_ms: int = 3_600_000
    """So far at most."""
    clock_at_start_per_mille: int = 0
    """Chance that a broker's wall clock is set as it starts again, either way."""
    cold: bool = False
    """What a replica had when it was started is often not in memory."""
    slow_disk_per_mille: int = 0
    """A broker's syncs take up to seconds for a while."""
    hang_disk_per_mille: int = 0
    """A broker's syncs hang for seconds, one after the other, longer than anybody waits."""
    rot_per_mille: int = 0
    """A broker dies and a byte that recovery must read again is another one."""
    live_rot_per_mille: int = 0
    """A bit of a record changes under a running broker; all other replicas have the record."""
    switch_per_mille: int = 0
    """An operator asks for another master by name (request 1002, as `rmqha elect --to`)."""
    resize_per_mille: int = 0
    """An operator changes totalReplicas: to a number whose majority can still be had, and back."""
    drain_per_mille: int = 0
    """An operator drains a replica (`rmqha drain`), or takes it back."""
    learner_count: int = 0
    """Replicas beside `broker_count` that only copy (asyncLearner)."""
    tables: bool = False
    """Operators and consumers change topics, groups and offsets; slaves follow (metadataSync as by default)."""
    strict_offsets: bool = False
    """offsetSync=strict."""
    resets: bool = False
    """Those who change tables set offsets of another group back, too, which its members never hear of."""
    tuned: bool = False
    """Every key that `tuning` knows has a value of its own in each process."""
    timer_precisions: bool = False
    """Each replica has a `timerPrecisionMs` of its own."""
    roll_per_mille: int = 0
    """An operator starts all processes again, one after the other, with other values of these keys."""
    split_per_mille: int = 0
    """Chance that what arrives on a connection is cut anywhere, the rest comes later."""
    reset_per_mille: int = 0
    """A connection breaks and loses what is under way, from any byte on; both its ends live."""
    name_server_count: int = 0
    """Brokers register with them, and producers go by their routes."""
    kill_name_server_per_mille: int = 0
    wipe_broker_per_mille: int = 0
    """A replica dies and comes back with an empty disk, while all others are in the set."""
    restore_broker_per_mille: int = 0
    """A copy of a slave's disk is kept; or a slave dies, and comes back with the copy of an older epoch."""
    more_groups: tuple[GroupSize, ...] = ()
    """Broker groups beside the first, under the same controllers and name servers."""
    snapshot_after_entries: int = 0
    """Of the controllers; 0: as by default, which no run reaches."""
    append_entries: int = 0
    """Entries of one append between controllers, at most; 0: as by default, which no run reaches."""
    spared: bool = False
    """Faults of brokers and links touch the first group alone."""
    batches: bool = False
    """Producers send batches, and have several sends in flight."""
    mixed_releases: bool = False
    """Brokers and controllers are of different releases."""
    change_version_per_mille: int = 0
    """An operator installs another release on a broker or a controller."""
    pool: bool = False
    """Brokers collect in memory what nobody waits for (transientStorePoolEnable)."""
    waitless_per_mille: int = 0
    """Of all messages, those that nobody waits for (WAIT=false)."""
    batch_queues: bool = False
    """The topic has queue.type=BatchCQ: each batch is one record (an inner batch)."""
    consumer_count: int = 0
    """Consumers of the topic, each with all of its queues; the brokers keep their offsets, slaves follow."""
    transactions: bool = False
    """Producers also send transactional messages, and answer what masters ask about them."""
    delayed_per_mille: int = 0
    """Of all messages, those that wait for a second or five."""
    timed_per_mille: int = 0
    """Of all messages, those that name their time, up to five seconds ahead."""
    pop_count: int = 0
    """Clients that pop the topic in any order; one more pops it in order, as another group."""
    pop_set_backs: bool = False
    """An operator sets the offsets of the group back that pops in any order."""
    late_pops: bool = False
    """Clients that pop go by receipts whose time is over, the operator sets back the group in order too, and clients
    commit offsets of before."""
    set_back_pause_ms: int = 6000
    """At most, and half a second, between two such orders."""
    stop_per_mille: int = 0
    """A process stops, or loses its power, between two changes of its disk, in the midst of a handler."""
    clean_stop_per_mille: int = 0
    """An operator stops a broker in order, or all of a group at once, and starts it again."""
    moment_per_mille: int = 0
    """Chance that a process is struck at one of the moments that `moments.MOMENTS` names."""
    timer_moment_per_mille: int = 0
    """Chance that the log stands still, or a master dies, while copies of timer messages are on their way; and that who
    has cut its log dies soon after."""
    set_moment_per_mille: int = 0
    """Chance that the answer about a new set comes late, while who came in stands still, or somebody dies."""
    outcast_per_mille: int = 0
    """A slave leaves the set, and is level again while the controllers do not hear it; requests for it come late."""
    return_per_mille: int = 0
    """A master dies while all controllers stand still for a moment, and is back in its epoch before they go on."""
    wipe_elected_per_mille: int = 0
    """Chance that a sole controller loses its disk soon after an election, and who led before is back."""
    suspend_per_mille: int = 0
    """A machine is suspended: its process stands still and so does its monotonic clock, while wall clocks go on."""
    step_controller_per_mille: int = 0
    """A controller's wall clock jumps, either way."""
    record_crc: bool = False
    """Each record carries a checksum of all of it (enabledAppendPropCRC)."""
    flip_per_mille: int = 0
    """A bit flips in a record on its way to a slave, where a checksum covers it."""
    forget_sync_per_mille: int = 0
    """A sync of a broker or a controller fails once and leaves its pages clean, and memory is taken back soon."""
    lie_per_mille: int = 0
    """A sync of a broker returns and has lost or misdirected a sector."""
    rot_log_per_mille: int = 0
    """A bit of a broker's log flips while it runs, where a checksum covers it."""
    misdirect_per_mille: int = 0
    """A sector of a broker's log lands at another place of its file while it runs, and may be missing at its own."""
    rot_file_per_mille: int = 0
    """A process dies, and in its next life finds a sector of a small file to be another one, or to be unreadable."""
    ap_level: int = 0
    """In AP: 0 as by default, IN_SYNC_TWO or WHOLE_SET."""
    crash_probes: int = 0
    """How often in a run it is asked at most what the next start of a process would find (`crash_probes.py`)."""
    isolate_per_mille: int = 0
    """A master is cut off from controllers and replicas, and goes on with its clients."""
    kill_all_per_mille: int = 0
    """All replicas of a group die within seconds, one after the other, and come back so."""
    kill_half_per_mille: int = 0
    """Chance that a master dies as a slave has half a record at its log's end."""
    spare_controller_count: int = 0
    """Controllers that are no members of the group at first."""
    deafen_per_mille: int = 0
    """A controller no longer hears the leading one, and those that do die and are back at once, again and again."""
    snapshot_chunk_bytes: int = 0
    """Of a snapshot on its way from one controller to another; 0: as by default, which no snapshot of a run fills."""
    raft_segment_bytes: int = 0
    """Of one file of a controller's log; 0: as by default, which no run fills."""
    change_members_per_mille: int = 0
    """An operator adds a controller to the group, or removes one."""
    turns: bool = False
    """Brokers serve what several connections have sent in one turn, as on the host."""
    forwards: bool = False
    """Brokers pass sends on to a new master, as on the host (`forwardSendsMillis`)."""
    slave_timeout_ms: int = 3000
    """slaveTimeout. What is passed on is waited for less long than its default."""
    static: bool = False
    """The group begins without a controller: the first replica is its SYNC_MASTER."""
    conversions: int = 0
    """How often an operator makes a group with controllers of a static one, or the reverse, each time with faults
    before and after."""
    elects_stale: bool = False
    """After the heal a replica that lacks what was acknowledged is left alone, and an operator elects it."""
    bereave: bool = False
    """After the heal the master dies, then whoever is elected, before it has done anything; both stay away."""

    @property
    def follows_tables(self) -> bool:
        """Slaves take their master's topics, groups and offsets, as on the host."""
        return (
            self.tables
            or self.transactions
            or self.batch_queues
            or self.consumer_count > 0
            or self.waits
            or self.pop_count > 0
        )

    @property
    def waits(self) -> bool:
        """Messages are delivered later than they are sent."""
        return self.delayed_per_mille > 0 or self.timed_per_mille > 0


def seed_options(seed: int) -> Options:
    """What a run of `seed` draws."""
    return draw_options(SimPrng(seed).child("options"))


def draw_options(prng: SimPrng) -> Options:
    """Each kind of fault is either absent or present in a run, so that rare ones are not drowned by common ones."""

    def maybe(name: str, most: int) -> int:
        draws = prng.child(name)
        return draws.between(most // 4, most) if draws.chance(1, 2) else 0

    def pick(name: str, *values: int) -> int:
        return values[prng.child(name).below(len(values))]

    return Options(
        broker_count=pick("brokers", 1, 2, 3, 3, 3, 5),
        controller_count=pick("controllers", 1, 1, 3),
        client_count=pick("clients", 1, 2, 3),
        cp=prng.child("mode").chance(3, 4),
        sync_flush=prng.child("flush").chance(1, 4),
        file_size_bytes=pick("file", 64, 64, 128, 1024) * 1024,
        kept_files=pick("kept-files", 0, 0, 0, 2, 3),
        kept_hours=pick("kept-hours", 0, 72),
        batch_bytes=pick("batch", 1024, 4096, 1024 * 1024),
        heartbeat_ms=pick("heartbeat", 200, 500),
        max_delay_ms=pick("delay", 0, 1, 5, 20),
        clock_drift_ppm=pick("drift", 0, 0, 20_000),
        send_interval_ms=pick("interval", 2, 10, 40),
        fault_tick_ms=250,
        kill_broker_per_mille=maybe("kill", 120),
        power_broker_per_mille=maybe("power", 90),
        pause_broker_per_mille=maybe("pause", 90),
        cut_per_mille=maybe("cut", 120),
        one_way_per_mille=maybe("one-way", 90),
        slow_per_mille=maybe("slow", 90),
        kill_elected_per_mille=maybe("kill-elected", 400),
        kill_controller_per_mille=maybe("kill-controller", 90),
        wipe_controller_per_mille=maybe("wipe-controller", 60),
        all_controllers_away_per_mille=maybe("away", 30),
        heal_per_mille=pick("heal", 30, 80, 300),
        clean_per_mille=prng.child("clean").below(60) if prng.child("cleans").chance(1, 3) else 0,
        restart_after_ms=pick("restart", 50, 500, 3000),
        chaos_ms=pick("chaos", 6000, 12000, 20000),
    )
