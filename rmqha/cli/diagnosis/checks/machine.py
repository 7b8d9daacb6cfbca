"""Checks by the operating system: processes, ports, descriptors, disks, memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from rmqha.cli.diagnosis import disk_test
from rmqha.cli.diagnosis.checks.listeners import SocketOwner, listening
from rmqha.cli.diagnosis.checks.mounts import existing, mount_of
from rmqha.cli.diagnosis.checks.node_under_test import ListeningPort, NodeUnderTest
from rmqha.host.disk import HostDisk
from rmqha.host.read_disk import HostReadDisk
from rmqha.inspect.store_inspection import LOCK_PATH, is_run_name
from rmqha.model.error import UsageError
from rmqha.model.identity import join_address
from rmqha.ops.finding import Finding, ok, warn, wrong
from rmqha.ops.local.node_kind import NodeKind
from rmqha.ops.local.preflight import cannot_bind
from rmqha.store.log.commit_log import DIRECTORY as LOG_DIRECTORY
from rmqha.store.meta.boot_file import ABORT_PATH

CONNECTION_COUNT = 1_000
"""Number of descriptors that a broker should have for clients, slaves and servers."""
SYNC_LIMIT_S, SYNC_COUNT = 1.5, 60
SLOW_SYNC_US = 50_000
MIB = 1 << 20
LOW_MEMORY_SHARE = 0.1
SWAPPED_BYTES = 16 * MIB
PRESSURE_PERCENT = 10.0
IO_PRESSURE_PERCENT = 50.0
CGROUPS = Path("/sys/fs/cgroup")
LEAST_FILES = 256
"""Number of further files below which a broker may soon end: it makes some for each queue."""


# --- processes and ports ----------------------------------------------------------------------------------------------
def check_process(node_under_test: NodeUnderTest, others_run: bool) -> Finding:
    """Check that the process runs, and if not, how it ended."""
    name, process = node_under_test.name, node_under_test.process
    if process is not None and process.alive:
        state = _stat(process.pid)
        if state == "T":
            return wrong(name, "process", f"pid {process.pid} is stopped by a signal", f"kill -CONT {process.pid}")
        if state == "D":
            return warn(name, "process", f"pid {process.pid} waits for a disk", "rmqha selftest disk DIR")
        return ok(name, "process", f"runs, pid {process.pid}")
    held = node_under_test.data is not None and HostReadDisk(node_under_test.data).is_locked(LOCK_PATH)
    if held:
        return wrong(
            name,
            "process",
            f"{node_under_test.data} is in use by a process that is not this node",
            f"fuser {node_under_test.data}/lock",
        )
    killed = (
        node_under_test.kind is NodeKind.BROKER
        and node_under_test.data is not None
        and (node_under_test.data / ABORT_PATH).exists()
    )
    how = "was killed or lost power" if killed else "does not run"
    if others_run:
        return wrong(name, "process", f"{how}, while other nodes run", node_under_test.start_command)
    if killed:
        return warn(name, "process", f"{how}; its next start checks the tail of the log", node_under_test.start_command)
    if node_under_test.kind is not NodeKind.BROKER:
        return ok(name, "process", "does not run")
    started = node_under_test.data is not None and node_under_test.data.is_dir()
    return ok(name, "process", "stopped in order" if started else "was never started")


def _stat(pid: int) -> str:
    """The state letter of a process, "" if it has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def check_ports(nodes: Sequence[NodeUnderTest]) -> Iterator[Finding]:
    """Findings on ports that are neither listened on by their node nor free for it."""
    owners = listening({port.number for node_under_test in nodes for port in node_under_test.ports})
    for node_under_test in nodes:
        troubles = [
            item for port in node_under_test.ports if (item := _port_trouble(node_under_test, port, owners)) is not None
        ]
        yield from troubles
        if not troubles and node_under_test.ports:
            numbers = ", ".join(str(port.number) for port in node_under_test.ports)
            yield ok(
                node_under_test.name, "ports", f"{numbers} {'are its own' if node_under_test.running else 'are free'}"
            )


def _port_trouble(
    node_under_test: NodeUnderTest, port: ListeningPort, owners: Mapping[int, list[SocketOwner]]
) -> Finding | None:
    found = owners.get(port.number, [])
    host = port.host or node_under_test.host
    name, where = node_under_test.name, join_address(host, port.number)
    if node_under_test.process is not None and node_under_test.process.alive:
        pids = [owner.pid for owner in found]
        if node_under_test.process.pid in pids or 0 in pids:
            return None
        fix = f"rmqha logs {name}" if node_under_test.in_cluster else "look into its logFile"
        return wrong(name, "ports", f"it runs but does not listen on {where}", fix)
    reason = cannot_bind(host, port.number)
    if not reason:
        return None
    if not found:
        return wrong(
            name, "ports", f"{where} {reason}", f"change {port.key} or listenAddress in {node_under_test.source}"
        )
    fix = f"kill {found[0].pid}" if found[0].pid else f"ss -ltnp 'sport = :{port.number}'"
    return wrong(
        name,
        "ports",
        f"{where} is taken by {found[0].label}",
        f"{fix}, or change {port.key} in {node_under_test.source}",
    )


# --- descriptors ------------------------------------------------------------------------------------------------------
def check_descriptors(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    """Findings on limits of descriptors: clients connect to name servers and brokers, and a broker keeps every file of
    its log, queues and index open and mapped."""
    is_broker = node_under_test.kind is NodeKind.BROKER
    if (node_under_test.data is None and is_broker) or node_under_test.kind is NodeKind.CONTROLLER:
        return
    files = count_files(node_under_test.data) if is_broker and node_under_test.data is not None else 0
    needed, limit = files + CONNECTION_COUNT, _descriptor_limit(node_under_test)
    kept = f"{files} store files and " if is_broker else ""
    words = f"{kept}{CONNECTION_COUNT} connections, the limit is {limit}"
    fix = "raise LimitNOFILE= of its unit (or ulimit -Hn) and start it again"
    if needed > limit:
        yield wrong(node_under_test.name, "descriptors", f"it needs {words}", fix)
    elif needed > limit * 0.8:
        yield warn(node_under_test.name, "descriptors", f"it soon needs more than it gets: {words}", fix)
    else:
        yield ok(node_under_test.name, "descriptors", words)
    maps = _number(Path("/proc/sys/vm/max_map_count"), 65_530)
    if files > maps * 0.8:
        yield warn(
            node_under_test.name,
            "mappings",
            f"{files} files are to be mapped, the kernel allows {maps}",
            f"sysctl -w vm.max_map_count={2 * files}",
        )


def count_files(store: Path) -> int:
    """Number of files of the log, its queues and its index."""
    folders = ("commitlog", "consumequeue", "batchconsumequeue", "index")
    return sum(
        1 for folder in folders for path in (store / folder).rglob("*") if is_run_name(path.name) or folder == "index"
    )


def _descriptor_limit(node_under_test: NodeUnderTest) -> int:
    if node_under_test.process is not None and node_under_test.process.alive:
        try:
            text = Path(f"/proc/{node_under_test.process.pid}/limits").read_text()
        except OSError:
            text = ""
        for line in text.splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return int(soft) if soft.isdigit() else 1 << 30
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def _number(path: Path, default: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default


# --- disks ------------------------------------------------------------------------------------------------------------
def check_disk(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    """Findings on a disk's space against the watermarks, and on file systems that are not durable."""
    if node_under_test.data is None:
        return
    for place in places_of(node_under_test.data):
        yield from _check_place(node_under_test, place)


def places_of(data: Path) -> list[Path]:
    """The directory of a node's data, and that of its log where it is a link to another disk."""
    place, log = existing(data), existing(data / LOG_DIRECTORY)
    return [place] if place.stat().st_dev == log.stat().st_dev else [place, log]


def _check_place(node_under_test: NodeUnderTest, place: Path) -> Iterator[Finding]:
    name, mount = node_under_test.name, mount_of(place)
    if mount.read_only:
        yield wrong(name, "disk", f"{mount.point} is mounted read-only", f"mount -o remount,rw {mount.point}")
    if mount.in_memory:
        yield wrong(
            name,
            "disk",
            f"{place} lies on {mount.kind}, in memory: a loss of power takes everything",
            f"set storePathRootDir to a disk in {node_under_test.source}",
        )
    elif mount.on_network:
        yield warn(
            name,
            "disk",
            f"{place} lies on {mount.kind}: its server decides what a sync is, and mapped files may be slow",
            f"set storePathRootDir to a local disk in {node_under_test.source}",
        )
    try:
        used, free = HostDisk(place).space()
    except OSError as error:
        yield wrong(name, "disk", f"{place} cannot be looked at: {error.strerror}", "dmesg | tail")
        return
    yield _space(node_under_test, place, used, free)
    left = files_left(place)
    if left is not None and left < LEAST_FILES:
        sentence = f"{place} has room for {left} more files (inodes): its queues and its log need new ones"
        yield wrong(name, "disk", sentence, f"remove small files there; df -i {place} tells")


def files_left(place: Path) -> int | None:
    """Number of files that a user may still make there; None where the file system has no limit."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_favail if found.f_files else None


def _space(node_under_test: NodeUnderTest, place: Path, used: int, free: int) -> Finding:
    name, config = node_under_test.name, node_under_test.broker
    percent = 100 * used / max(1, used + free)
    words = f"{place}: {percent:.0f} % in use, {free / 1e9:,.1f} GB free"
    free_it = f"free space on {place}, or lower fileReservedTime or set commitLogMaxBytes for {name}"
    if config is None:
        least = 256 * MIB
        return ok(name, "disk", words) if free > least else wrong(name, "disk", words, f"free space on {place}")
    needed = 2 * config.mapped_file_size_commit_log
    if percent >= config.disk_space_warning_level_ratio:
        level = f"diskSpaceWarningLevelRatio={config.disk_space_warning_level_ratio}"
        return wrong(name, "disk", f"{words}: above {level}, so sends are refused", free_it)
    if free < needed:
        return wrong(name, "disk", f"{words}: two log files of {needed // 2 // MIB} MiB do not fit", free_it)
    if percent >= config.disk_space_clean_forcibly_ratio:
        level = f"diskSpaceCleanForciblyRatio={config.disk_space_clean_forcibly_ratio}"
        return wrong(name, "disk", f"{words}: above {level}, so log files go before they have expired", free_it)
    if percent >= config.disk_max_used_space_ratio:
        level = f"diskMaxUsedSpaceRatio={config.disk_max_used_space_ratio}"
        return warn(name, "disk", f"{words}: above {level}, so expired log files go at any hour", free_it)
    return ok(name, "disk", words)


def check_syncs(nodes: Sequence[NodeUnderTest]) -> Iterator[Finding]:
    """Measure the cost of a sync on each file system that holds a store: about a second each."""
    seen: dict[int, str] = {}
    for node_under_test in nodes:
        if node_under_test.data is None:
            continue
        place = existing(node_under_test.data)
        place = place if place.is_dir() else place.parent
        device = place.stat().st_dev
        if device in seen:
            continue
        seen[device] = node_under_test.name
        synced = node_under_test.broker is not None and node_under_test.broker.sync_flush
        try:
            figures = disk_test.measure(place, limit_s=SYNC_LIMIT_S, limit_bytes=0, sync_count=SYNC_COUNT)
        except UsageError as error:
            yield wrong(node_under_test.name, "sync", str(error), f"ls -ld {place}; df {place}")
            continue
        verdict = figures.verdict()
        if figures.honesty() and figures.in_memory and not figures.mount.in_memory:
            yield warn(node_under_test.name, "sync", figures.honesty(), f"rmqha selftest disk {place}")
        elif figures.median_us > SLOW_SYNC_US:
            make = warn if not synced else wrong
            yield make(
                node_under_test.name,
                "sync",
                verdict,
                "move the store to a faster disk, or set flushDiskType=ASYNC_FLUSH",
            )
        else:
            yield ok(node_under_test.name, "sync", verdict)


# --- memory -----------------------------------------------------------------------------------------------------------
def check_memory(running: Collection[NodeUnderTest], log_file_bytes: int) -> Iterator[Finding]:
    """Findings on this machine's memory and page cache, and on our processes' swapped memory."""
    info = parse_sizes(_text(Path("/proc/meminfo")))
    total, available = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    words = f"{available // MIB:,} of {total // MIB:,} MiB available"
    if total and available < total * LOW_MEMORY_SHARE:
        yield warn(
            "machine", "memory", f"{words}: the page cache, which serves reads, has no room", "ps aux --sort -rss"
        )
    elif total:
        yield ok("machine", "memory", words)
    cached = info.get("Cached", 0)
    if log_file_bytes and total and cached < min(2 * log_file_bytes, total // 8):
        yield warn(
            "machine",
            "page cache",
            f"it holds {cached // MIB:,} MiB, less than two log files: fresh messages may be read from the disk",
            "give the machine more memory, or other processes less",
        )
    for node_under_test in running:
        assert node_under_test.process is not None
        swapped = parse_sizes(_text(Path(f"/proc/{node_under_test.process.pid}/status"))).get("VmSwap", 0)
        if swapped > SWAPPED_BYTES:
            sentence = f"{swapped // MIB} MiB of it are swapped out: heartbeats and acknowledgements stall"
            yield warn(node_under_test.name, "memory", sentence, "swapoff -a, or MemorySwapMax=0 in its unit")
    yield from check_memory_limit()
    yield from _pressure()


def check_memory_limit(root: Path = CGROUPS) -> Iterator[Finding]:
    """Finding on this container's memory that the kernel cannot take back, against its limit. A control group counts
    the page cache as used too, which fills any limit beside a log."""
    if (root / "memory.max").exists():
        directory, limit_file, used_file, prefix = root, "memory.max", "memory.current", ""
    else:
        directory, limit_file, used_file = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        prefix = "total_"
    limit = _number(directory / limit_file, 0)
    stat = parse_counts(_text(directory / "memory.stat"))
    reclaimable = sum(stat.get(prefix + name, 0) for name in ("active_file", "inactive_file", "slab_reclaimable"))
    held = _number(directory / used_file, 0) - reclaimable
    if limit and held > 0.9 * limit:
        sentence = (
            f"this container holds {held // MIB:,} of {limit // MIB:,} MiB without the page cache: "
            "the kernel may kill a node"
        )
        yield warn("machine", "memory limit", sentence, "raise the container's memory limit")


def parse_counts(text: str) -> dict[str, int]:
    """Numbers by name, of lines `name 12`."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def _pressure() -> Iterator[Finding]:
    for what, bound in (("memory", PRESSURE_PERCENT), ("io", IO_PRESSURE_PERCENT)):
        share = parse_pressure(_text(Path(f"/proc/pressure/{what}")))
        if share is None:
            continue
        words = f"in the last minute something waited for {what} {share:.0f} % of the time"
        if share > bound:
            yield warn("machine", f"{what} pressure", words, "vmstat 1" if what == "memory" else "iostat -x 1")
        else:
            yield ok("machine", f"{what} pressure", words)


def parse_pressure(text: str) -> float | None:
    """Value `some avg60` in percent of a file of /proc/pressure, None if it is not there."""
    for line in text.splitlines():
        if line.startswith("some "):
            fields = dict(item.split("=") for item in line.split()[1:] if "=" in item)
            return float(fields["avg60"]) if "avg60" in fields else None
    return None


def parse_sizes(text: str) -> dict[str, int]:
    """Sizes in bytes by name, of lines `Name: 12 kB`."""
    found = {}
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[key] = int(words[0]) * 1024
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
