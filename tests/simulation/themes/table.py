"""What runs are made of beside what the seed draws: docs/internals/simulation.md lists the themes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.options import GroupSize, Options
from tests.simulation.themes.disks import DISK_THEMES
from tests.simulation.themes.lives import LIFE_THEMES
from tests.simulation.themes.rough import rough
from tests.simulation.themes.shells import SHELL_THEMES


def short_logs(options: Options) -> Options:
    """Rough, with the smallest log that can be kept, and operators who ask for less."""
    return replace(
        rough(options), file_size_bytes=64 * 1024, kept_files=2, kept_hours=0, clean_per_mille=60, send_interval_ms=2
    )


def power_cuts(options: Options) -> Options:
    """Rough, with SYNC_FLUSH and power losses, also of all at once, instead of kills."""
    return replace(rough(options), sync_flush=True, power_broker_per_mille=200, kill_broker_per_mille=0)


def pair(options: Options) -> Options:
    """Rough, with two replicas in ASYNC_FLUSH, of which one loses power while it acknowledges alone (ruling 6)."""
    return replace(rough(options), broker_count=2, sync_flush=False, power_broker_per_mille=120, restart_after_ms=1000)


def elections(options: Options) -> Options:
    """Rough, but faults come at elections: new masters die at once, links are slow, a sole controller forgets all."""
    return replace(
        rough(options),
        controller_count=1,
        max_delay_ms=20,
        kill_broker_per_mille=100,
        cut_per_mille=40,
        one_way_per_mille=20,
        slow_per_mille=200,
        kill_elected_per_mille=500,
        wipe_controller_per_mille=20,
        turns=options.heal_per_mille == 80,
    )


def late(options: Options) -> Options:
    """Rough, but messages come late: connections stand still while others go on, so that requests of a former life and
    old notices arrive; restarts are quick."""
    return replace(
        rough(options),
        max_delay_ms=20,
        stick_per_mille=400,
        orphan_per_mille=40,
        echo_per_mille=400,
        kill_elected_per_mille=250,
        pause_broker_per_mille=30,
        cut_per_mille=40,
        one_way_per_mille=20,
        restart_after_ms=400,
    )


def orphans(options: Options) -> Options:
    """Masters whose last requests arrive when they have started again, or when another leads; little else."""
    return replace(
        rough(options),
        orphan_per_mille=60,
        kill_broker_per_mille=30,
        pause_broker_per_mille=0,
        cut_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=30,
        kill_controller_per_mille=0,
        heal_per_mille=60,
    )


def stale(options: Options) -> Options:
    """Old notices come again, to replicas that have restarted and cannot ask; new masters die at once."""
    return replace(
        rough(options),
        max_delay_ms=20,
        echo_per_mille=800,
        kill_elected_per_mille=500,
        kill_broker_per_mille=250,
        pause_broker_per_mille=0,
        cut_per_mille=0,
        one_way_per_mille=400,
        slow_per_mille=0,
        restart_after_ms=500,
    )


def told(options: Options) -> Options:
    """Replicas die between the news of an election and their first word to the new master; when they are back older
    news come before they have asked."""
    return replace(
        rough(options),
        max_delay_ms=20,
        kill_told_per_mille=500,
        kill_broker_per_mille=100,
        kill_elected_per_mille=100,
        pause_broker_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=30,
        restart_after_ms=500,
    )


def forgetful(options: Options) -> Options:
    """A sole controller that loses its disk again and again, while replicas are away for long."""
    return replace(
        rough(options),
        controller_count=1,
        pause_broker_per_mille=0,
        cut_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=60,
        kill_broker_per_mille=150,
        wipe_controller_per_mille=120,
        kill_elected_per_mille=200,
    )


def loose(options: Options) -> Options:
    """Rough in AP, with three replicas or five: logs fork, and what was visible may go."""
    count = 5 if options.broker_count == 5 else 3
    return replace(rough(options), broker_count=count, cp=False, kill_cut_per_mille=200, power_broker_per_mille=60)


def forks(options: Options) -> Options:
    """Masters are cut off or die with a tail of their own, and again as soon as they have cut it."""
    return replace(
        rough(options),
        max_delay_ms=20,
        send_interval_ms=2,
        kill_cut_per_mille=700,
        kill_elected_per_mille=100,
        restart_after_ms=300,
    )


def broken(options: Options) -> Options:
    """Disks that are full or fail: the broker ends with an error and starts again when its disk is well."""
    return replace(
        rough(options),
        sync_flush=options.sync_flush,
        kept_files=0,
        send_interval_ms=2,
        kill_broker_per_mille=40,
        slow_disk_per_mille=60,
        fail_disk_per_mille=200,
    )


def controllers(options: Options) -> Options:
    """Three controllers that die, stand still and are cut off, often; the brokers are left alone."""
    return replace(
        rough(options),
        controller_count=3,
        client_count=1,
        max_delay_ms=20,
        send_interval_ms=40,
        kill_broker_per_mille=20,
        pause_broker_per_mille=0,
        slow_per_mille=200,
        stick_per_mille=100,
        kill_controller_per_mille=300,
        pause_controller_per_mille=100,
        all_controllers_away_per_mille=60,
        restart_after_ms=300,
    )


def alone(options: Options) -> Options:
    """All controllers are away for long, in CP and AP; replicas die now and then (ruling 5)."""
    return replace(
        rough(options),
        cp=options.cp,
        client_count=1,
        send_interval_ms=40,
        kill_broker_per_mille=25,
        pause_broker_per_mille=0,
        cut_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=0,
        kill_controller_per_mille=0,
        all_controllers_away_per_mille=60,
        away_ms=20_000,
        restart_after_ms=10_000,
        chaos_ms=60_000,
    )


def heirs(options: Options) -> Options:
    """Few faults; in the end the master and whoever follows it die (ruling 9)."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options), broker_count=count, chaos_ms=3000, kill_broker_per_mille=50, cut_per_mille=0, bereave=True
    )


def stale_elections(options: Options) -> Options:
    """Few faults; in the end a replica that lacks what was acknowledged lives alone, and is elected uncleanly."""
    return replace(rough(options), chaos_ms=3000, kill_broker_per_mille=50, cut_per_mille=20, elects_stale=True)


def operators(options: Options) -> Options:
    """Masters are changed by name and the group's size by number, in the middle of the faults."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        kill_broker_per_mille=60,
        switch_per_mille=250,
        resize_per_mille=80,
        kill_controller_per_mille=40,
        turns=options.heal_per_mille == 80,
    )


def drains(options: Options) -> Options:
    """Replicas are drained and taken back, masters too, while others die, are cut off or are named as masters."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        kill_broker_per_mille=60,
        cut_per_mille=60,
        switch_per_mille=60,
        drain_per_mille=300,
        kill_controller_per_mille=40,
    )


def learners(options: Options) -> Options:
    """One replica or two copy beside the group, in CP and AP; masters are changed by name, learners are named too."""
    return replace(
        rough(options),
        cp=options.cp,
        client_count=2,
        kill_broker_per_mille=120,
        switch_per_mille=150,
        learner_count=1 + options.client_count % 2,
    )


def tables(options: Options) -> Options:
    """Topics, groups and offsets are changed while masters die, are switched and are cut off."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        client_count=1,
        cp=options.cp,
        send_interval_ms=20,
        kill_broker_per_mille=100,
        kill_elected_per_mille=100,
        switch_per_mille=100,
        tables=True,
        strict_offsets=options.kept_hours == 0,
    )


def resets(options: Options) -> Options:
    """Offsets of a group are set back while its members commit and never hear of it, under what strikes `tables`."""
    return replace(tables(options), resets=True, kill_broker_per_mille=150)


def disks(options: Options) -> Options:
    """Disks that are slow or rot, wall clocks that jump."""
    return replace(
        rough(options),
        sync_flush=options.sync_flush,
        kill_broker_per_mille=60,
        clock_step_per_mille=100,
        slow_disk_per_mille=150,
        rot_per_mille=100,
    )


def tuned(options: Options) -> Options:
    """Every key has another value in each process; operators roll new ones out in the middle of the faults."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        cp=options.cp,
        controller_count=3,
        chaos_ms=25_000,
        send_interval_ms=20,
        kill_broker_per_mille=60,
        pause_broker_per_mille=30,
        cut_per_mille=40,
        one_way_per_mille=20,
        slow_per_mille=40,
        switch_per_mille=30,
        tuned=True,
        roll_per_mille=60,
    )


def batches(options: Options) -> Options:
    """Producers send batches and do not wait for one send before the next. What goes to slaves is cut anywhere in a
    batch, and masters die often."""
    return replace(
        rough(options),
        cp=options.cp,
        batches=True,
        client_count=2,
        send_interval_ms=40,
        batch_bytes=512,
        max_delay_ms=20,
        kill_broker_per_mille=250,
        kill_elected_per_mille=150,
        cut_per_mille=60,
        turns=options.heal_per_mille == 80,
    )


def torn(options: Options) -> Options:
    """Connections break in the middle of a frame while both ends live, and bytes come in any pieces."""
    return replace(
        rough(options),
        cp=options.cp,
        max_delay_ms=20,
        split_per_mille=200,
        reset_per_mille=700,
        stick_per_mille=100,
        kill_broker_per_mille=60,
        cut_per_mille=20,
        one_way_per_mille=20,
    )


def routes(options: Options) -> Options:
    """Producers go by the routes of two name servers, which die and are cut off as others are."""
    return replace(
        rough(options),
        cp=options.cp,
        max_delay_ms=20,
        stick_per_mille=200,
        slow_per_mille=200,
        kill_elected_per_mille=100,
        pause_broker_per_mille=120,
        name_server_count=2,
        kill_name_server_per_mille=60,
    )


def groups(options: Options) -> Options:
    """Two broker groups or three, of different sizes, one at least in AP and one in CP, under the same controllers and
    name servers. In a third of the runs all faults are the first group's, so that the others must notice nothing."""
    sizes = [GroupSize(2, cp=not options.cp), GroupSize(options.broker_count, cp=True)]
    spared = options.heal_per_mille == 300
    return replace(
        rough(options),
        cp=options.cp,
        more_groups=tuple(sizes[: 2 if options.client_count == 3 else 1]),
        spared=spared,
        chaos_ms=30_000 if spared else 20_000,
        client_count=1,
        send_interval_ms=20,
        max_delay_ms=20,
        kill_elected_per_mille=100,
        switch_per_mille=60,
        resize_per_mille=30,
        kill_controller_per_mille=0 if spared else 20,
        all_controllers_away_per_mille=0 if spared else 10,
        away_ms=10_000,
        snapshot_after_entries=20,
        name_server_count=2 if options.kept_hours else 0,
        kill_name_server_per_mille=20 if options.kept_hours and not spared else 0,
    )


def hung(options: Options) -> Options:
    """Disks hang for longer than a client waits, a master's too; with ASYNC_FLUSH and SYNC_FLUSH, in AP and CP."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.kept_hours == 0,
        kill_broker_per_mille=60,
        cut_per_mille=40,
        hang_disk_per_mille=120,
        turns=options.heal_per_mille == 80,
    )


def wiped(options: Options) -> Options:
    """Replicas lose their disks, one at a time, while masters die and are cut off."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        cp=options.cp,
        kill_broker_per_mille=60,
        cut_per_mille=40,
        slow_per_mille=40,
        wipe_broker_per_mille=250,
        restart_after_ms=1000,
    )


def consumers(options: Options) -> Options:
    """Consumers pull from masters and slaves, commit and die, while masters die, are cut off and are switched."""
    return replace(
        rough(options),
        cp=options.cp,
        client_count=2,
        send_interval_ms=20,
        max_delay_ms=20,
        kill_broker_per_mille=120,
        kill_elected_per_mille=100,
        stick_per_mille=100,
        switch_per_mille=60,
        consumer_count=1,
        turns=options.heal_per_mille == 80,
    )


def cold_reads(options: Options) -> Options:
    """Consumers read what is not in memory: their pulls wait for a thread while masters die, are cut off and are
    switched, logs are cut and old files go."""
    return replace(
        consumers(options),
        consumer_count=2,
        send_interval_ms=60,
        file_size_bytes=64 * 1024,
        clean_per_mille=60,
        restart_after_ms=1000,
        cold=True,
        turns=False,
    )


def idle(options: Options) -> Options:
    """Little is sent, and all of it goes as soon as it may; replicas lose their disks. Queues must go on where they
    ended, for consumers that have read everything."""
    return replace(
        consumers(options),
        client_count=1,
        send_interval_ms=250,
        file_size_bytes=64 * 1024,
        kept_hours=0,
        clean_per_mille=300,
        kill_broker_per_mille=60,
        cut_per_mille=40,
        wipe_broker_per_mille=200,
        restart_after_ms=1000,
        turns=False,
    )


def transactions(options: Options) -> Options:
    """Transactions are under way while masters die, are switched and are cut off: masters ask how they ended, within
    fractions of a second, and ends are lost. Wall clocks, by which masters ask, jump in some runs."""
    count = 5 if options.broker_count == 5 else 3
    return replace(
        rough(options),
        broker_count=count,
        cp=options.cp,
        transactions=True,
        strict_offsets=options.kept_hours == 0,
        client_count=1,
        send_interval_ms=40,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=20,
        batch_bytes=512 if options.client_count == 1 else options.batch_bytes,
        kill_elected_per_mille=150,
        kill_cut_per_mille=100,
        power_broker_per_mille=60 if options.sync_flush else 0,
        clock_step_per_mille=40 if options.controller_count == 1 else 0,
        switch_per_mille=60,
    )


def delays(options: Options) -> Options:
    """Many messages wait for a second or five, while masters die, lose their power, are switched and are cut off, in AP
    more often than in CP. Connections stand still while others go on: the log comes later than the tables do. Wall
    clocks, by which messages wait, jump in some runs."""
    count = 5 if options.broker_count == 5 else 3
    cp = options.cp and options.client_count == 1
    return replace(
        rough(options),
        broker_count=count,
        cp=cp,
        sync_flush=options.sync_flush,
        delayed_per_mille=400,
        crash_probes=20,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=20,
        kill_elected_per_mille=100,
        kill_cut_per_mille=100,
        stick_per_mille=200,
        power_broker_per_mille=60 if options.sync_flush or not cp else 0,
        clock_step_per_mille=40 if options.controller_count == 1 else 0,
        switch_per_mille=60,
    )


def timers(options: Options) -> Options:
    """Many messages name their time, others wait for their level, under what strikes `delays`; processes also die
    between two writes of their tables, and while copies are on their way: the log stands still then, the tables go on.
    In some runs disks are full, or fail, for a while, in others each replica has its own `timerPrecisionMs`. At the end
    the wall clocks show the next day."""
    return replace(
        delays(options),
        delayed_per_mille=100,
        timed_per_mille=400,
        timer_precisions=options.controller_count == 1,
        timer_moment_per_mille=60 if options.broker_count == 5 else 0,
        kill_broker_per_mille=60,
        stop_per_mille=20 if options.client_count == 2 else 0,
        clock_step_per_mille=80 if options.controller_count == 1 else 0,
        fail_disk_per_mille=60 if options.sync_flush and options.controller_count == 1 else 0,
    )


def pops(options: Options) -> Options:
    """Two groups pop, one of them in order, while masters die, lose their power, are switched and are cut off; stopped
    between two writes of their tables in some runs. What they pop is often not in memory in others. AP as often as
    CP."""
    return replace(
        rough(options),
        cold=options.batch_bytes == 1024 * 1024,
        broker_count={1: 1, 2: 2, 5: 5}.get(options.broker_count, 3),
        cp=options.cp and options.client_count != 2,
        sync_flush=options.sync_flush,
        pop_count=2 if options.client_count == 3 else 1,
        client_count=1,
        send_interval_ms=20,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=min(20, options.max_delay_ms),
        kill_broker_per_mille=100,
        kill_elected_per_mille=100,
        stick_per_mille=100,
        power_broker_per_mille=60 if options.sync_flush or not options.cp or options.client_count == 2 else 0,
        stop_per_mille=20 if options.client_count == 2 else 0,
        switch_per_mille=100,
        restart_after_ms=1500,
    )


def set_backs(options: Options) -> Options:
    """`pop` in CP, and offsets of a group are set back while its messages are in flight. Wall clocks jump by up to
    a second in some runs: orders and pops have times."""
    return replace(
        pops(replace(options, cp=True, client_count=3)),
        pop_count=1,
        cold=False,
        pop_set_backs=True,
        set_back_pause_ms=500 if options.controller_count == 3 else 6000,
        clock_step_per_mille=500 if options.controller_count == 3 else 0,
        clock_step_ms=1000,
        kill_broker_per_mille=200,
        kill_elected_per_mille=200,
        turns=options.heal_per_mille == 80,
    )


def rotting(options: Options) -> Options:
    """Records rot under running brokers, on one replica at a time: those that delay levels, timers and consumers read
    next, and any others. Masters die and are switched, replicas lose their disks and copy a log that is rotten in
    places."""
    return replace(
        rough(options),
        cp=options.cp,
        client_count=2,
        delayed_per_mille={1: 150, 2: 300}.get(options.client_count, 0),
        timed_per_mille=250 if options.client_count == 1 else 0,
        consumer_count=1 if options.client_count == 3 else 0,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=20,
        kill_broker_per_mille=60,
        cut_per_mille=30,
        one_way_per_mille=0,
        pause_broker_per_mille=0,
        switch_per_mille=60,
        live_rot_per_mille=600,
        wipe_broker_per_mille=60,
        restart_after_ms=1000,
    )


def blackouts(options: Options) -> Options:
    """All replicas die within two seconds, without a loss of power, and come back one after the other; masters die as
    a slave has half a record. Links are slow, so that replicas copy for long what they have missed."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        sync_flush=options.sync_flush,
        batches=options.client_count != 3,
        client_count=2,
        send_interval_ms=20,
        batch_bytes=512,
        max_delay_ms=20,
        split_per_mille=200,
        kill_all_per_mille=60,
        kill_half_per_mille=40,
        kill_broker_per_mille=40,
        pause_broker_per_mille=0,
        cut_per_mille=20,
        one_way_per_mille=0,
        slow_per_mille=200,
        restart_after_ms=1500,
    )


THEMES: dict[str, Callable[[Options], Options]] = {
    "plain": lambda options: options,
    "rough": rough,
    "power": power_cuts,
    "pair": pair,
    "elections": elections,
    "short": short_logs,
    "late": late,
    "orphans": orphans,
    "stale": stale,
    "told": told,
    "forgetful": forgetful,
    "loose": loose,
    "forks": forks,
    "broken": broken,
    "controllers": controllers,
    "heirs": heirs,
    "stale-elections": stale_elections,
    "disks": disks,
    "operators": operators,
    "tables": tables,
    "resets": resets,
    "drains": drains,
    "alone": alone,
    "learners": learners,
    "tuned": tuned,
    "torn": torn,
    "wiped": wiped,
    "routes": routes,
    "hung": hung,
    "batches": batches,
    "consumers": consumers,
    "cold-reads": cold_reads,
    "idle": idle,
    "transactions": transactions,
    "groups": groups,
    "delays": delays,
    "timers": timers,
    "pop": pops,
    "set-backs": set_backs,
    "rotting": rotting,
    "blackouts": blackouts,
    **DISK_THEMES,
    **SHELL_THEMES,
    **LIFE_THEMES,
}
"""What a run may be made of, by name."""
