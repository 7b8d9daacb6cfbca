"""Names of the drills, with their targets: a module that loads no code of theirs. Values."""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = ("leader", "minor", "major", "all")
PER_SECOND = 200
"""Messages per second that a drill sends by default."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Description of a drill. `targets`: whom it can hit, of TARGETS; the first is the default."""

    summary: str
    targets: tuple[str, ...]


SCENARIOS: dict[str, Scenario] = {
    "failover": Scenario("kill -9 of the master, which is started again once another one serves", TARGETS),
    "isolate": Scenario("the master's network cable is pulled; a client on its side goes on sending to it", TARGETS),
    "loss": Scenario("a tenth of all packets to and from the master is lost", TARGETS),
    "delay": Scenario("packets to and from the master take 50 to 150 ms, and overtake each other", TARGETS),
    "pause": Scenario("the master stands still (SIGSTOP) and goes on later as if nothing had happened", TARGETS),
    "slow-slave": Scenario("a slave gets a tenth of the time (SIGSTOP and SIGCONT in turn)", ("minor",)),
    "disk-full": Scenario("the master's disk fills up to the last byte, and is emptied later", ("leader",)),
    "disk-read-only": Scenario("the master's disk takes no new files and no changes of closed ones", ("leader",)),
    "disk-hang": Scenario("whoever writes to the master's disk hangs, and goes on later", ("leader",)),
    "kill-controller": Scenario(
        "kill -9 of the leading one of three controllers, which is started again once another one leads", ("leader",)
    ),
}
