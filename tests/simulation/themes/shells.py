"""Themes of the shells around the machines: what passes sends on, members of Raft, names of masters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.options import Options
from tests.simulation.themes.rough import rough


def forwards(options: Options) -> Options:
    """Brokers pass sends on to a new master, as on the host: masters are switched and die often, are back at once, and
    connections between brokers break or stand still. Batches, and a master that waits for its slaves for less long than
    it is waited for, in some runs, transactions in others; AP and CP."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        forwards=True,
        slave_timeout_ms=400 if options.client_count == 2 else 3000,
        batches=options.client_count == 2,
        transactions=options.client_count == 3,
        client_count=2,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        send_interval_ms=10,
        max_delay_ms=20,
        kill_broker_per_mille=120,
        kill_elected_per_mille=100,
        pause_broker_per_mille=40,
        cut_per_mille=60,
        switch_per_mille=250,
        reset_per_mille=400,
        stick_per_mille=150,
        restart_after_ms=300,
        turns=options.heal_per_mille == 80,
    )


def quorum(options: Options) -> Options:
    """Operators change the controllers' own group, the leader too, while controllers die, stand still and are cut off,
    links are slow, and brokers know all of them, members or not; snapshots are written often."""
    return replace(
        rough(options),
        cp=options.cp,
        controller_count=3 if options.client_count > 1 else 1,
        spare_controller_count=2,
        change_members_per_mille=250,
        client_count=1,
        send_interval_ms=40,
        max_delay_ms=20,
        chaos_ms=20_000,
        kill_broker_per_mille=60,
        pause_broker_per_mille=20,
        slow_per_mille=150,
        stick_per_mille=60,
        kill_controller_per_mille=120,
        pause_controller_per_mille=60,
        restart_after_ms=1000,
        snapshot_after_entries=20,
    )


def conversions(options: Options) -> Options:
    """Groups without controllers: slaves find their master by name servers, which die too, and an operator makes a
    group with controllers of them and back, in the middle of the faults. The controllers keep what they know."""
    return replace(
        rough(options),
        broker_count=2 if options.broker_count == 2 else 3,
        client_count=2,
        static=options.client_count != 3,
        conversions=3,
        name_server_count=2 if options.broker_count == 5 else 1,
        kill_name_server_per_mille=20,
        chaos_ms=5000,
        sync_flush=options.sync_flush,
        send_interval_ms=10,
        kept_files=0,
        kept_hours=72,
        clean_per_mille=0,
        max_delay_ms=20,
        kill_broker_per_mille=120,
        power_broker_per_mille=60,
        pause_broker_per_mille=30,
        reset_per_mille=60,
        stick_per_mille=60,
        restart_after_ms=1000,
    )


def mixed_static(options: Options) -> Options:
    """The same with replicas of this release and of earlier ones, from the first start to the last."""
    return replace(conversions(options), mixed_releases=True)


def batch_queues(options: Options) -> Options:
    """A topic with queue.type=BatchCQ: each batch is one record and one unit of its queue. Kills, cuts, losses of power
    and stops between two changes of a disk; logs and queues that lose their oldest files in some runs. AP more often
    than CP: what queues hold is cut there."""
    return replace(
        rough(options),
        cp=options.cp and options.client_count == 1,
        sync_flush=options.sync_flush,
        client_count=2,
        batches=True,
        batch_queues=True,
        send_interval_ms=10,
        chaos_ms=10_000,
        max_delay_ms=20,
        kill_broker_per_mille=100,
        kill_elected_per_mille=100,
        power_broker_per_mille=60,
        pause_broker_per_mille=30,
        stop_per_mille=120 if options.client_count == 3 else 0,
        reset_per_mille=60,
        switch_per_mille=60,
        restart_after_ms=1000,
    )


def pool(options: Options) -> Options:
    """Masters collect in memory what nobody waits for (transientStorePoolEnable), half of all messages, and die, are
    switched, cut off or drained of their power with it; the other half waits."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.sync_flush,
        client_count=2,
        pool=True,
        waitless_per_mille=500,
        chaos_ms=10_000,
        kill_broker_per_mille=100,
        kill_elected_per_mille=60,
        power_broker_per_mille=60 if options.sync_flush or not options.cp else 0,
        pause_broker_per_mille=60,
        stop_per_mille=120 if options.client_count == 3 else 0,
        reset_per_mille=60,
        switch_per_mille=200,
        restart_after_ms=1000,
    )


def versions(options: Options) -> Options:
    """Brokers and controllers of this release and of earlier ones, which lack requests and fields of ours; operators
    install others, one process at a time, while masters die, are switched and are cut off. Sends are passed on in some
    runs."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        controller_count=3 if options.controller_count == 3 else 1,
        cp=options.cp,
        sync_flush=options.sync_flush,
        client_count=2,
        forwards=options.client_count != 1,
        mixed_releases=True,
        change_version_per_mille=250,
        chaos_ms=12_000,
        kill_broker_per_mille=60,
        kill_elected_per_mille=60,
        pause_broker_per_mille=30,
        power_broker_per_mille=30 if options.sync_flush else 0,
        cut_per_mille=60,
        one_way_per_mille=30,
        slow_per_mille=60,
        switch_per_mille=150,
        reset_per_mille=60,
        restart_after_ms=1000,
    )


def sets(options: Options) -> Options:
    """Answers about new sets come late or never, while who came in or went stands still, is slow or dies, and the
    master dies before it hears of it; requests come late, and later ones are refused before. Topics, groups and offsets
    are changed meanwhile in two thirds of the runs."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp or options.client_count == 1,
        client_count=2,
        tables=options.client_count != 3,
        strict_offsets=options.client_count != 3 and options.kept_hours == 0,
        send_interval_ms=10,
        max_delay_ms=20,
        set_moment_per_mille=350,
        outcast_per_mille=60,
        kill_broker_per_mille=60,
        kill_elected_per_mille=60,
        pause_broker_per_mille=60,
        cut_per_mille=60,
        one_way_per_mille=40,
        slow_per_mille=60,
        stick_per_mille=100,
        restart_after_ms=600,
    )


def snapshots(options: Options) -> Options:
    """Controllers write snapshots all the time, die often and start from them, or read their leader's, in many pieces
    and while newer ones are made; operators change masters and totalReplicas, and drain replicas, and new masters die
    before they have done anything."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        controller_count=3 if options.client_count > 1 else 1,
        client_count=1,
        send_interval_ms=40,
        kill_broker_per_mille=60,
        kill_elected_per_mille=200,
        pause_broker_per_mille=20,
        kill_controller_per_mille=250,
        pause_controller_per_mille=40,
        switch_per_mille=100,
        resize_per_mille=100,
        drain_per_mille=150,
        snapshot_after_entries=3,
        snapshot_chunk_bytes={1: 60, 2: 150}.get(options.broker_count, 400),
        raft_segment_bytes=300,
        crash_probes=20,
        restart_after_ms=600,
    )


def lost_elections(options: Options) -> Options:
    """A sole controller loses its disk right after elections, when masters come back that were cut off: their logs are
    the longer ones, of an older epoch. Batches, so that much is written that nobody acknowledges."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        controller_count=1,
        client_count=3,
        batches=True,
        send_interval_ms=5,
        isolate_per_mille=200,
        wipe_elected_per_mille=600,
        kill_broker_per_mille=40,
        pause_broker_per_mille=100,
        cut_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=60,
        restart_after_ms=600,
    )


def fives(options: Options) -> Options:
    """Five controllers, three in some runs, whose appends have one entry or two: leaders die, stand still and are cut
    off with entries that some have, and the next ones go on with these. Masters and totalReplicas are changed,
    replicas drained. AP and CP."""
    return replace(
        rough(options),
        cp=options.cp,
        controller_count=3 if options.client_count == 3 else 5,
        append_entries=1 if options.heartbeat_ms == 200 else 2,
        client_count=1,
        send_interval_ms=40,
        max_delay_ms=20,
        kill_broker_per_mille=100,
        kill_elected_per_mille=100,
        pause_broker_per_mille=20,
        slow_per_mille=200,
        stick_per_mille=100,
        kill_controller_per_mille=300,
        pause_controller_per_mille=150,
        switch_per_mille=150,
        resize_per_mille=60,
        drain_per_mille=150,
        restart_after_ms=300,
    )


def voters(options: Options) -> Options:
    """One of three controllers and the leader hear each other no more, again and again, while the third one dies and is
    back at once: what it has promised decides who leads. Little else happens, so that the logs of all are as long."""
    return replace(
        rough(options),
        cp=options.cp,
        controller_count=3,
        client_count=1,
        send_interval_ms=40,
        deafen_per_mille=300,
        kill_broker_per_mille=20,
        pause_broker_per_mille=0,
        cut_per_mille=0,
        one_way_per_mille=0,
        slow_per_mille=30,
        kill_controller_per_mille=20,
        switch_per_mille=20,
        restart_after_ms=600,
    )


SHELL_THEMES: dict[str, Callable[[Options], Options]] = {
    "forwards": forwards,
    "quorum": quorum,
    "conversions": conversions,
    "mixed-static": mixed_static,
    "batch-queues": batch_queues,
    "pool": pool,
    "versions": versions,
    "sets": sets,
    "snapshots": snapshots,
    "lost-elections": lost_elections,
    "fives": fives,
    "voters": voters,
}
