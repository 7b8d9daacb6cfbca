"""Themes of processes that come back: at once, with another time, behind files that went, a cut or a stop in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.options import Options
from tests.simulation.themes.disks import ap_level
from tests.simulation.themes.rough import rough


def revenants(options: Options) -> Options:
    """Processes die and are back within milliseconds, in the epoch of before, while connections of their former lives
    stand still, are given up or break: what those carry arrives late. Topics, groups and offsets change in a third of
    the runs; AP and CP."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        client_count=2,
        tables=options.client_count == 3,
        max_delay_ms=20,
        send_interval_ms=10,
        kill_broker_per_mille=400,
        kill_told_per_mille=60,
        return_per_mille=60,
        kill_controller_per_mille=60,
        stick_per_mille=400,
        reset_per_mille=200,
        echo_per_mille=200,
        pause_broker_per_mille=20,
        cut_per_mille=20,
        one_way_per_mille=20,
        slow_per_mille=100,
        restart_after_ms=30,
        ap_level=ap_level(options),
    )


def clocks(options: Options) -> Options:
    """A machine's wall clock is set as its broker starts, by up to an hour either way, and masters are back in the
    epoch of before: offsets are stamped, timer messages come and are taken back by such clocks, consumers commit in
    some runs. AP and CP."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        client_count=1,
        tables=options.client_count != 3,
        resets=options.client_count == 1,
        strict_offsets=options.client_count != 3 and options.kept_hours == 0,
        consumer_count=1 if options.client_count == 2 else 0,
        timed_per_mille=400 if options.client_count == 3 else 0,
        send_interval_ms=20,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        clock_at_start_per_mille=600,
        clock_step_per_mille=20,
        return_per_mille=60,
        kill_broker_per_mille=250,
        kill_controller_per_mille=60,
        pause_broker_per_mille=20,
        cut_per_mille=40,
        switch_per_mille=60,
        restart_after_ms=60,
    )


def trims(options: Options) -> Options:
    """Logs that lose their oldest files all the time, and replicas that are given a log anew; processes stop or lose
    their power at such moments, between two changes of their disks. AP and CP."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.sync_flush,
        client_count=2,
        file_size_bytes=64 * 1024,
        kept_files=2,
        kept_hours=0,
        clean_per_mille=60,
        send_interval_ms=2,
        stop_per_mille=250,
        moment_per_mille=80,
        kill_broker_per_mille=40,
        wipe_broker_per_mille=40,
        pause_broker_per_mille=60,
        cut_per_mille=60,
        restart_after_ms=1500,
        crash_probes=20,
    )


def pop_splits(options: Options) -> Options:
    """AP: masters that groups pop from are cut off with their clients, another is elected, and both give and take
    acknowledgements; then one of the logs is cut, and its replica may die at once."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=False,
        sync_flush=options.sync_flush,
        pop_count=2 if options.client_count == 3 else 1,
        client_count=1,
        send_interval_ms=20,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        isolate_per_mille=120,
        kill_cut_per_mille=200,
        kill_elected_per_mille=60,
        kill_broker_per_mille=40,
        pause_broker_per_mille=20,
        cut_per_mille=20,
        stick_per_mille=60,
        switch_per_mille=60,
        restart_after_ms=1000,
    )


def timer_splits(options: Options) -> Options:
    """AP: masters at which messages wait for their time are cut off with their clients, another is elected, and both
    take, take back and deliver; then one of the logs is cut, and its replica may die at once, and again when it has
    grown. Wall clocks jump in some runs."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=False,
        sync_flush=options.sync_flush,
        client_count=2,
        delayed_per_mille=200,
        timed_per_mille=400,
        timer_moment_per_mille=60,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        send_interval_ms=20,
        isolate_per_mille=150,
        heal_per_mille=25 if options.heartbeat_ms == 200 else 80,
        chaos_ms=20_000,
        kill_cut_per_mille=200,
        kill_elected_per_mille=60,
        kill_broker_per_mille=120,
        power_broker_per_mille=40 if options.kept_hours == 0 else 0,
        clock_step_per_mille=60 if options.controller_count == 1 else 0,
        pause_broker_per_mille=20,
        cut_per_mille=20,
        slow_per_mille=40,
        restart_after_ms=1000,
        crash_probes=20,
    )


def clean_stops(options: Options) -> Options:
    """Brokers are stopped in order and started again, alone or all of a group at once, while groups pop, tables change
    and messages wait for their time, or transactions are under way and a consumer commits. One replica in some runs:
    nobody is there to hand over to. AP and CP."""
    return replace(
        rough(options),
        broker_count={1: 1, 2: 2, 5: 1}.get(options.broker_count, 3),
        cp=options.cp,
        sync_flush=options.sync_flush,
        pop_count=1 if options.client_count == 1 else 0,
        tables=options.client_count == 2,
        timed_per_mille=300 if options.client_count == 2 else 0,
        delayed_per_mille=100 if options.client_count == 2 else 0,
        transactions=options.client_count == 3,
        consumer_count=1 if options.client_count == 3 else 0,
        strict_offsets=options.kept_hours == 0 and options.client_count == 2,
        client_count=1,
        # what only pops store waits to be dispatched
        send_interval_ms=200 if options.client_count == 1 and options.heal_per_mille != 300 else 20,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=options.max_delay_ms,
        clean_stop_per_mille=400,
        kill_broker_per_mille=40,
        pause_broker_per_mille=20,
        cut_per_mille=30,
        one_way_per_mille=20,
        slow_per_mille=60,
        restart_after_ms=1000,
        turns=options.heal_per_mille != 300,
    )


def late_pops(options: Options) -> Options:
    """CP: clients acknowledge by receipts of messages that have come again since, and want such at another time whose
    time is over; both groups that pop are set back, by an operator or by a client's commit, and wall clocks jump by up
    to a second in a third of the runs."""
    return replace(
        rough(options),
        broker_count={1: 1, 2: 2, 5: 5}.get(options.broker_count, 3),
        sync_flush=options.sync_flush,
        pop_count=1,
        late_pops=True,
        pop_set_backs=options.heartbeat_ms == 200,
        set_back_pause_ms=500 if options.controller_count == 3 else 2000,
        clock_step_per_mille=500 if options.heartbeat_ms == 200 and options.client_count != 1 else 0,
        clock_step_ms=1000,
        client_count=1,
        send_interval_ms=40,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        kill_broker_per_mille=60,
        kill_elected_per_mille=60,
        pause_broker_per_mille=20,
        cut_per_mille=40,
        one_way_per_mille=20,
        slow_per_mille=60,
        switch_per_mille=60,
        restart_after_ms=1000,
        turns=options.heal_per_mille == 80,
    )


LIFE_THEMES: dict[str, Callable[[Options], Options]] = {
    "revenants": revenants,
    "clocks": clocks,
    "trims": trims,
    "pop-splits": pop_splits,
    "timer-splits": timer_splits,
    "clean-stops": clean_stops,
    "late-pops": late_pops,
}
