"""Places where a drill's cluster lives: on this machine's loopback, on a host per node, or with a small disk per
broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmqha.drill.cluster import BROKERS, Cluster
from rmqha.drill.hosts.namespaces import Namespaces
from rmqha.drill.hosts.sandbox import mount_image, mount_tmpfs, uncover
from rmqha.ops.local.cluster_file import parse
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.launch import launch

DISK_BYTES = 64 * 1024 * 1024
SMALL_FILES = {
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxMessageSize": 1024 * 1024,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
"""Keys of brokers whose disk has DISK_BYTES."""
BALLAST = "drill.ballast"
BALLAST_STEP_BYTES = 64 * 1024


def cluster_of_hosts(hosts: Namespaces, document: dict[str, Any], scratch: Path, *, quiet: bool = False) -> Cluster:
    """A cluster with every node on a host of its own, named as the node. Must be called on the hub."""
    document["cluster"]["listenAddress"] = hosts.address("ns-1")
    spec = parse("drill.toml", document, directory=scratch / "cluster")
    moved = []
    for node in spec.nodes:
        ip, port = hosts.address(node.name), node.address.rpartition(":")[2]
        moved.append(replace(node, address=f"{ip}:{port}", properties={**node.properties, "listenAddress": ip}))

    def launch_there(state: ClusterState, name: str) -> None:
        hosts.run(name, lambda: launch(state, name))

    return Cluster(replace(spec, nodes=tuple(moved)), launch_there, quiet=quiet)


@contextmanager
def cluster_of_disks(document: dict[str, Any], scratch: Path, *, freezable: bool = False) -> Iterator[Cluster]:
    """A cluster with every broker's store on a file system of its own of DISK_BYTES. Only after `sandbox.enter_own`."""
    with ExitStack() as disks, Cluster.of(document, scratch, quiet=True) as cluster:
        for name in BROKERS:
            store = cluster.store(name)
            if freezable:
                mount_image(store, scratch / f"{name}.ext4", DISK_BYTES)
            else:
                mount_tmpfs(store, DISK_BYTES)
            disks.callback(uncover, store)
        yield cluster


@contextmanager
def direct_client(hosts: Namespaces, name: str, address: str, heard: Path) -> Iterator[None]:
    """A client process on the host of a node, which sends to that node and writes the answers to the file `heard`."""
    arguments = [sys.executable, "-P", "-m", "rmqha.drill.direct", address, str(heard)]
    client = hosts.run(name, lambda: subprocess.Popen(arguments))
    try:
        yield
    finally:
        client.terminate()
        client.wait()


def fill(store: Path) -> None:
    """Write until the disk says that it is full."""
    with (store / BALLAST).open("ab", buffering=0) as file:
        step = BALLAST_STEP_BYTES
        while step:
            try:
                while True:
                    file.write(bytes(step))
            except OSError:
                # the last blocks are smaller than a step
                step //= 2


def drain(store: Path) -> None:
    """Remove what `fill` wrote."""
    (store / BALLAST).unlink(missing_ok=True)
