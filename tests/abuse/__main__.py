"""Attacks by hand: python -m tests.abuse [NAME …] --setup open --connections 20 --seconds 3"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.abuse.catalogue import ATTACKS, rows
from tests.abuse.outcome import Bounds
from tests.abuse.stage import Stage

QUIET_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ATTACKS))
    parser.add_argument("--setup", choices=("open", "protected"), default="open")
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--rows", action="store_true", help="show the rows of the table in docs/operate/security.md instead"
    )
    given = parser.parse_args()
    if given.rows:
        print("\n".join(rows()))
        return
    names = given.names or [name for name, attack in ATTACKS.items() if given.setup in attack.setups]
    bad = 0
    with (
        tempfile.TemporaryDirectory(prefix="rmqha-abuse-") as scratch,
        Stage(Path(scratch), given.setup, QUIET_S) as stage,
    ):
        print(f"quiet p99 {stage.quiet_p99_ms:.1f} ms", flush=True)
        for name in names:
            outcome = stage.attacked(ATTACKS[name], given.connections, given.seconds)
            problems = outcome.problems(Bounds(ratio=10, floor_ms=0))
            print(", ".join(f"{key} {value}" for key, value in outcome.row().items()), flush=True)
            for problem in problems:
                print(f"    {problem}", flush=True)
            bad += bool(problems)
            if outcome.is_over:
                stage.renew()
        count, lost = stage.all_received()
        print(f"{count} acknowledged, {len(lost)} not received")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
