"""The manifests: what the start scripts write is given to the servers' own parsers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

import controller.server
import nameserver.config
from rmqha.cli.generate.kubernetes import CONF_DIR, GRACE_S, SCRATCH_DIR, KubernetesOptions, manifests
from rmqha.cli.local.broker import read_config
from rmqha.host.process import GRACE_MS

PLAN = KubernetesOptions(namespace="mq", replicas=3)


@pytest.fixture(scope="module", autouse=True)
def schemas() -> Iterator[None]:
    """The library parses megabytes of them again for each document."""
    from kubernetes_validate import utils

    with patch.object(utils, "schema_contents", cache(utils.schema_contents)):
        yield


def documents(plan: KubernetesOptions = PLAN) -> dict[tuple[str, str], dict[str, Any]]:
    found = {(item["kind"], item["metadata"]["name"]): item for item in yaml.safe_load_all(manifests(plan))}
    assert all(item["metadata"]["namespace"] == plan.namespace for item in found.values())
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = documents()["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def started(kind: str, pod: str, tmp_path: Path) -> Path:
    """The file with which the container of `pod` starts its server: its script, run with a stand-in for the program."""
    conf, scratch, programs = (tmp_path / name for name in ("conf", "scratch", "bin"))
    for directory in (conf, scratch, programs):
        directory.mkdir(exist_ok=True)
    for name, text in documents()["ConfigMap", "rmqha-conf"]["data"].items():
        (conf / name).write_text(text)
    program = programs / "rmqha"
    program.write_text(f'#!/bin/sh\n[ "$1" = {kind} ] && [ "$2" = -c ] && cat "$3" > {tmp_path}/seen\n')
    program.chmod(0o755)
    shell, flag, script = container(pod.rpartition("-")[0])["command"]
    script = script.replace(CONF_DIR, str(conf)).replace(f"{SCRATCH_DIR}/{kind}", f"{scratch}/{kind}")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOSTNAME": pod}
    subprocess.run([shell, flag, script], env=environment, check=True)
    return tmp_path / "seen"


def test_brokers_of_a_group_differ_by_their_address_alone(tmp_path: Path) -> None:
    config = read_config(started("broker", "rmqha-broker-a-2", tmp_path))
    assert config.address == "rmqha-broker-a-2.rmqha-broker-a.mq.svc:10911"
    assert config.ha_address == "rmqha-broker-a-2.rmqha-broker-a.mq.svc:10912"
    assert (config.ha_mode, config.total_replicas, config.http_host) == ("cp", 3, "0.0.0.0")
    assert len(config.controller_addr.split(";")) == 3


def test_controllers_know_themselves_by_their_number(tmp_path: Path) -> None:
    config = controller.server.read_config(str(started("controller", "rmqha-controller-1", tmp_path)))
    assert config.self_address == "rmqha-controller-1.rmqha-controller.mq.svc:9878"
    assert config.bind_address == "0.0.0.0:9878"
    assert len(config.peers) == 3


def test_name_servers_follow_the_controllers(tmp_path: Path) -> None:
    config, embedded = nameserver.config.read_config(str(started("namesrv", "rmqha-namesrv-0", tmp_path)))
    assert embedded is None and config.listen_port == 9876
    assert config.controller_addr.startswith("rmqha-controller-0.rmqha-controller.mq.svc:9878;")


@pytest.mark.parametrize("name", ["rmqha-broker-a", "rmqha-controller", "rmqha-namesrv"])
def test_pods_are_probed_found_and_let_go_in_order(name: str) -> None:
    found = documents()
    stateful_set, service = found["StatefulSet", name]["spec"], found["Service", name]["spec"]
    labels = stateful_set["template"]["metadata"]["labels"]
    assert stateful_set["serviceName"] == name and service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True, "who is not ready yet must be found by its peers"
    assert service["selector"] == stateful_set["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    pod, made = stateful_set["template"]["spec"], container(name)
    assert pod["terminationGracePeriodSeconds"] == GRACE_S and GRACE_S * 1000 > GRACE_MS
    assert made["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert made["livenessProbe"]["httpGet"]["path"] == made["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert {"name": "http", "containerPort": 9900} in made["ports"]
    volumes = {item["name"] for item in pod["volumes"]}
    volumes |= {item["metadata"]["name"] for item in stateful_set["volumeClaimTemplates"]}
    assert {item["name"] for item in made["volumeMounts"]} == volumes


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        KubernetesOptions(replicas=1, controllers=1, name_servers=1),
        KubernetesOptions("n" * 41, "1" * 63, "r.io/a:1@sha256:0", "0"),
    ],
)
@pytest.mark.parametrize("place", [0, -1], ids=["oldest", "newest"])
def test_manifests_hold_against_kubernetes_own_schemas(plan: KubernetesOptions, place: int) -> None:
    """The strict ones: a member that Kubernetes does not know is an error too."""
    from kubernetes_validate import utils, validate

    for document in documents(plan).values():
        validate(document, utils.all_versions()[place], strict=True)


def test_the_schemas_see_a_misspelt_member_and_a_wrong_type() -> None:
    """Else the test above could not fail."""
    from kubernetes_validate import ValidationError, utils, validate

    newest = utils.all_versions()[-1]
    stateful_set = documents()["StatefulSet", "rmqha-broker-a"]
    for wrong in ({"replica": 3}, {"replicas": "three"}):
        with pytest.raises(ValidationError):
            validate(stateful_set | {"spec": stateful_set["spec"] | wrong}, newest, strict=True)


def test_an_election_needs_all_so_brokers_start_together() -> None:
    policies = {
        name: item["spec"]["podManagementPolicy"] for (kind, name), item in documents().items() if kind == "StatefulSet"
    }
    assert policies == {
        "rmqha-broker-a": "Parallel",
        "rmqha-controller": "Parallel",
        "rmqha-namesrv": "OrderedReady",
    }
