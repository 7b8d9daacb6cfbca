"""A broker group loses its master twice while real data flows, and Spark proves from the log that nothing was lost.

    make demo                    the group in CP mode: nothing acknowledged may be lost
    make demo MODE=ap            the group in AP mode: shows honestly what was lost
    make demo INPUT=my.jsonl     your own JSON lines instead of the real data sets

Exit code 0 only if all of that held. Everything that was started is stopped at the end, also on Ctrl-C.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from demo_cluster import Cluster, DemoError, print_phases
from demo_data import Input, own_input, real_input
from demo_proof import Claim, identical_claim, read_acked, spark_claims

SEND_S = 45.0
"""How long the sends take in all."""
MAX_RATE = 1500.0
"""Messages a second of one topic; a big file of one's own then takes longer than SEND_S."""
FIRST_KILL_S = 6.0
SECOND_KILL_S = 18.0
"""When the masters are killed, from the start of the sends; the second only once the first is back."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["cp", "ap"], default="cp")
    parser.add_argument("--input", type=Path, help="JSON lines of your own")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directory with the brokers' data")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    scratch = Path(tempfile.mkdtemp(prefix="rmqha-demo-"))
    try:
        given = own_input(options.input, scratch) if options.input else real_input(scratch)
        return tell(given, scratch, options.mode)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    finally:
        if options.keep:
            print(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch)


def tell(given: Input, scratch: Path, mode: str) -> int:
    """The story from the input to the verdict; the exit code."""
    started = time.monotonic()

    def heading(text: str) -> None:
        print(f"\n=== {time.monotonic() - started:.0f} s: {text}", flush=True)

    heading(f"{given.count:,} records")
    print(given.described)
    with Cluster(scratch, mode) as cluster:
        heading("a name server with its controller, and a group of three brokers")
        cluster.up()
        heading("the records go out at a steady rate, and the masters die under them")
        acked_files = send_through_two_failovers(cluster, given, scratch)
        heading("what the senders say")
        reports = cluster.finish_sends()
        for report in reports:
            print(
                f"{report['topic']:<14} {report['acknowledged']:>6,} of {report['messages']:,} acknowledged, "
                f"{report['retried']:,} retried, longest gap {report['longest_gap_ms']:,} ms"
            )
        end = cluster.wait_level()
        print(f"all three replicas end at byte {end:,}")
        print(cluster.rmqha("status"))
        master = cluster.master()
        cluster.rmqha("down")
        stores = {node: cluster.directory / node / "store" for node in ("broker-a-1", "broker-a-2", "broker-a-3")}
        heading(f"Spark reads the log of {master}")
        print(f'$ rmqha spark query "{given.sql}" --path {stores[master]}')
        acked = [row for topic, path in acked_files.items() for row in read_acked(path, topic)]
        claims = [*spark_claims(stores[master], acked, given, scratch), identical_claim(list(stores.values()))]
    sent_all = all(report["acknowledged"] == report["messages"] for report in reports)
    claims.append(Claim("every record was acknowledged", sent_all, f"{sum(r['acknowledged'] for r in reports):,}"))
    heading("verdict")
    return verdict(claims, mode)


def send_through_two_failovers(cluster: Cluster, given: Input, scratch: Path) -> dict[str, Path]:
    """Start a send per topic; kill two masters, bring each back; topic → file of acknowledgements."""
    acked_files = {topic.name: scratch / f"{topic.name}.acked" for topic in given.topics}
    for topic in given.topics:
        rate = min(max(1.0, topic.count / SEND_S), MAX_RATE)
        cluster.send(topic.name, topic.file, acked_files[topic.name], rate)
    started = time.monotonic()
    for kill_at_s in (FIRST_KILL_S, SECOND_KILL_S):
        time.sleep(max(0.0, started + kill_at_s - time.monotonic()))
        print()
        killed, killed_at_ms = cluster.kill_master()
        master = cluster.master()
        # a moment for the first acknowledgements to be written down
        time.sleep(1.0)
        stamps = [row["ackedAtMs"] for topic, path in acked_files.items() for row in read_acked(path, topic)]
        print_phases(killed, master, cluster.phases(killed_at_ms, stamps))
        print(cluster.rmqha("start", killed).strip())
    return acked_files


def verdict(claims: list[Claim], mode: str) -> int:
    """Print each claim; 0 if all hold. In AP a loss is the price of staying writable: shown, not failed."""
    for claim in claims:
        print(f"{'yes' if claim.holds else 'NO ':<4}{claim.words}: {claim.found}")
    failed = [claim for claim in claims if not claim.holds]
    broken = [claim for claim in failed if mode == "cp" or not claim.cp_only]
    if broken:
        print(f"\n{len(broken)} of {len(claims)} did not hold")
    elif failed:
        print("\nhaMode=ap: a master acknowledges alone, so what it had not passed on died with it")
    elif mode == "ap":
        print("\nnothing was lost this time; haMode=ap does not promise it")
    else:
        print("\nnothing was lost")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
