"""The benchmark's own topic: nobody else's messages are mixed with it. Control plane."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rmqha.client.admin import Admin
from rmqha.host.asking.shell import now_s, sleep
from rmqha.model.code import ResponseCode
from rmqha.model.error import RemoteError, UnreachableError, UsageError
from rmqha.model.offset import MASTER_ID
from rmqha.ops.messaging.topics import of_users

OWN = "rmqha_bench"
HEADER = struct.Struct(">16sq")
"""Head of a body: id of the run, number of the message; −1 in a message that only tests the way."""
ROUTE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The place of a benchmark: its groups, and the number of other topics there."""

    topic: str
    groups: tuple[str, ...]
    created: bool
    other_count: int

    @property
    def text(self) -> str:
        made = "created" if self.created else "there already"
        count = self.other_count
        others = f"; {count} topic{'s' if count > 1 else ''} of others on the same brokers" if count else ""
        return f"topic {self.topic} ({made}, it stays) on {', '.join(self.groups)}{others}"


def check_own(topic: str) -> None:
    """Raise UsageError unless the topic's name is one of benchmarks."""
    if topic != OWN and not topic.startswith(f"{OWN}_"):
        raise UsageError(f"topic {topic} may be somebody's; a benchmark's is called {OWN} or begins with {OWN}_")


async def prepare(namesrv: str, topic: str, queue_count: int) -> BenchTarget:
    """Find the groups, make the topic on each that lacks it, and wait until routes have it. Raises UsageError for a
    topic that is not a benchmark's, UnreachableError if a group has no master or no server answers."""
    check_own(topic)
    async with Admin(namesrv) as admin:
        info = await admin.cluster_info()
        names = await admin.topics()
        groups = info["brokers"]
        for name, group in groups.items():
            if MASTER_ID not in group["addresses"]:
                raise UnreachableError(f"group {name} has no master; see rmqha explain {name}")
        if not groups:
            raise UnreachableError(f"the name servers {namesrv} know no broker; see rmqha status")
        lacking = groups.keys() - await _routed(admin, topic)
        if lacking:
            await admin.create_topic(topic, queue_count=queue_count, groups=lacking)
        unrouted = groups.keys() - await _routed(admin, topic)
        deadline = now_s() + ROUTE_TIMEOUT_S
        while unrouted and now_s() < deadline:
            await sleep(0.05)
            unrouted = groups.keys() - await _routed(admin, topic)
        if unrouted:
            missing = ", ".join(sorted(unrouted))
            raise UnreachableError(f"{namesrv} does not route {topic} to {missing} after {ROUTE_TIMEOUT_S:g} s")
    others = [name for name in of_users(names, info) if not name.startswith(OWN)]
    return BenchTarget(topic, tuple(sorted(groups)), bool(lacking), len(others))


async def _routed(admin: Admin, topic: str) -> set[str]:
    """Groups to which clients of the topic are sent."""
    try:
        return set((await admin.route(topic))["queues"])
    except RemoteError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return set()
        raise
