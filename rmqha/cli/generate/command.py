"""`rmqha generate`: everything goes to standard output, to be redirected or piped. Control plane."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import click

from rmqha.cli.generate.systemd import hidden_from_units
from rmqha.cli.options import directory_option
from rmqha.model.error import UsageError
from rmqha.model.identity import parse_address

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL_LENGTH = 63
_MAX_SET_LENGTH = 52
"""Longest name of a StatefulSet: Kubernetes labels its pods with it and a hash of ten characters more."""
_SIZE = re.compile(r"[1-9][0-9]*(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?")


@click.group()
def generate() -> None:
    """Write files for the programs around a cluster to standard output.

    Example: rmqha generate prometheus --alerts > rmqha-alerts.yml
    """


@generate.command()
@click.option("--alerts", is_flag=True, help="The alert rules instead of the scrape configuration.")
@click.option("--target", "targets", multiple=True, metavar="NAME=HOST:PORT", help="A server's httpPort; repeatable.")
@directory_option
def prometheus(alerts: bool, targets: tuple[str, ...], directory: Path | None) -> None:
    """Prometheus' scrape configuration, of the local cluster's nodes or of --target, or its alert rules.

    Example: rmqha generate prometheus --target broker-a-1=10.0.0.1:9920 > prometheus.yml
    """
    from rmqha.cli.generate.prometheus import alert_rules, scrape_config

    click.echo(alert_rules() if alerts else scrape_config(_targets(targets, directory)), nl=False)


def _targets(given: tuple[str, ...], directory: Path | None) -> dict[str, str]:
    """Addresses of the servers to scrape, by name. Raises UsageError if there are none."""
    found = {}
    for item in given:
        name, equals, address = item.partition("=")
        try:
            parse_address(address)
        except ValueError as error:
            raise UsageError(f"--target {item}: {error if equals else 'it must be NAME=HOST:PORT'}") from None
        if not name or name in found:
            raise UsageError(
                f"--target {item}: {'two targets have this name' if name else 'it must be NAME=HOST:PORT'}"
            )
        found[name] = address
    if found:
        return found
    from rmqha.ops.local.cluster_state import ClusterState

    state = ClusterState.require(directory)
    found = {name: address for name in state.nodes if (address := state.http_address(name))}
    if not found:
        raise UsageError(
            f"no node of {state.name} shows metrics: set [cluster] httpPort in {state.cluster_file}, or give --target"
        )
    return found


@generate.command()
def grafana() -> None:
    """A Grafana dashboard, JSON to import.

    Example: rmqha generate grafana > rmqha-dashboard.json
    """
    from rmqha.cli.generate.grafana import dashboard

    click.echo(dashboard(), nl=False)


@generate.command()
@click.argument("kind", type=click.Choice(["broker", "controller", "namesrv"]))
def systemd(kind: str) -> None:
    """A hardened systemd unit for servers of one kind; instance NAME reads /etc/rmqha/NAME.conf.

    Example: rmqha generate systemd broker > /etc/systemd/system/rmqha-broker@.service
    """
    from rmqha.cli.generate.systemd import unit

    found = Path(shutil.which("rmqha") or Path(sys.executable).with_name("rmqha")).absolute()
    if hidden := hidden_from_units((found, Path(sys.executable).resolve())):
        click.echo(
            f"rmqha: the unit cannot reach {hidden} (ProtectHome, PrivateTmp); install rmqha with a Python of the "
            "system, for example in /opt/rmqha, and run this command there",
            err=True,
        )
    click.echo(unit(kind, str(found)), nl=False)


@generate.command()
@click.option("--name", default="rmqha", show_default=True, help="Begin of all names, and the clusterName.")
@click.option("--namespace", default="default", show_default=True, help="Namespace of all objects.")
@click.option("--image", default="rmqha:0.1.0", show_default=True, help="An image with the rmqha command and a shell.")
@click.option("--group", default="broker-a", show_default=True, help="The brokerName of the group.")
@click.option("--replicas", type=click.IntRange(1, 9), default=3, show_default=True, help="Replicas of the group.")
@click.option(
    "--controllers", type=click.Choice(["1", "3", "5"]), default="3", show_default=True, help="Number of controllers."
)
@click.option("--name-servers", type=click.IntRange(1, 9), default=2, show_default=True, help="Number of name servers.")
@click.option("--mode", type=click.Choice(["ap", "cp"]), default="cp", show_default=True, help="haMode of the group.")
@click.option("--storage", default="50Gi", show_default=True, help="Size of each broker's volume.")
def k8s(
    name: str,
    namespace: str,
    image: str,
    group: str,
    replicas: int,
    controllers: str,
    name_servers: int,
    mode: str,
    storage: str,
) -> None:
    """Kubernetes manifests of controllers, name servers and a broker group. Not tried on a cluster.

    Example: rmqha generate k8s --namespace mq | kubectl apply -f -
    """
    from rmqha.cli.generate.kubernetes import KubernetesOptions, manifests
    from rmqha.host.access.shared_secret import new_secret

    for option, value in (("--name", name), ("--namespace", namespace), ("--group", group)):
        if not _LABEL.fullmatch(value) or len(value) > _MAX_LABEL_LENGTH:
            raise UsageError(
                f"{option} {value!r} must be lower-case letters, digits and -, at most {_MAX_LABEL_LENGTH}"
            )
    if not name[0].isalpha():
        raise UsageError(f"--name {name!r} must begin with a letter: names of Services do")
    if not _SIZE.fullmatch(storage):
        raise UsageError(f"--storage {storage!r} must be a size as Kubernetes writes it, for example 50Gi")
    if not re.fullmatch(r"\S+", image):
        raise UsageError(f"--image {image!r} must be the name of an image, without blanks")
    counts = (replicas, int(controllers), name_servers)
    plan = KubernetesOptions(name, namespace, image, group, *counts, mode, storage, new_secret())
    for made in (plan.controller_set, plan.namesrv_set, plan.broker_set):
        if len(made) > _MAX_SET_LENGTH:
            raise UsageError(
                f"the StatefulSet {made} would have {len(made)} letters, more than {_MAX_SET_LENGTH}: "
                "give a shorter --name or --group"
            )
    click.echo(manifests(plan), nl=False)


@generate.command()
@click.argument("kind", type=click.Choice(["standalone", "yarn", "kubernetes", "job"]))
@click.option("--job", default="job.py", show_default=True, help="The Python file to submit.")
@click.option("--stores", default="", metavar="DIR", help="Of Kubernetes: where the volume with the stores is mounted.")
@click.option("--image", default="rmqha-spark:latest", show_default=True, help="Of Kubernetes: Spark with rmqha in it.")
def spark(kind: str, job: str, stores: str, image: str) -> None:
    """A script that submits a job over logs to a Spark cluster, or a job to begin with.

    Example: rmqha generate spark job > job.py; rmqha generate spark yarn > submit.sh
    """
    from rmqha.cli.generate.spark import JOB, submit_script

    if stores and not stores.startswith("/"):
        raise UsageError(f"--stores {stores!r} must be an absolute path: it is the place in a container")
    click.echo(JOB if kind == "job" else submit_script(kind, job, stores, image), nl=False)


@generate.command()
@click.argument("file", type=click.Path(path_type=Path))
def secret(file: Path) -> None:
    """A new secret for haSecretFile, in FILE with mode 0600; every server of the cluster needs the same one.

    Example: rmqha generate secret /etc/rmqha/ha.secret
    """
    from rmqha.host.access.shared_secret import make_secret_file

    try:
        made = make_secret_file(file)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None
    if not made:
        raise UsageError(f"{file} exists: servers may know what it holds; remove it first if you mean to replace it")
    click.echo(f"haSecretFile={file.absolute()}")


@generate.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """A script that completes commands and options in a shell.

    Example: eval "$(rmqha generate completion bash)"
    """
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None, "click knows these three"
    click.echo(made(root, {}, "rmqha", "_RMQHA_COMPLETE").source())
