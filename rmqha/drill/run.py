"""A drill from start to clean-up: the cluster, the producer, the faults one after the other, the audit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from rmqha.drill.audit import audit, check_same_bytes
from rmqha.drill.cluster import Cluster, wall_ms
from rmqha.drill.fault import Fault
from rmqha.drill.report import Result, Round, broken_promises, unavailable_ms
from rmqha.drill.traffic import DrillTraffic
from rmqha.model.error import RmqhaError

SETTLE_S = 0.5
"""Pause (s) before a fault, so that effects of the round before are not measured with it."""
ROUND_S = 240.0
UP_S = 120.0
Tell = Callable[[int, str], None]
"""Callback with the number of finished rounds and a line about what happens."""


def drill(fault: Fault, count: int, per_second: int, scratch: Path, tell: Tell) -> Result:
    """Run a drill in `scratch`, which must be empty; every process is ended when this returns or raises.

    Raises FaultUnavailableError if the machine cannot make the fault, RmqhaError if the cluster does not start."""
    started = time.monotonic()
    with ExitStack() as stack:
        cluster = stack.enter_context(fault.cluster(scratch))
        result = trio.run(_run, cluster, fault, count, per_second, tell)
    result.seconds = time.monotonic() - started
    return result


async def _run(cluster: Cluster, fault: Fault, count: int, per_second: int, tell: Tell) -> Result:
    traffic = DrillTraffic(per_second=per_second)
    result = Result(fault.name, fault.mode, fault.target, count, [], traffic, None, [])
    tell(0, f"starting {', '.join(cluster.state.nodes)}")
    with trio.fail_after(UP_S):
        await cluster.up()
    try:
        with trio.fail_after(UP_S + count * ROUND_S):
            async with traffic.running(cluster.spec.namesrv_addresses):
                for number in range(count):
                    await _round(cluster, fault, traffic, result)
                    tell(number + 1, line(result.rounds[-1], traffic))
                await traffic.goes_on()
            tell(count, "audit")
            await cluster.wait_healthy()
            end = await cluster.wait_level()
            check_same_bytes([cluster.store(name) for name in cluster.brokers], end)
            direct = [key for item in result.rounds for key in item.direct]
            result.found = audit(cluster.store(cluster.brokers[0]), end, traffic.acked, direct, traffic.failed)
    except* trio.TooSlowError:
        result.broken.append("the drill did not come to its end in time")
    except* RmqhaError as errors:
        result.broken += [str(error) for error in leaves(errors)]
    if result.found is None:
        result.broken.append("the logs could not be audited: see above")
    else:
        result.broken += broken_promises(fault.mode, result.rounds, traffic, result.found)
    return result


async def _round(cluster: Cluster, fault: Fault, traffic: DrillTraffic, result: Result) -> None:
    await traffic.goes_on()
    await trio.sleep(SETTLE_S)
    found = Round(await fault.victims(cluster), await cluster.master(), wall_ms())
    result.rounds.append(found)
    async with fault.injected(cluster, found):
        await fault.effect(cluster, found)
        if fault.sends_go_on:
            await traffic.goes_on()
        await trio.sleep(max(0.0, fault.hold_s - (wall_ms() - found.fault_at_ms) / 1000))
        found.healed_at_ms = wall_ms()
    await cluster.wait_healthy()
    await traffic.goes_on(1)
    found.healthy_at_ms = wall_ms()
    await fault.learn(cluster, found, traffic.stamps)
    result.broken += fault.violations(found, unavailable_ms(traffic, found))


def leaves(errors: BaseExceptionGroup[RmqhaError]) -> list[RmqhaError]:
    """The errors of a group, without its groups."""
    found: list[RmqhaError] = []
    for error in errors.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def line(found: Round, traffic: DrillTraffic) -> str:
    """A round as one line for people."""
    parts = [f"{' and '.join(found.hit)} hit"]
    if found.failover_ms is not None:
        parts.append(f"{found.master} took over, first acknowledgement or answer after {found.failover_ms} ms")
    parts.append(f"no acknowledgement for {unavailable_ms(traffic, found)} ms at most")
    parts.append(f"all well {found.recovery_ms} ms after the fault was taken back")
    return ", ".join(parts)
