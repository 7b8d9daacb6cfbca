"""The contents of `rmqha debug bundle`, collected. Control plane."""

from __future__ import annotations

import trio

from rmqha.cli.diagnosis.bundle import Bundle, BundleTarget, take_answers, take_cluster, take_commands, take_machine
from rmqha.cli.options import DEFAULT_NAMESRV, resolve_namesrv
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.error import RmqhaError, UnreachableError
from rmqha.ops.group_view import find_groups
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind

GROUP_LIMIT = 20
"""Groups that are explained one by one."""


async def collect(
    made: Bundle, state: ClusterState | None, namesrv: str | None, timeout_s: float, leading: list[str]
) -> None:
    # logs first: the small ends of them are worth more than anything else if the size runs out
    if state is not None:
        take_cluster(made, state)
    take_machine(made)
    targets = _local_targets(state) if state is not None else []
    groups = state.groups if state is not None else []
    if namesrv is not None:
        far, names = await _far_targets(made, resolve_namesrv(namesrv), timeout_s)
        known = {target.address for target in targets}
        targets += [target for target in far if target.address not in known]
        groups = sorted({*groups, *names})
        if state is None and not names and made.missing:
            raise UnreachableError(f"no name server of {namesrv} tells of a group: {made.missing[-1]['reason']}")
    await take_answers(made, targets, timeout_s)
    asked = {target.address for target in targets}
    controllers = state.controller_addresses if state is not None else []
    # whom a cluster elects by, only its brokers tell
    told = sorted(configured_controllers(made) - asked)
    await take_answers(made, [BundleTarget(_file_name(it), NodeKind.CONTROLLER, it) for it in told], timeout_s)
    await take_commands(made, _commands(state, namesrv, groups, [*controllers, *told]), leading)


def configured_controllers(made: Bundle) -> set[str]:
    """Values of controllerAddr in the configurations that were collected."""
    found = set()
    for path, data in made.files.items():
        if path.endswith("/config.properties"):
            lines = [line.partition("=") for line in data.decode(errors="replace").splitlines()]
            texts = [value for key, _, value in lines if key == "controllerAddr"]
            found |= {address.strip() for text in texts for address in text.split(";") if address.strip()}
    return found


def _file_name(address: str) -> str:
    return address.replace(":", "-")


def _local_targets(state: ClusterState) -> list[BundleTarget]:
    found = []
    for node in state.nodes.values():
        found.append(BundleTarget(node.name, NodeKind(node.kind), node.address, state.http_address(node.name)))
        if node.controller_address and node.kind == NodeKind.NAMESRV.value:
            found.append(BundleTarget(f"{node.name}-controller", NodeKind.CONTROLLER, node.controller_address))
    return found


async def _far_targets(made: Bundle, namesrv: str, timeout_s: float) -> tuple[list[BundleTarget], list[str]]:
    """Name servers and the brokers that they know, and the names of groups."""
    targets = [BundleTarget(_file_name(address), NodeKind.NAMESRV, address) for address in namesrv.split(";")]
    try:
        with trio.fail_after(timeout_s):
            async with RemotingClient() as client:
                groups = await find_groups(client, namesrv)
    except (RmqhaError, trio.TooSlowError) as error:
        made.miss("answers", str(error) or f"{namesrv} did not answer within {timeout_s:g} s")
        return targets, []
    for group in groups.values():
        targets += [
            BundleTarget(f"{group.name}-{_file_name(view.address)}", NodeKind.BROKER, view.address)
            for view in group.brokers
        ]
    return targets, sorted(groups)


def _commands(
    state: ClusterState | None, namesrv: str | None, groups: list[str], controllers: list[str]
) -> dict[str, list[str]]:
    """Arguments of the commands to run, by name in the bundle."""
    names = namesrv or (state.namesrv_addresses if state else "") or DEFAULT_NAMESRV
    found = {
        "describe": ["describe", "cluster", "--namesrv", names, "-o", "json"],
        "explain-wait": ["explain-wait", "--namesrv", names, "-o", "json"],
    }
    if controllers:
        these = ["--controller", ";".join(controllers), "-o", "json"]
        found["quorum"] = ["quorum", "show", *these]
        found |= {f"explain-{group}": ["explain", group, *these] for group in groups[:GROUP_LIMIT]}
    if state is None:
        return found | {"health": ["health", "--namesrv", names, "-o", "json"]}
    where = ["--directory", str(state.directory), "-o", "json"]
    found |= {name: [name, *where] for name in ("status", "history", "health")}
    return found | {"doctor": ["doctor", "--no-write", "-v", *where]}
