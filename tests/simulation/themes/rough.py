"""What most themes begin with."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.options import Options


def rough(options: Options) -> Options:
    """The same run with three replicas in CP and every fault of brokers and links, often."""
    return replace(
        options,
        broker_count=3,
        client_count=3,
        cp=True,
        chaos_ms=15_000,
        send_interval_ms=5,
        max_delay_ms=5,
        kill_broker_per_mille=200,
        power_broker_per_mille=0,
        pause_broker_per_mille=60,
        cut_per_mille=120,
        one_way_per_mille=60,
        slow_per_mille=120,
        kill_elected_per_mille=0,
        kill_controller_per_mille=20,
        wipe_controller_per_mille=0,
        all_controllers_away_per_mille=0,
        heal_per_mille=100,
        restart_after_ms=3000,
    )
