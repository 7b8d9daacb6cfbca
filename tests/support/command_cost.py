"""Processor time of each command of rmqha up to the first byte that it prints, on standard output or error."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import trio

from rmqha.cli.main import cli
from rmqha.drill.cluster import Cluster, quickstart
from rmqha.host.access.process_security import ambient
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.preflight import free_ports
from rmqha.ops.local.supervisor import send_signal
from tests.abuse.keys import Keys
from tests.support.patience import HANG_S

GOAL_MS = 150.0
LINES: dict[str, str] = {
    # what asks a running cluster
    "status": "",
    "health": "",
    "top": "--once --interval 0.2",
    "history": "",
    "explain": "broker-a",
    "explain-wait": "",
    "describe cluster": "",
    "describe group": "broker-a",
    "describe broker": "broker-a-1",
    "describe topic": "T",
    "logs": "broker-a-1",
    "topic ls": "",
    "topic list": "",
    "topic describe": "T",
    "topic create": "other",
    "topic alter": "other --queues 4",
    "topic delete": "other --yes",
    "send": "--topic T one two three",
    "receive": "--topic T --max 3",
    "consumer ls": "",
    "consumer describe": "readers",
    "consumer lag": "readers",
    "consumer members": "readers",
    "consumer reset": "readers --to first --yes",
    "consumer skip": "readers --yes",
    "consumer create": "others",
    "consumer alter": "readers --pause",
    "consumer delete": "readers --yes",
    "message find": "--topic T --grep one",
    "message get": "{message} --topic T",
    "message track": "{message} --topic T",
    "message resend": "{message} --topic T --yes",
    "timers": "",
    "transactions": "",
    "dlq ls": "",
    "dlq resend": "readers --yes",
    "dlq export": "readers -",
    "config show": "broker-a-1",
    "config get": "broker-a-1 slaveReadEnable",
    "config set": "broker-a-1 slaveReadEnable=false",
    "config diff": "broker-a-1 broker-a-2",
    "acl user ls": "",
    "acl user create": "somebody",
    "acl user alter": "somebody --disable",
    "acl user rm": "somebody",
    "acl policy ls": "",
    "acl policy set": "somebody Topic:T Pub",
    "acl policy rm": "somebody",
    "acl migrate": "{directory}/plain_acl.yml",
    "quorum show": "",
    "quorum snapshot": "",
    "quorum add": "127.0.0.1:1",
    "quorum remove": "n7",
    "quorum transfer": "",
    "group resize": "broker-a 3",
    "upgrade check": "",
    "fork ls": "",
    "fork show": "broker-a-2",
    "fork repair": "broker-a-2 --yes",
    "maintenance show": "",
    "maintenance on": "broker-a-2",
    "maintenance off": "broker-a-2",
    "drain": "broker-a-3",
    "elect": "broker-a",
    # what works for long, and says at once what it does
    "doctor": "",
    "debug bundle": "--out {directory}/bundle.tar.gz",
    "selftest disk": "{directory} --seconds 0.1",
    "selftest net": "{namesrv} --seconds 0.1",
    "bench produce": "--seconds 0.1",
    "bench consume": "--seconds 0.1",
    "bench e2e": "--seconds 0.1",
    "bench replicate": "--seconds 0.1",
    "drill": "failover --n 1 --scratch {directory}",
    "spark query": '"select 1" --path {store}',
    "spark archive": "--path {store} --to {directory}/archive",
    "spark restore": "{directory}/archive --to {directory}/restored",
    # files
    "log ls": "{store}",
    "log stat": "{store}",
    "log cat": "{store}",
    "log grep": "{store} one",
    "log export": "{store} {directory}/messages.jsonl",
    "log verify": "{store}",
    "log kept": "{store}",
    "log sync": "{store} --to {directory}/copy",
    "epochs show": "{store}",
    "epochs diff": "{store} {store}",
    "fsck": "{directory}/nothing",
    "migrate": "--to static {store}",
    "generate completion": "bash",
    "generate grafana": "",
    "generate k8s": "",
    "generate prometheus": "",
    "generate secret": "{directory}/secret",
    "generate spark": "job",
    "generate systemd": "broker",
    "context add": "elsewhere --namesrv {namesrv}",
    "context ls": "",
    "context rm": "elsewhere",
    "use": "",
    # processes of the cluster
    "remove": "broker-a-1",
    "join": "broker-a-9",
    "stop": "broker-a-3",
    "start": "broker-a-3",
    "restart": "broker-a-3",
    "kill": "broker-a-3",
    "purge": "--yes",
    "down": "",
    "up": "--brokers 1 --port-base {port} --directory {directory}/new",
}
"""Arguments of each command, in an order in which all of them find what they need. "{…}" is a place."""
VARIANTS: dict[str, str] = {
    "send of more than are sent one by one": f"send --topic T {' '.join(map(str, range(20)))}",
    "send at a rate": "send --topic T --rate 100 one two",
    "receive as a group": "receive --topic T --group others --max 1",
    "receive by tags": "receive --topic T --tags A --idle 0.1",
    "receive what comes": "receive --topic T --from last --idle 0.1",
}
"""Calls that need more than those of LINES do, with what their names tell."""
SECURED = (
    "status", "health", "top", "history", "explain", "explain-wait", "describe cluster", "describe group",
    "describe broker", "describe topic", "logs", "topic ls", "topic create", "topic alter", "topic delete", "send",
    "receive", "consumer ls", "consumer lag", "consumer reset", "message find", "message get", "timers", "dlq ls",
    "config show", "config set", "quorum show", "group resize", "upgrade check", "fork ls", "maintenance on",
    "maintenance off", "elect", "doctor",
)  # fmt: skip
"""Commands of LINES that are tried with TLS and an account too."""
SERVERS = ("broker", "namesrv", "controller", "proxy")
"""Their first word is that they have started, whose time is a figure of its own; so their --help is taken."""


def command_names(command: click.Command = cli, *before: str) -> Iterator[str]:
    """Words of each command that does something."""
    if not isinstance(command, click.Group):
        yield " ".join(before)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from command_names(below, *before, name)


def lines() -> dict[str, str]:
    """Arguments by command, those of servers too."""
    return LINES | dict.fromkeys(SERVERS, "--help")


def arguments_of(name: str, places: Mapping[str, str]) -> list[str]:
    """Words of a command: `places` are those of `small_cluster`."""
    if name in VARIANTS:
        return shlex.split(VARIANTS[name])
    return [*name.split(), *shlex.split(lines()[name].format_map(places))]


def first_output_ms(words: list[str], environment: Mapping[str, str], directory: Path) -> float:
    """Processor time (ms, user and system, all threads) of one run until its first byte; then it is ended."""
    command = [sys.executable, "-m", "rmqha", *words]
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        # the clock of another process, as clock_getcpuclockid(3) makes its number
        spent_s = time.clock_gettime((~process.pid << 3) | 2)
        assert first, f"{' '.join(words)} printed nothing"
        try:
            process.communicate(timeout=HANG_S if words[0] in ENDED else 0)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_S)
    return spent_s * 1000


ENDED = frozenset(name.split()[0] for name in LINES) - {"doctor", "debug", "selftest", "bench", "drill", "spark"}
"""Commands that are waited for, since those behind them build on what they do."""


@contextmanager
def small_cluster(scratch: Path, keys: Keys | None = None) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """A running group of three with a topic, messages and a consumer group, secured if there are `keys`: the
    environment that commands need to find it and to ask it, and the places in their arguments."""
    document, security = quickstart("cp"), {}
    if keys is not None:
        keys.protect(document)
        security = {"RMQHA_SECURITY": str(keys.client("operator"))}
    with Cluster.of(document, scratch, quiet=True) as cluster:
        asks_as = ambient.set(keys.servers()) if keys is not None else None
        try:
            trio.run(cluster.up)
        finally:
            if asks_as is not None:
                ambient.reset(asks_as)
        name_server = cluster.state.nodes["ns-1"].address
        environment = {
            "RMQHA_DIRECTORY": str(cluster.state.directory),
            "XDG_CONFIG_HOME": str(scratch / "config"),
            "COLUMNS": "200",
            # as where it is installed: no command compiles the modules that it loads
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(scratch / "compiled"),
            **security,
        }
        acknowledged = scratch / "acknowledged.jsonl"
        for words in (
            "topic create T --queues 2",
            f"send --topic T --key k one two three --acked {acknowledged}",
            "receive --topic T --group readers --max 3",
        ):
            command = [sys.executable, "-m", "rmqha", *words.split()]
            subprocess.run(
                command, env={**os.environ, **environment}, cwd=scratch, check=True, capture_output=True, timeout=HANG_S
            )
        (scratch / "plain_acl.yml").write_text("accounts:\n- accessKey: somebody\n  secretKey: 12345678\n")
        store = scratch / "store"
        shutil.copytree(cluster.state.data_path(cluster.state.nodes["broker-a-2"]), store)
        message = json.loads(acknowledged.read_text().splitlines()[0])["msgId"]
        port = str(free_ports(100))
        try:
            yield (
                environment,
                {
                    "directory": str(scratch),
                    "store": str(store),
                    "namesrv": name_server,
                    "message": message,
                    "port": port,
                },
            )
        finally:
            for directory in (cluster.state.directory, scratch / "new"):
                state = ClusterState.find(directory) if directory.is_dir() else None
                for node in state.nodes.values() if state is not None else ():
                    if node.process is not None:
                        send_signal(node.process, signal.SIGKILL)
