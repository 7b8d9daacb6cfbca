"""Archive of everything that support needs of a cluster: redacted, bounded, with a manifest of what is missing.

Never in it: messages, files of accounts and credentials, private keys.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import trio
import yaml

from rmqha import __version__
from rmqha.cli.diagnosis.redact import is_secret, redact_bytes
from rmqha.host.disk import RESERVE_NAME
from rmqha.host.http.get import http_get
from rmqha.host.net.remoting import RemotingClient
from rmqha.model.code import RequestCode
from rmqha.model.error import RmqhaError, UnreachableError
from rmqha.ops.asking import ask
from rmqha.ops.local.cluster_state import ClusterState
from rmqha.ops.local.node_kind import NodeKind
from rmqha.wire.command import Command

VERSION = 1
TAIL_BYTES = 512 * 1024
SMALL_BYTES = 256 * 1024
COMMAND_TIMEOUT_S = 30.0
AT_ONCE = 2
STORE_FILES = (
    "brokerIdentity",
    "brokerIdentity-temp",
    "epochFileCheckpoint",
    "epochFileCheckpoint.bak",
    "checkpoint",
    "abort",
    "rmqha.*",
    "config/*",
)
"""Files of a store; `rmqha.*` are our own small files."""
FILES_OF_ZEROS = ("rmqha.probe", RESERVE_NAME)
"""Prefixes of the names of files that hold zeros: the disk probe's, and the space reserve."""
MACHINE_FILES = (
    "/etc/os-release",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/version",
    "/proc/self/mountinfo",
    "/proc/self/limits",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/sys/fs/cgroup/memory.max",
)
LIBRARIES = ("trio", "cbor2", "click", "rich", "pyyaml", "pyspark", "pyarrow", "numpy", "lz4", "zstandard", "h11")
PAGES = ("metrics", "readyz", "role")
"""Pages of a server's httpPort."""


@dataclass(frozen=True, slots=True)
class BundleTarget:
    """A server to be asked."""

    name: str
    kind: NodeKind
    address: str
    http_address: str = ""


QUESTIONS: Mapping[NodeKind, tuple[tuple[str, RequestCode], ...]] = {
    NodeKind.BROKER: (
        ("state.json", RequestCode.RMQHA_GET_REPLICA_STATE),
        ("history.json", RequestCode.RMQHA_GET_HISTORY),
        ("config.properties", RequestCode.GET_BROKER_CONFIG),
        ("runtime.json", RequestCode.GET_BROKER_RUNTIME_INFO),
        ("epochs.json", RequestCode.GET_BROKER_EPOCH_CACHE),
        ("ha.json", RequestCode.GET_BROKER_HA_STATUS),
        ("topics.json", RequestCode.GET_ALL_TOPIC_CONFIG),
    ),
    NodeKind.CONTROLLER: (
        ("state.json", RequestCode.RMQHA_GET_CONTROLLER_STATE),
        ("history.json", RequestCode.RMQHA_GET_HISTORY),
        ("config.properties", RequestCode.CONTROLLER_GET_CONFIG),
        ("quorum.json", RequestCode.RMQHA_GET_QUORUM),
    ),
    NodeKind.NAMESRV: (
        ("state.json", RequestCode.RMQHA_GET_NAMESRV_STATE),
        ("history.json", RequestCode.RMQHA_GET_HISTORY),
        ("clusters.json", RequestCode.GET_BROKER_CLUSTER_INFO),
    ),
}


@dataclass
class Bundle:
    """Collection of files in memory, at most `limit_bytes` before compression; the manifest names those that did not
    fit."""

    limit_bytes: int
    known_secrets: Collection[str] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    missing: list[dict[str, str]] = field(default_factory=list)
    used_bytes: int = 0

    def add(self, path: str, data: bytes, source: str) -> None:
        """Add a file; it is redacted here, so that no secret can leave."""
        clean = redact_bytes(data, self.known_secrets)
        if self.used_bytes + len(clean) > self.limit_bytes:
            self.miss(path, f"{len(clean)} bytes are more than --max-mb leaves")
            return
        self.files[path] = clean
        self.sources[path] = source
        self.used_bytes += len(clean)

    def add_json(self, path: str, value: Any, source: str) -> None:
        self.add(path, json.dumps(value, indent=1, ensure_ascii=False).encode(), source)

    def miss(self, path: str, reason: str) -> None:
        self.missing.append({"path": path, "reason": redact_bytes(reason.encode(), self.known_secrets).decode()})

    def take(self, path: str, file: Path, *, limit_bytes: int, tail: bool = False) -> None:
        """Add a file of this machine, or its last bytes."""
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                if size > limit_bytes and not tail:
                    self.miss(path, f"{file} has {size} bytes, more than {limit_bytes}")
                    return
                cut = tail and size > limit_bytes
                if cut:
                    opened.seek(size - limit_bytes)
                    # from a whole line on: half a line may hide the name of a secret
                    opened.readline()
                data = opened.read(limit_bytes)
        except OSError as error:
            self.miss(path, f"{file} cannot be read: {error.strerror or error}")
            return
        self.add(path, data, f"the end of {file}" if cut else str(file))

    def write(self, out: Path, about: Mapping[str, Any]) -> None:
        """Write the archive, whole or not at all, for the owner only. Raises OSError."""
        manifest = {
            "version": VERSION,
            **about,
            "taken": [
                {
                    "path": path,
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "source": redact_bytes(self.sources[path].encode(), self.known_secrets).decode(),
                }
                for path, data in sorted(self.files.items())
            ],
            "missing": self.missing,
        }
        root = out.name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar")
        partial = out.with_name(f".{out.name}.partial")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                text = json.dumps(manifest, indent=1, ensure_ascii=False).encode()
                for path, data in (("manifest.json", text), *sorted(self.files.items())):
                    entry = tarfile.TarInfo(f"{root}/{path}")
                    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                    archive.addfile(entry, io.BytesIO(data))
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)


# --- files ------------------------------------------------------------------------------------------------------------
def take_cluster(bundle: Bundle, state: ClusterState) -> None:
    """Add the files of a local cluster's directory, and its cluster file."""
    bundle.take("cluster/cluster.json", state.directory / "cluster.json", limit_bytes=SMALL_BYTES)
    bundle.take(f"cluster/{Path(state.cluster_file).name}", Path(state.cluster_file), limit_bytes=SMALL_BYTES)
    for name, record in state.nodes.items():
        place = f"nodes/{name}"
        bundle.take(f"{place}/node.conf", state.config_path(name), limit_bytes=SMALL_BYTES)
        for path in (state.log_path(name), state.output_path(name)):
            bundle.take(f"{place}/{path.name}", path, limit_bytes=TAIL_BYTES, tail=True)
        try:
            _take_store(bundle, place, state.data_path(record), STORE_FILES if record.is_broker else ())
        except OSError as error:
            bundle.miss(f"{place}/store", f"{error.filename} cannot be looked at: {error.strerror}")
        if record.process is not None and record.process.alive:
            for what in ("status", "limits", "io"):
                source = Path(f"/proc/{record.process.pid}/{what}")
                bundle.take(f"{place}/process/{what}", source, limit_bytes=SMALL_BYTES)


def _take_store(bundle: Bundle, place: str, data: Path, patterns: Collection[str]) -> None:
    if not data.is_dir():
        bundle.miss(f"{place}/files.json", f"{data} is not there")
        return
    bundle.add_json(f"{place}/files.json", listing(data), str(data))
    for pattern in patterns:
        for path in sorted(data.glob(pattern)):
            if path.is_file() and not path.name.startswith(FILES_OF_ZEROS):
                bundle.take(f"{place}/store/{path.relative_to(data)}", path, limit_bytes=SMALL_BYTES)


def listing(directory: Path) -> list[dict[str, Any]]:
    """Name, size and time of every file; at most ten thousand."""
    found = []
    for path in sorted(directory.rglob("*"))[:10_000]:
        try:
            stat = path.lstat()
        except OSError:
            continue  # removed meanwhile
        found.append(
            {
                "path": str(path.relative_to(directory)),
                "bytes": stat.st_size,
                "blocks": stat.st_blocks,
                "modifiedAtMs": stat.st_mtime_ns // 1_000_000,
                "mode": oct(stat.st_mode),
            }
        )
    return found


def take_machine(bundle: Bundle) -> None:
    for name in MACHINE_FILES:
        if Path(name).exists():
            bundle.take(f"machine{name}", Path(name), limit_bytes=SMALL_BYTES)
    bundle.add_json("machine/versions.json", versions(), "this installation")


def versions() -> dict[str, Any]:
    libraries: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            libraries[name] = None
    return {
        "rmqha": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "libraries": libraries,
    }


def known_secrets(configs: Collection[Path]) -> list[str]:
    """The values of secret keys in these files, and in those of accounts and credentials that they name."""
    found: set[str] = set()
    for path in configs:
        pairs = list(_pairs(path))
        found |= {value for key, value in pairs if _is_value(key)}
        for key, value in pairs:
            if value and _names_secrets(key):
                found |= set(_secret_values(Path(value)))
    return sorted(value for value in found if value)


def _names_secrets(key: str) -> bool:
    """True for a key whose file is read only to find the secrets that must not leave."""
    return key == "aclFile" or key.lower().endswith("credentialsfile")


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return  # whoever takes the file says so
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign:
            yield key.strip(), value.strip().strip("\"'")


def _secret_values(path: Path) -> Iterator[str]:
    """Secrets in a YAML or properties file, such as secretKey. An accessKey is a name, and is only taken out beside its
    key."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    try:
        yield from _walk(yaml.safe_load(text))
    except yaml.YAMLError:
        yield from (value for key, value in _pairs(path) if _is_value(key))
        return
    yield from (value for key, value in _pairs(path) if _is_value(key))


def _walk(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _is_value(str(key)) and isinstance(item, str | int):
                yield str(item)
            else:
                yield from _walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item)


def _is_value(key: str) -> bool:
    return is_secret(key) and key.lower() != "accesskey"


# --- answers ----------------------------------------------------------------------------------------------------------
async def take_answers(bundle: Bundle, targets: Collection[BundleTarget], timeout_s: float) -> None:
    """Add each server's answers. A server without an answer after `timeout_s` counts as silent."""
    async with RemotingClient() as client, trio.open_nursery() as nursery:
        for target in targets:
            nursery.start_soon(_take_target, bundle, client, target, timeout_s)


async def _take_target(bundle: Bundle, client: RemotingClient, target: BundleTarget, timeout_s: float) -> None:
    place = f"answers/{target.name}"
    for page in PAGES if target.http_address else ():
        try:
            data = await http_get(target.http_address, f"/{page}", timeout_s=timeout_s, limit_bytes=bundle.limit_bytes)
        except RmqhaError as error:
            bundle.miss(f"{place}/{page}", str(error))
        else:
            bundle.add(f"{place}/{page}", data, f"http://{target.http_address}/{page}")
    for number, (name, code) in enumerate(QUESTIONS[target.kind]):
        try:
            reply = await ask(client, target.address, Command(code), round(timeout_s * 1000))
            data = bytes(reply.body)
        except UnreachableError as error:
            bundle.miss(f"{place}/{name}", str(error))
            if number == 0:
                # who cannot be reached is asked no other
                return
        except RmqhaError as error:
            bundle.miss(f"{place}/{name}", str(error))
        else:
            bundle.add(f"{place}/{name}", data, f"request {code} to {target.address}")


async def take_commands(bundle: Bundle, commands: Mapping[str, list[str]], leading: list[str]) -> None:
    """Add the output of our own commands, as the user would see it. `leading`: options before each (--security)."""
    limiter = trio.CapacityLimiter(AT_ONCE)
    async with trio.open_nursery() as nursery:
        for name, arguments in commands.items():
            nursery.start_soon(_take_command, bundle, limiter, name, [*leading, *arguments])


async def _take_command(bundle: Bundle, limiter: trio.CapacityLimiter, name: str, arguments: list[str]) -> None:
    command = [sys.executable, "-P", "-m", "rmqha", *arguments]
    shown = f"rmqha {' '.join(arguments)}"
    async with limiter:
        with trio.move_on_after(COMMAND_TIMEOUT_S) as scope:
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    path = f"commands/{name}"
    if scope.cancelled_caught:
        bundle.miss(path, f"{shown} did not end within {COMMAND_TIMEOUT_S:g} s")
        return
    if done.stdout:
        bundle.add(f"{path}.json", done.stdout, f"{shown} (exit code {done.returncode})")
    if done.stderr:
        bundle.add(f"{path}.err", done.stderr, f"{shown} (exit code {done.returncode})")
    if not done.stdout:
        bundle.miss(f"{path}.json", f"{shown}: {done.stderr.decode(errors='replace').strip() or 'it printed nothing'}")
