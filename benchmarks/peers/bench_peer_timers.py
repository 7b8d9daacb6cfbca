"""Timer messages of Apache's Java client: the real RocketMQ 5.4.0 and ours, in turns on the same cores.

    python -m benchmarks --only peertimers

As `bench_peer` has it. `put`: blocking sends of messages that come in an hour. `due`: so many messages that are due
within one second, sent before; late is the time from the one that the producer named to the one at which the broker
stored the message to be consumed.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.figures import show
from benchmarks.peers.bench_peer import KINDS, RAMP_S, SENDERS, run, start
from tests.interop.lab.java import Java

BODY_BYTES = 128
DELAY_MS = 3_600_000
DUE_COUNT = 20_000
AHEAD_S = 25
"""Time in which they are sent; both take more than a thousand a second."""
PUT_TOPIC, DUE_TOPIC = "TimedPut", "TimedDue"


def peer_timers(scratch: Path, seconds: int, rounds: int, warm_s: int, due_count: int = DUE_COUNT) -> dict[str, Any]:
    """Rows of rates (messages a second) and of lateness (ms). Raises MissingError without Java and Maven."""
    home = scratch / "java"
    home.mkdir()
    java = Java(home)
    sides = {}
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    try:
        for kind in KINDS:
            sides[kind] = start(java, kind, scratch / kind, (PUT_TOPIC, DUE_TOPIC), timerWheelEnable="true")
        for kind in KINDS:
            run(sides[kind], f"timed {PUT_TOPIC} {SENDERS} {BODY_BYTES} {warm_s} 1 {DELAY_MS}")
        for number in range(rounds):
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                put = run(sides[kind], f"timed {PUT_TOPIC} {SENDERS} {BODY_BYTES} {RAMP_S} {seconds} {DELAY_MS}")
                due = run(sides[kind], f"due {DUE_TOPIC} {SENDERS} {due_count} {BODY_BYTES} {AHEAD_S}")
                assert due["sent_ahead_ms"] > 0, f"{kind} took longer to take {due_count} messages than {AHEAD_S} s"
                told = {"rate": put["rate"], "put cpu us": put["cpu us"], "failed": put["failures"]}
                told["due cpu us"] = due["cpu us"]
                told |= {f"late {key} ms": due[key] / 1000 for key in ("min", "p50", "p99", "max")}
                for key, value in told.items():
                    found[kind].setdefault(key, []).append(value)
                print(f"  {kind}: " + ", ".join(f"{key} {value:,.0f}" for key, value in told.items()), flush=True)
    finally:
        for kind, side in sides.items():
            side.client.kill()
            side.lab.close()
            shutil.rmtree(scratch / kind)
    ours, theirs = (found[kind] for kind in KINDS)
    rows = [
        {
            "what": key,
            "ours": statistics.median(ours[key]),
            "theirs": statistics.median(theirs[key]),
            "ours from": min(ours[key]),
            "to": max(ours[key]),
        }
        for key in ours
    ]
    show(f"timer messages: ours and RocketMQ 5.4.0, {due_count:,} due in a second, medians of {rounds} rounds", rows)
    return {"rounds": rounds, "seconds": seconds, "due_count": due_count, "each": found, "rows": rows}
