"""Kubernetes manifests: controllers, name servers and one broker group, with probes and disruption budgets. Pure.

Written without a cluster to try them on: tests hold them against Kubernetes' schemas, run the start scripts and give
what they write to the servers' own parsers. docs/operate/generate.md says what nobody has tried.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from rmqha.ops.guarantee import PRESETS

NAMESRV_PORT, CONTROLLER_PORT, BROKER_PORT, HTTP_PORT = 9876, 9878, 10911, 9900
CONF_DIR, SECRET_DIR, DATA_DIR, SCRATCH_DIR = "/etc/rmqha", "/etc/rmqha-secret", "/var/lib/rmqha", "/tmp"
SECRET_FILE = "ha.secret"
GRACE_S = 30
"""A stopping server needs ten seconds at most."""
USER_ID = 10001


class _Dumper(yaml.SafeDumper):
    """Files and scripts as blocks, to be read by people."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, _Dumper.represent_str)


class KubernetesOptions(NamedTuple):
    """Choices of the user. `group` is the brokerName."""

    name: str = "rmqha"
    namespace: str = "default"
    image: str = "rmqha:0.1.0"
    group: str = "broker-a"
    replicas: int = 3
    controllers: int = 3
    name_servers: int = 2
    ha_mode: str = "cp"
    storage: str = "50Gi"
    secret: str = "0" * 64
    """Content of haSecretFile; each cluster has its own."""

    @property
    def controller_set(self) -> str:
        return f"{self.name}-controller"

    @property
    def namesrv_set(self) -> str:
        return f"{self.name}-namesrv"

    @property
    def broker_set(self) -> str:
        return f"{self.name}-{self.group}"

    def hosts(self, stateful_set: str, count: int) -> list[str]:
        """DNS names of its pods, which stay when addresses change."""
        return [f"{stateful_set}-{n}.{stateful_set}.{self.namespace}.svc" for n in range(count)]

    def addresses(self, stateful_set: str, count: int, port: int) -> str:
        return ";".join(f"{host}:{port}" for host in self.hosts(stateful_set, count))


def manifests(plan: KubernetesOptions) -> str:
    """All documents, to be read by `kubectl apply -f -`."""
    documents = [
        _config_map(plan),
        _secret(plan),
        *_servers(plan, plan.controller_set, "controller", plan.controllers, CONTROLLER_PORT, "1Gi"),
        *_servers(plan, plan.namesrv_set, "namesrv", plan.name_servers, NAMESRV_PORT, "1Gi"),
        *_servers(plan, plan.broker_set, "broker", plan.replicas, BROKER_PORT, plan.storage),
    ]
    head = (
        "# Written by `rmqha generate k8s`; docs/operate/generate.md says what has not been tried.\n"
        "# Servers listen on all addresses: before others can reach them set aclEnable and tls.* in the ConfigMap.\n"
    )
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
    return head + text


# --- configuration ------------------------------------------------------------------------------------------------
def _config_map(plan: KubernetesOptions) -> dict[str, Any]:
    controllers = plan.addresses(plan.controller_set, plan.controllers, CONTROLLER_PORT)
    peers = ";".join(f"n{n}-{address}" for n, address in enumerate(controllers.split(";")))
    # logs go to standard output, where the cluster collects them
    common = {"listenAddress": "0.0.0.0", "httpHost": "0.0.0.0", "httpPort": str(HTTP_PORT)}
    common["haSecretFile"] = f"{SECRET_DIR}/{SECRET_FILE}"
    data = {
        "controller.conf": common
        | {
            "controllerDLegerGroup": plan.name,
            "controllerDLegerPeers": peers,
            "controllerStorePath": f"{DATA_DIR}/data",
        },
        "namesrv.conf": common
        | {"listenPort": str(NAMESRV_PORT), "controllerAddr": controllers, "kvConfigPath": f"{DATA_DIR}/kvConfig.json"},
        "broker.conf": common
        | {
            "brokerClusterName": plan.name,
            "brokerName": plan.group,
            "totalReplicas": str(plan.replicas),
            "haMode": plan.ha_mode,
            **PRESETS[plan.ha_mode],
            "listenPort": str(BROKER_PORT),
            "namesrvAddr": plan.addresses(plan.namesrv_set, plan.name_servers, NAMESRV_PORT),
            "controllerAddr": controllers,
            "storePathRootDir": f"{DATA_DIR}/store",
        },
    }
    texts = {name: "".join(f"{key}={value}\n" for key, value in keys.items()) for name, keys in data.items()}
    return _document("v1", "ConfigMap", plan, f"{plan.name}-conf", "conf") | {"data": texts}


def _secret(plan: KubernetesOptions) -> dict[str, Any]:
    """The Secret that replicas prove on their HA ports, and controllers sign with."""
    return _document("v1", "Secret", plan, f"{plan.name}-ha", "conf") | {"stringData": {SECRET_FILE: plan.secret}}


def start_script(plan: KubernetesOptions, kind: str) -> str:
    """The command of a container: its own keys behind those that all share."""
    stateful_set = {"controller": plan.controller_set, "namesrv": plan.namesrv_set, "broker": plan.broker_set}[kind]
    own = {
        "controller": 'echo "controllerDLegerSelfId=n${HOSTNAME##*-}"',
        "namesrv": "true",
        "broker": f'echo "brokerIP1=$HOSTNAME.{stateful_set}.{plan.namespace}.svc"',
    }[kind]
    written = f"{SCRATCH_DIR}/{kind}.conf"
    return f"set -e\n{{ cat {CONF_DIR}/{kind}.conf; {own}; }} > {written}\nexec rmqha {kind} -c {written}\n"


# --- servers --------------------------------------------------------------------------------------------------------
def _servers(
    plan: KubernetesOptions, name: str, kind: str, count: int, port: int, storage: str
) -> list[dict[str, Any]]:
    labels = _labels(plan, kind)
    service_ports = [{"name": "main", "port": port}, {"name": "http", "port": HTTP_PORT}]
    if kind == "broker":
        service_ports += [{"name": "ha", "port": port + 1}, {"name": "fast", "port": port - 2}]
    service = _document("v1", "Service", plan, name, kind) | {
        # a replica must be found by its peers before it is ready: it becomes ready by copying from them
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": service_ports}
    }
    budget = _document("policy/v1", "PodDisruptionBudget", plan, name, kind) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}},
    }
    stateful_set = _document("apps/v1", "StatefulSet", plan, name, kind) | {
        "spec": {
            "serviceName": name,
            "replicas": count,
            # controllers form their group by all of them; the others are started and stopped one after another
            "podManagementPolicy": "Parallel" if kind == "controller" else "OrderedReady",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(plan, kind, service_ports, labels)},
            "volumeClaimTemplates": [claim],
        }
    }
    if kind == "broker":
        # the first election waits for all replicas, so none may wait for another to be ready
        stateful_set["spec"]["podManagementPolicy"] = "Parallel"
    return [service, budget, stateful_set]


def _pod(plan: KubernetesOptions, kind: str, ports: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, Any]:
    def probe(path: str, **times: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": "http"}, "timeoutSeconds": 2, **times}

    mounts = [("conf", CONF_DIR), ("secret", SECRET_DIR), ("data", DATA_DIR), ("scratch", SCRATCH_DIR)]
    container = {
        "name": kind,
        "image": plan.image,
        "command": ["/bin/sh", "-c", start_script(plan, kind)],
        "ports": [{"name": item["name"], "containerPort": item["port"]} for item in ports],
        "startupProbe": probe("/healthz", periodSeconds=1, failureThreshold=120),
        "livenessProbe": probe("/healthz", periodSeconds=5, failureThreshold=6),
        "readinessProbe": probe("/readyz", periodSeconds=2, failureThreshold=3),
        "resources": {"requests": {"cpu": "250m", "memory": "256Mi"}},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spread = {
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}},
    }
    return {
        "terminationGracePeriodSeconds": GRACE_S,
        # no server asks the API of Kubernetes
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [spread]}},
        "containers": [container],
        "volumes": [
            {"name": "conf", "configMap": {"name": f"{plan.name}-conf"}},
            # read by the group of the pod, which is the server's own
            {"name": "secret", "secret": {"secretName": f"{plan.name}-ha", "defaultMode": 0o440}},
            {"name": "scratch", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _labels(plan: KubernetesOptions, kind: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "rmqha",
        "app.kubernetes.io/instance": plan.name,
        "app.kubernetes.io/component": kind,
    }


def _document(api_version: str, kind: str, plan: KubernetesOptions, name: str, component: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": plan.namespace, "labels": _labels(plan, component)}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
