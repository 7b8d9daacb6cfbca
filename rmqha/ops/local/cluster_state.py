"""cluster.json: the record of what `rmqha up` has started in a cluster directory, and the search for that directory.

DIR/cluster.json          this record, replaced atomically
DIR/<node>/node.conf      the node's properties file
DIR/<node>/log/           its log; <node>.out holds what it printed
DIR/<node>/store, /controller   its data
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rmqha.host.text_file import expanded, read_text
from rmqha.model.config.base import DEFAULT_HTTP_HOST, parse_properties
from rmqha.model.error import RmqhaError, UsageError
from rmqha.model.identity import join_address, parse_address
from rmqha.ops.local.node_kind import NodeKind

if TYPE_CHECKING:
    from rmqha.ops.local.cluster_file import ClusterSpec, NodeSpec
    from rmqha.ops.local.supervisor import Process

VERSION = 1
FILE = "cluster.json"
OWN_FILE = "cluster.toml"
"""Cluster file that `up` writes without FILE, for another size or other ports than the default."""
QUICKSTART = Path(__file__).with_name("quickstart.toml")
"""The cluster file that comes with the package; `conf/quickstart.toml` of the repository is the same file."""
CONFIG_FILE = "node.conf"
LAST_LINE_BYTES = 64 * 1024
"""End of a log in which its last line is searched."""
LOCK = "cluster.lock"
LOST_FOUND = "lost+found"
"""Directory at the root of every new ext4, which may be the cluster's own disk."""
DIRECTORY_VARIABLE = "RMQHA_DIRECTORY"
MAX_PATH_BYTES = 64 * 1024
LAST_UP = Path("rmqha-data") / "last-up"
"""Holds the directory of the last `rmqha up` that was called from this current directory."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node and the process that last ran it (`pid` 0 = none yet)."""

    name: str
    kind: str
    address: str
    controller_address: str = ""
    """Address at which its controller listens, its own or an embedded one; "" if it has none."""
    group: str = ""
    pid: int = 0
    process_start: str = ""

    @property
    def process(self) -> Process | None:
        from rmqha.ops.local.supervisor import Process

        return Process(self.pid, self.process_start) if self.pid else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def is_broker(self) -> bool:
        return self.kind == NodeKind.BROKER.value

    @classmethod
    def parse(cls, document: dict[str, Any]) -> NodeRecord:
        """The record in a document. Raises ValueError or TypeError for what `up` does not write: `purge` deletes by
        these names."""
        made = cls(**document)
        texts = (made.kind, made.address, made.controller_address, made.group, made.process_start)
        if not is_plain_name(made.name) or not all(isinstance(text, str) for text in texts):
            raise ValueError("a node has a plain name and texts")
        if type(made.pid) is not int or made.pid < 0:
            raise ValueError("a pid is a number")
        return made

    @classmethod
    def of(cls, node: NodeSpec) -> NodeRecord:
        host = parse_address(node.address)[0]
        match node.kind:
            case NodeKind.BROKER:
                controller = ""
            case NodeKind.CONTROLLER:
                controller = node.address
            case NodeKind.NAMESRV:
                controller = join_address(host, node.ports[1].number) if node.embeds_controller else ""
        return cls(node.name, node.kind.value, node.address, controller, node.group)


@dataclass(slots=True)
class ClusterState:
    """The record of one cluster directory."""

    directory: Path
    name: str
    ha_mode: str
    cluster_file: str
    nodes: dict[str, NodeRecord] = field(default_factory=dict)

    is_remote: ClassVar[bool] = False
    """True of a cluster without a directory here (`rmqha.ops.remote_cluster`)."""

    @property
    def where(self) -> str:
        return f"data in {self.directory}/NODE"

    @classmethod
    def of(cls, spec: ClusterSpec) -> ClusterState:
        nodes = {node.name: NodeRecord.of(node) for node in spec.nodes}
        return cls(spec.directory, spec.name, spec.ha_mode, str(Path(spec.source).absolute()), nodes)

    # --- find, read, write ------------------------------------------------------------------------------------------
    @classmethod
    def find(cls, directory: Path | None) -> ClusterState | None:
        """The cluster of --directory, else of $RMQHA_DIRECTORY, else of the last `up` here; None if there is none."""
        if directory is None:
            named = os.environ.get(DIRECTORY_VARIABLE)
            if named is None:
                with contextlib.suppress(FileNotFoundError):
                    for path in (LAST_UP.parent, LAST_UP):
                        refuse_foreign(path)
                    named = _last_up()
            if not named:
                return None
            directory = Path(named)
        return cls.read(expanded(directory).absolute())

    @classmethod
    def require(cls, directory: Path | None) -> ClusterState:
        state = cls.find(directory)
        if state is None:
            where = f"{directory} holds no cluster" if directory else "no cluster is known here"
            raise UsageError(
                f"{where}; start one with `rmqha up`, name its --directory, or that of one elsewhere by --namesrv"
            )
        return state

    @classmethod
    def read(cls, directory: Path) -> ClusterState | None:
        """The record of a directory; None if it has no cluster.json. UsageError if that is not one of ours."""
        path = directory / FILE
        try:
            if not path.exists():
                return None
            document = json.loads(read_text(path, "the record of `rmqha up`"))
            version = document["version"]
            if version != VERSION:
                raise UsageError(f"{path} is of version {version!r}; this rmqha reads version {VERSION}")
            nodes = [NodeRecord.parse(node) for node in document["nodes"]]
            return cls(
                directory,
                document["name"],
                document["haMode"],
                document["clusterFile"],
                {node.name: node for node in nodes},
            )
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UsageError(f"{path} is not a record of `rmqha up`; remove it or name another --directory") from None

    def write(self) -> None:
        document = {
            "version": VERSION,
            "name": self.name,
            "haMode": self.ha_mode,
            "clusterFile": self.cluster_file,
            "nodes": [asdict(node) for node in self.nodes.values()],
        }
        write_atomic(self.directory / FILE, json.dumps(document, indent=2) + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against other rmqha commands that start or end processes. Raises UsageError for a
        directory that other users may write to."""
        self.refuse_foreign()
        lock = self._open_lock()
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RmqhaError(f"another rmqha command is at work in {self.directory}; try again") from None
            yield
        finally:
            os.close(lock)

    def _open_lock(self) -> int:
        """Open the lock's file, also on a disk that the system has made read-only after an error: its processes can
        still be ended."""
        path, flags = self.directory / LOCK, os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            return os.open(path, flags | os.O_RDONLY)

    def refuse_foreign(self) -> None:
        """Raise UsageError if other users may have written the record, or the files that nodes are started with."""
        for path in (self.directory, self.directory / FILE, self.directory / LOCK):
            refuse_foreign_if_there(path)
        for name in self.nodes:
            for path in (self.node_directory(name), self.config_path(name)):
                refuse_foreign_if_there(path)

    def refuse_foreign_processes(self, names: Iterable[str]) -> None:
        """Raise UsageError if a process under a recorded id is not the node's server: it must not be ended."""
        for name in names:
            record = self.node(name)
            if record.alive and not is_server(record.pid, self.config_path(name)):
                raise UsageError(
                    f"{self.directory / FILE} calls process {record.pid} {name}, but it does not run "
                    f"{self.config_path(name)}: nothing was touched"
                )

    # --- view -------------------------------------------------------------------------------------------------------
    def node(self, name: str) -> NodeRecord:
        if name not in self.nodes:
            raise UsageError(f"there is no node {name}; the cluster {self.name} has {', '.join(self.nodes)}")
        return self.nodes[name]

    def node_directory(self, name: str) -> Path:
        return self.directory / name

    def config_path(self, name: str) -> Path:
        return self.directory / name / CONFIG_FILE

    def properties(self, name: str) -> dict[str, str]:
        """Keys of the node's file; {} if there is none."""
        path = self.config_path(name)
        return parse_properties(read_text(path, "the configuration"), str(path)) if path.exists() else {}

    def refuse_static(self, group: str) -> None:
        """Raise UsageError if `group` is a static group of this cluster."""
        for node in self.brokers:
            if node.group == group and self.properties(node.name).get("enableControllerMode") == "false":
                raise UsageError(
                    f"{group} is a static group: its master is fixed by brokerRole and no controller knows it; "
                    "see docs/operate/migration.md for how it gets one"
                )

    def http_address(self, name: str) -> str:
        """Address at which the node answers /metrics, "" if it does not."""
        properties = self.properties(name)
        port = properties.get("httpPort", "0")
        return "" if port == "0" else join_address(properties.get("httpHost", DEFAULT_HTTP_HOST), int(port))

    def log_path(self, name: str) -> Path:
        return self.directory / name / "log" / f"{name}.log"

    def output_path(self, name: str) -> Path:
        return self.directory / name / "log" / f"{name}.out"

    def data_path(self, node: NodeRecord) -> Path:
        return self.directory / node.name / ("store" if node.is_broker else "controller")

    @property
    def brokers(self) -> list[NodeRecord]:
        return [node for node in self.nodes.values() if node.is_broker]

    @property
    def groups(self) -> list[str]:
        return sorted({node.group for node in self.brokers})

    @property
    def namesrv_addresses(self) -> str:
        return ";".join(node.address for node in self.nodes.values() if node.kind == NodeKind.NAMESRV.value)

    @property
    def controller_addresses(self) -> list[str]:
        return [node.controller_address for node in self.nodes.values() if node.controller_address]

    # --- change -----------------------------------------------------------------------------------------------------
    def record_process(self, name: str, process: Process) -> None:
        """Remember which process runs the node; on disk when this returns."""
        self.nodes[name] = replace(self.nodes[name], pid=process.pid, process_start=process.start)
        self.write()

    def remember_as_last(self) -> None:
        """Let commands without --directory, called from this current directory, find this cluster."""
        from rmqha.host.disk import DIRECTORY_MODE

        LAST_UP.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        refuse_foreign(LAST_UP.parent)
        write_atomic(LAST_UP, f"{self.directory}\n")

    def forget_as_last(self) -> None:
        if LAST_UP.exists() and _last_up() == str(self.directory):
            LAST_UP.unlink()


def _last_up() -> str:
    """The directory that LAST_UP names. Raises UsageError if that is no text."""
    found = read_text(LAST_UP, "the note of the last `rmqha up`", MAX_PATH_BYTES).strip()
    if "\0" in found:
        raise UsageError(f"{LAST_UP} names no directory; remove it, or name a --directory")
    return found


def write_atomic(path: Path, text: str) -> None:
    """Replace a file of text, durably, so that a crash leaves the old or the new one."""
    from rmqha.host.disk import HostDisk

    HostDisk(path.parent).write_atomic(path.name, text.encode())


def last_line(path: Path) -> str:
    """The last line of a log that is neither empty nor the frame of a traceback; "" if there is none. A crashed file
    system may leave zero bytes in it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
            end = file.read(LAST_LINE_BYTES)
    except OSError:
        return ""
    lines = (line.strip(" |+-\0") for line in end.decode("utf-8", "replace").splitlines())
    return next((line for line in reversed(list(lines)) if line), "")


# --- trust of a command: files that only this user can have written, processes that are our servers -------------------


def refuse_foreign(path: Path) -> None:
    """Raise UsageError for a file or directory that other users may have written, or that is a link; OSError."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise UsageError(f"{path} is a symbolic link, which rmqha did not make: nothing was touched")
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to user {found.st_uid}, not to you: run this as its owner")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"others may write {path}: look at what it holds, then chmod -R go-w {path}")


def refuse_foreign_if_there(path: Path) -> None:
    try:
        refuse_foreign(path)
    except FileNotFoundError:
        return


def is_server(pid: int, config: Path) -> bool:
    """True if the process runs one of our servers with this configuration file."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    wanted = config.resolve()
    return any(Path(given).resolve() == wanted for flag, given in pairwise(arguments) if flag == "-c")


def is_plain_name(name: object) -> bool:
    """True if the name can be that of one entry of a directory."""
    return isinstance(name, str) and bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name
