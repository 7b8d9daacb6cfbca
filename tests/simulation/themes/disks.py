"""Themes of disks that lie, of stops in the midst of a handler, and of faults that come at a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.options import Options
from tests.simulation.themes.rough import rough


def ap_level(options: Options) -> int:
    """Each level in a third of the runs in AP."""
    return 0 if options.cp else options.client_count - 1


def stops(options: Options) -> Options:
    """Processes stop, or lose their power, between two changes of their disks, in the midst of a handler; AP and CP,
    ASYNC_FLUSH and SYNC_FLUSH."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.kept_hours == 0,
        stop_per_mille=500,
        kill_broker_per_mille=0,
        pause_broker_per_mille=20,
        cut_per_mille=40,
        switch_per_mille=40,
        restart_after_ms=800,
        ap_level=ap_level(options),
        crash_probes=20,
    )


def moments(options: Options) -> Options:
    """Processes stop, lose their power or hear old answers right after a first acknowledgement, a first sync, a change
    of the set, a hand-over, a cut of the log; AP and CP, ASYNC_FLUSH and SYNC_FLUSH."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.kept_hours == 0,
        max_delay_ms=20,
        echo_per_mille=200,
        moment_per_mille=80,
        kill_broker_per_mille=40,
        pause_broker_per_mille=20,
        cut_per_mille=40,
        one_way_per_mille=20,
        slow_per_mille=40,
        switch_per_mille=150,
        resize_per_mille=40,
        restart_after_ms=500,
        ap_level=ap_level(options),
        crash_probes=20,
    )


def splits(options: Options) -> Options:
    """AP: masters and their clients are cut off, another is elected, and both acknowledge."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=False,
        isolate_per_mille=120,
        moment_per_mille=20,
        kill_cut_per_mille=200,
        kill_broker_per_mille=60,
        pause_broker_per_mille=20,
        cut_per_mille=20,
        slow_per_mille=40,
        ap_level=options.client_count - 1,
        crash_probes=20,
    )


def suspended(options: Options) -> Options:
    """Machines are suspended, so that their monotonic clocks stand still; wall clocks jump, the controllers' too."""
    return replace(
        rough(options),
        cp=options.cp,
        controller_count=3,
        suspend_per_mille=250,
        step_controller_per_mille=100,
        clock_step_per_mille=60,
        pause_broker_per_mille=0,
        kill_broker_per_mille=60,
        cut_per_mille=40,
    )


def forgotten(options: Options) -> Options:
    """A sync fails once and leaves its pages clean: one replica's of each group, one controller's of three."""
    return replace(_one_bad(options), forget_sync_per_mille=120)


def lies(options: Options) -> Options:
    """Syncs return and have lost a sector, and the power goes: one replica's of each group. Records carry a checksum of
    all of them: without one an old sector of properties may go unseen."""
    return replace(_one_bad(options), lie_per_mille=120, record_crc=True)


def rotten_logs(options: Options) -> Options:
    """Bytes of one replica's log rot while it runs, as they are copied, read and moved by."""
    return replace(
        _one_bad(options),
        rot_log_per_mille=120,
        record_crc=options.heartbeat_ms == 200,
        kept_files=0,  # what a slave's master has removed by rule, nobody gives back to that slave
        kept_hours=0,
        clean_per_mille=0,
    )


def misdirected(options: Options) -> Options:
    """Sectors of one replica's log land at another place of their file while it runs, and may lack at their own."""
    return replace(
        _one_bad(options),
        misdirect_per_mille=120,
        record_crc=options.heartbeat_ms == 200,
        kept_files=0,  # what a slave's master has removed by rule, nobody gives back to that slave
        kept_hours=0,
        clean_per_mille=0,
    )


def rotten_files(options: Options) -> Options:
    """Small files rot or cannot be read: epochs, marks, tables, a controller's log and snapshots."""
    return replace(_one_bad(options), controller_count=3, rot_file_per_mille=150, snapshot_after_entries=20)


def noise(options: Options) -> Options:
    """Bits flip in the records that masters send."""
    return replace(_one_bad(options), flip_per_mille=250, record_crc=options.heartbeat_ms == 200)


def _one_bad(options: Options) -> Options:
    """One disk is the bad one; the others only die now and then, and keep what they have."""
    return replace(
        rough(options),
        cp=options.cp,
        sync_flush=options.sync_flush,
        controller_count=options.controller_count,
        kill_broker_per_mille=60,
        kill_controller_per_mille=0,
        pause_broker_per_mille=20,
        cut_per_mille=40,
        one_way_per_mille=20,
        restart_after_ms=1000,
    )


def backups(options: Options) -> Options:
    """Slaves are given a disk of before, of an older epoch, while masters die and are changed; AP and CP."""
    return replace(
        rough(options),
        broker_count=5 if options.broker_count == 5 else 3,
        cp=options.cp,
        client_count=2,
        send_interval_ms=10,
        restore_broker_per_mille=800,
        pause_controller_per_mille=60,
        kill_broker_per_mille=60,
        kill_elected_per_mille=60,
        pause_broker_per_mille=20,
        cut_per_mille=30,
        one_way_per_mille=20,
        slow_per_mille=40,
        switch_per_mille=200,
        restart_after_ms=600,
    )


OFTEN = ("stops", "moments", "splits", "moments", "splits")
"""Themes that runs without a theme take oftener than others."""

DISK_THEMES: dict[str, Callable[[Options], Options]] = {
    "stops": stops,
    "moments": moments,
    "splits": splits,
    "suspended": suspended,
    "forgotten": forgotten,
    "lies": lies,
    "rotten-logs": rotten_logs,
    "misdirected": misdirected,
    "rotten-files": rotten_files,
    "backups": backups,
    "noise": noise,
}
