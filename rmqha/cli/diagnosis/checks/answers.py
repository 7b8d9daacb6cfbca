"""Checks of running nodes by their answers: reachability, clocks, keys, and the controllers' record of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from rmqha.cli.diagnosis.checks.files import StoreFacts
from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.cli.diagnosis.checks.security import judge_security
from rmqha.host.net.network import dial
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode, ResponseCode
from rmqha.model.config.servers import BrokerConfig, parse_properties
from rmqha.model.error import RemoteError, RmqhaError, UnreachableError
from rmqha.ops.asking import ASK_TIMEOUT_MS, NoControllerError, ask, ask_leader, ask_state
from rmqha.ops.cluster_view import DAMAGE_FIX, RIVALS_FIX, STALL_FIX, damage_sentence, rivals_sentence, unsaved_sentence
from rmqha.ops.finding import Finding, ok, warn, wrong
from rmqha.ops.local.node_kind import NodeKind
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import loads
from rmqha.wire.state.controller_state import ControllerState
from rmqha.wire.state.name_server_state import NameServerState
from rmqha.wire.state.replica_state import ReplicaState

ANNOUNCED = "absence"
"""The check whose finding says that a node is away on purpose."""
CLOCK_WARN_MS, CLOCK_WRONG_MS = 500, 5_000
STEP_WARN_MS = 500
DIAL_TIMEOUT_MS = 1_000
ACCOUNT_FIX = "rmqha --security FILE doctor, with an account that it knows"
_PERMIT = (ResponseCode.NO_PERMISSION,)


@dataclass(slots=True)
class Answers:
    """Answers of one running node; what it did not tell is empty."""

    clock_offset_ms: float | None = None
    """Difference (ms) of the node's clock from this machine's, with the error `clock_error_ms`."""
    clock_error_ms: float = 0.0
    stepped_ms: int = 0
    keys: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


async def ask_all(
    nodes: Sequence[NodeUnderTest], store_facts: Mapping[str, StoreFacts], timeout_s: float
) -> tuple[dict[str, Answers], list[Finding]]:
    """Ask all nodes at once; a node without an answer within `timeout_s` counts as silent."""
    running = [node_under_test for node_under_test in nodes if node_under_test.running]
    answers = {node_under_test.name: Answers() for node_under_test in running}
    findings: list[Finding] = []
    async with RemotingClient() as client, trio.open_nursery() as nursery:
        for node_under_test in running:
            nursery.start_soon(_examine, client, node_under_test, answers[node_under_test.name], timeout_s)
        nursery.start_soon(_controllers, client, nodes, store_facts, findings, timeout_s)
        nursery.start_soon(_servers, nodes, findings)
    for node_under_test in running:
        findings += answers[node_under_test.name].findings
        findings += _judge_keys(node_under_test, answers[node_under_test.name])
    findings += judge_clocks(answers)
    return answers, findings


async def _examine(client: RemotingClient, node_under_test: NodeUnderTest, found: Answers, timeout_s: float) -> None:
    name = node_under_test.name
    try:
        with trio.fail_after(timeout_s):
            await _ask(client, node_under_test, found)
    except trio.TooSlowError:
        found.findings.append(_silent(node_under_test, f"it does not answer within {timeout_s:g} s"))
    except RemoteError as error:
        if error.code in _PERMIT:
            found.findings.append(warn(name, "answers", f"it answers, but refuses: {error.remark}", ACCOUNT_FIX))
        else:
            found.findings.append(wrong(name, "answers", str(error), f"rmqha logs {name}"))
    except RmqhaError as error:
        found.findings.append(_silent(node_under_test, str(error)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        sentence = f"its answer cannot be read ({error}): another program has its port"
        found.findings.append(wrong(name, "answers", sentence, f"ss -ltnp | grep {node_under_test.address}"))
    else:
        found.findings.append(ok(name, "answers", f"answers at {node_under_test.address}"))
    if node_under_test.broker is not None:
        await _reach(node_under_test, node_under_test.broker, found)


async def _servers(nodes: Sequence[NodeUnderTest], findings: list[Finding]) -> None:
    """Name servers and controllers that brokers are told of, and that are not among `nodes`."""
    own = {
        address
        for node_under_test in nodes
        for address in (node_under_test.address, node_under_test.controller_address)
    }
    wanted: dict[tuple[str, str], list[NodeUnderTest]] = {}
    for node_under_test in nodes:
        if node_under_test.broker is None:
            continue
        keys = {"namesrvAddr": node_under_test.broker.namesrv_addr}
        if node_under_test.broker.enable_controller_mode:
            keys["controllerAddr"] = node_under_test.broker.controller_addr
        for key, text in keys.items():
            for address in filter(None, map(str.strip, text.split(";"))):
                if address not in own:
                    wanted.setdefault((key, address), []).append(node_under_test)
    async with trio.open_nursery() as nursery:
        for (key, address), members in wanted.items():
            nursery.start_soon(_server, key, address, members, findings)


async def _server(key: str, address: str, members: Sequence[NodeUnderTest], findings: list[Finding]) -> None:
    name = members[0].name
    try:
        stream = await dial(address, DIAL_TIMEOUT_MS)
    except UnreachableError as error:
        fix = f"start it, open its port, or set {key} in {members[0].source}"
        make = wrong if members[0].running else warn
        findings.append(make(name, "servers", f"{key}: {error}", fix))
        return
    await trio.aclose_forcefully(stream)
    findings.append(ok(name, "servers", f"{key}: {address} can be reached"))


def _silent(node_under_test: NodeUnderTest, reason: str) -> Finding:
    name = node_under_test.name
    if node_under_test.is_remote:
        fix = "see on its machine whether it runs, and whether its port is open from here"
        return wrong(name, "answers", f"it is of no use from here: {reason}", fix)
    assert node_under_test.process is not None
    fix = f"rmqha logs {name}; then rmqha kill {name} and rmqha start {name}"
    sentence = f"runs (pid {node_under_test.process.pid}) but is of no use: {reason}"
    return wrong(
        node_under_test.name,
        "answers",
        sentence,
        fix if node_under_test.in_cluster else f"kill {node_under_test.process.pid}",
    )


async def _security(client: RemotingClient, node_under_test: NodeUnderTest, found: Answers) -> None:
    try:
        reply = await ask(client, node_under_test.address, Command(RequestCode.RMQHA_GET_SECURITY_STATE), None)
    except RemoteError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return
    found.findings += judge_security(node_under_test, loads(bytes(reply.body)))


def judge_refusal(name: str, replica: ReplicaState) -> list[Finding]:
    """Finding on a replica that runs, answers and follows no master, since it would lose what it knows as committed."""
    if not replica.refusal:
        return []
    sentence = f"it follows nobody, and the group lacks it: {replica.refusal}"
    return [wrong(name, "fork", sentence, f"rmqha fork show {name} tells what is at stake")]


def judge_role(name: str, replica: ReplicaState) -> list[Finding]:
    """Findings on a replica that the controllers refuse, and on a master that takes no messages: both run and
    answer."""
    found = []
    if replica.controller_refusal:
        sentence = f"they refuse it, and its group lacks it: {replica.controller_refusal}"
        found.append(wrong(name, "controllers", sentence, f"rmqha explain {replica.broker_name}"))
    if replica.leads and not replica.writable:
        sentence = f"it calls itself master and takes no messages: {replica.why_not_writable or 'no reason given'}"
        fix = f"rmqha explain-wait {replica.broker_name}; rmqha health tells whom the others call master"
        found.append(wrong(name, "master", sentence, fix))
    return found


def judge_unsaved(name: str, controller: ControllerState) -> list[Finding]:
    """Finding on a controller that answers, and whose disk completes no write."""
    problem = unsaved_sentence(controller.raft.unsaved_ms)
    return [wrong(name, "disk", problem, STALL_FIX)] if problem else []


async def _ask(client: RemotingClient, node_under_test: NodeUnderTest, found: Answers) -> None:
    """Ask a node for all that it tells; the caller bounds the time."""
    # the connection is made first, so that it does not count as distance of the clocks
    address, problem, damage = node_under_test.address, None, ""
    if node_under_test.kind is NodeKind.BROKER:
        replica = await ask_state(client, address, ReplicaState, None)
        problem, damage = replica.address_problem, damage_sentence(replica)
        found.findings += judge_refusal(node_under_test.name, replica)
        found.findings += judge_role(node_under_test.name, replica)
        if replica.kernel:
            found.findings.append(ok(node_under_test.name, "kernel", replica.kernel))
    elif node_under_test.kind is NodeKind.NAMESRV:
        state = await ask_state(client, address, NameServerState, None)
        problem = state.address_problem
        for group, rivals in (state.contested or {}).items():
            found.findings.append(wrong(group, "route", rivals_sentence(rivals), RIVALS_FIX))
    else:
        found.findings += judge_unsaved(node_under_test.name, await ask_state(client, address, ControllerState, None))
    if problem:
        fix = "set that key to the machine's address as others see it, then restart it"
        found.findings.append(wrong(node_under_test.name, "address", problem, fix))
    if damage:
        found.findings.append(wrong(node_under_test.name, "log", damage, DAMAGE_FIX))
    await _security(client, node_under_test, found)
    before_ns = time.time_ns()
    told = json.loads(bytes((await ask(client, address, Command(RequestCode.RMQHA_GET_HISTORY), None)).body))
    after_ns = time.time_ns()
    if "wallMs" in told:
        found.clock_offset_ms = told["wallMs"] - (before_ns + after_ns) / 2e6
        found.clock_error_ms = (after_ns - before_ns) / 2e6 + 1
        found.stepped_ms = int(told["clockSteppedMs"])
    if node_under_test.kind is NodeKind.NAMESRV and node_under_test.controller_address:
        controller = await ask_state(client, node_under_test.controller_address, ControllerState, None)
        found.findings += judge_unsaved(node_under_test.name, controller)
    if node_under_test.kind is NodeKind.BROKER:
        body = bytes((await ask(client, address, Command(RequestCode.GET_BROKER_CONFIG), None)).body)
        found.keys = parse_properties(body.decode(), node_under_test.address)


async def _reach(node_under_test: NodeUnderTest, config: BrokerConfig, found: Answers) -> None:
    """Dial the advertised addresses, to see if a server listens there."""
    for key, address in (("brokerIP1", config.address), ("brokerIP2", config.ha_address)):
        try:
            stream = await dial(address, DIAL_TIMEOUT_MS)
        except UnreachableError as error:
            fix = f"set {key} in {node_under_test.source} to an address of this machine, or open the port"
            found.findings.append(
                wrong(node_under_test.name, "address", f"others are told {address}, and {error}", fix)
            )
            return
        await trio.aclose_forcefully(stream)
    found.findings.append(
        ok(node_under_test.name, "address", f"{config.address} and {config.ha_address} can be reached")
    )


def _judge_keys(node_under_test: NodeUnderTest, found: Answers) -> list[Finding]:
    """Findings on keys that differ from the file, which may have been changed since the start."""
    if node_under_test.broker is None or not found.keys or node_under_test.is_remote:
        return []  # elsewhere there is no file to compare with
    wanted, live = node_under_test.broker.to_properties(), BrokerConfig.live_keys
    later = [
        key
        for key, value in wanted.items()
        if key in found.keys and found.keys[key] != value and key not in live and key not in ("haListenPort",)
    ]
    if not later:
        return [ok(node_under_test.name, "keys in force", "it runs with what its file says")]
    told = ", ".join(f"{key}={found.keys[key]} (file: {wanted[key]})" for key in later[:5])
    sentence = f"its file was changed after its start, it still runs with {told}"
    return [
        warn(
            node_under_test.name,
            "keys in force",
            sentence,
            f"rmqha stop {node_under_test.name}; {node_under_test.start_command}",
        )
    ]


def judge_clocks(answers: Mapping[str, Answers]) -> list[Finding]:
    """Findings on clocks that differ from this machine's, or that were set while their node ran."""
    findings = []
    known = {name: item for name, item in answers.items() if item.clock_offset_ms is not None}
    for name, item in known.items():
        assert item.clock_offset_ms is not None
        far_ms = abs(item.clock_offset_ms) - item.clock_error_ms
        if far_ms > CLOCK_WARN_MS:
            make = wrong if far_ms > CLOCK_WRONG_MS else warn
            side = "ahead of" if item.clock_offset_ms > 0 else "behind"
            sentence = (
                f"its clock is {far_ms / 1000:.1f} s {side} this machine's: stamps, delays and retention go by it"
            )
            findings.append(make(name, "clock", sentence, "timedatectl set-ntp true (or chronyc makestep) on both"))
        if abs(item.stepped_ms) > STEP_WARN_MS:
            sentence = f"its clock was set by {item.stepped_ms / 1000:+.1f} s since its start"
            findings.append(warn(name, "clock", sentence, "chronyc tracking; let NTP slew, not step"))
    if known and not findings:
        widest_ms = max(abs(item.clock_offset_ms or 0) for item in known.values())
        words = f"clocks asked: {len(known)}, none more than {widest_ms:.0f} ms from this machine's"
        findings.append(ok("machine", "clock", words))
    return findings


# --- the controllers' record ------------------------------------------------------------------------------------------
async def _controllers(
    client: RemotingClient,
    nodes: Sequence[NodeUnderTest],
    store_facts: Mapping[str, StoreFacts],
    findings: list[Finding],
    timeout_s: float,
) -> None:
    """Compare the controllers' record of each group's replicas with identity files and configured addresses."""
    groups: dict[str, list[NodeUnderTest]] = {}
    for node_under_test in nodes:
        if node_under_test.broker is not None and node_under_test.broker.enable_controller_mode:
            groups.setdefault(node_under_test.broker.broker_name, []).append(node_under_test)
    anybody = any(node_under_test.running for node_under_test in nodes)
    for name, members in groups.items():
        config = members[0].broker
        assert config is not None
        addresses = [address.strip() for address in config.controller_addr.split(";")]
        request = partial(Command, RequestCode.RMQHA_EXPLAIN_GROUP, {"brokerName": name})
        try:
            with trio.fail_after(timeout_s):
                # each of them may be silent, and so may the leader that one names
                each_ms = max(ASK_TIMEOUT_MS, round(timeout_s * 1000 / (len(addresses) + 1)))
                reply, _ = await ask_leader(client, addresses, request, each_ms)
            record = json.loads(bytes(reply.body))
            findings += judge_record(name, members, store_facts, record)
        except (trio.TooSlowError, UnreachableError) as error:
            # while everything is stopped that is as it should be
            findings += [_no_controller(name, config.controller_addr, error, timeout_s)] if anybody else []
        except RmqhaError as error:
            refused = isinstance(error, RemoteError) and error.code in _PERMIT
            fix = ACCOUNT_FIX if refused else "rmqha quorum show"
            findings.append(warn(name, "controllers", f"they tell nothing of it: {error}", fix))
        except (ValueError, KeyError, TypeError) as error:
            findings.append(wrong(name, "controllers", f"their answer cannot be read: {error}", "rmqha quorum show"))


def _no_controller(name: str, addresses: str, error: Exception, timeout_s: float) -> Finding:
    if isinstance(error, NoControllerError):
        reason, fix = error.why, error.fix
    else:
        reason = str(error) or f"none of {addresses} answers within {timeout_s:g} s"
        fix = "rmqha quorum show; rmqha status"
    return wrong(name, "controllers", f"nobody can elect a master for it: {reason}", fix)


def judge_record(
    group: str, members: Sequence[NodeUnderTest], store_facts: Mapping[str, StoreFacts], record: Mapping[str, Any]
) -> list[Finding]:
    """Findings on a group by the controllers' `record`, an answer to request 52010."""
    replicas = {int(item["brokerId"]): item for item in record["replicas"]}
    findings = []
    for member in members:
        identity = store_facts[member.name].identity
        config = member.broker
        assert config is not None
        if identity is None:
            continue
        known = replicas.get(identity.broker_id)
        if known is None:
            sentence = f"it holds id {identity.broker_id}, the controllers know only {sorted(replicas)} of {group}"
            fix = f"if it was removed: empty {member.data} and rmqha join {member.name}; else give them their disk back"
            findings.append(wrong(member.name, "identity", sentence, fix))
        elif known["address"] != config.address:
            sentence = f"the controllers have replica {identity.broker_id} at {known['address']}, not {config.address}"
            fix = f"stop the other one, then {member.start_command}: it tells them its address"
            make = wrong if member.running else warn
            findings.append(make(member.name, "identity", sentence, fix))
        else:
            findings.append(ok(member.name, "identity", f"the controllers have it as replica {identity.broker_id}"))
        announced = "drained" if known and known.get("drained") else "in maintenance"
        if known is not None and not member.running and (known.get("drained") or known.get("inMaintenance")):
            findings.append(ok(member.name, ANNOUNCED, f"{announced}: it may be away"))
        if known is not None and known.get("diskProblem"):
            findings.append(
                wrong(member.name, "disk", str(known["diskProblem"]), "dmesg | tail; rmqha explain " + group)
            )
    if record.get("masterBrokerId") is None:
        why = record.get("whyNoMaster") or record.get("answer")
        findings.append(wrong(group, "master", f"it has none: {why}", f"rmqha explain {group}"))
    return findings
