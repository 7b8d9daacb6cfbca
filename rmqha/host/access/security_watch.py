"""The check, each second and at SIGHUP, for changed files of certificates, accounts and credentials. Shell.

Each finding is traced once: a file that is loaded, one that is refused, one that is valid again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from rmqha.host.access.live_files import LiveFiles
from rmqha.host.access.security import Security
from rmqha.host.clock import HostClock
from rmqha.model.principal import Principal
from rmqha.model.series import MetricFamilies, MetricKind, Series
from rmqha.port import Tracer

CHECK_INTERVAL_S = 1.0
REFUSED = "it is refused, an admin is told why"
STATE_VERSION = 1

PROBLEM = Series(
    "rmqha_security_file_problem",
    MetricKind.GAUGE,
    "1 while a certificate, account or credentials file is refused and what it held before is in force, else 0",
    ("key", "file"),
)
EXPIRY = Series(
    "rmqha_certificate_expiry_timestamp_seconds",
    MetricKind.GAUGE,
    "Unix time at which the first certificate of the file ends",
    ("key", "file"),
)
AUDIT_LOST = Series(
    "rmqha_audit_log_lost_total",
    MetricKind.COUNTER,
    "Entries of the audit log that were lost: more came than could be written, or the disk did not take them",
)
SERIES = (PROBLEM, EXPIRY, AUDIT_LOST)


class SecurityWatch:
    """Watcher of the files of `security`; a worker thread reads and parses them."""

    def __init__(self, security: Security, tracer: Tracer) -> None:
        self._security = security
        self._tracer = tracer
        self._wake = trio.Event()
        self._told: dict[LiveFiles[Any], str] = {}

    def check_now(self) -> None:
        """Check the files at once (SIGHUP)."""
        self._wake.set()

    async def run(self) -> None:
        """Check the files each second, until cancelled."""
        while True:
            with trio.move_on_after(CHECK_INTERVAL_S):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.check()

    async def check(self) -> None:
        """Check the files once."""
        files = list(self._security.files)
        if not files:
            return
        changed = await trio.to_thread.run_sync(_refreshed, files)
        for item in files:
            before = self._told.get(item, "")
            self._told[item] = item.problem
            about = {"key": item.key, "file": item.path}
            if item.problem and item.problem != before:
                self._tell("security_file_refused", about, item.problem)
            elif before and not item.problem:
                self._tell("security_file_mended", about)
            elif item in changed and not item.problem:
                self._tell("security_file_loaded", about)

    def _tell(self, name: str, about: dict[str, str], problem: str = "") -> None:
        self._tracer.event(name, **about, **({"reason": problem} if problem else {}))
        if self._security.audit is not None:
            self._security.audit.record("", name.upper(), about.items(), problem)


def _refreshed(files: Sequence[LiveFiles[Any]]) -> list[LiveFiles[Any]]:
    return [item for item in files if item.refresh()]


def view(security: Security, principal: Principal) -> dict[str, Any]:
    """Answer to request 52017: the process's files, their problems, and the ends of their certificates. A principal
    that may not know where secrets are gets a file's key instead of its path, and of a problem only that there is
    one."""
    shows = principal.sees_secrets_places
    return {
        "version": STATE_VERSION,
        "files": [
            {
                "key": item.key,
                "file": item.path if shows else item.key,
                "problem": item.problem if shows or not item.problem else REFUSED,
                "expiresAtMs": item.expires_at_ms,
            }
            for item in security.files
            if item.path
        ],
        "nowMs": HostClock().wall_ms(),
    }


def collect(security: Security) -> MetricFamilies:
    """Metrics of the files and of the audit log."""
    families = MetricFamilies({})
    if security.audit is not None:
        families.put(AUDIT_LOST, security.audit.lost_count)
    for item in security.files:
        if item.path:
            families.put(PROBLEM, int(bool(item.problem)), item.key, item.path)
            if item.expires_at_ms is not None:
                families.put(EXPIRY, item.expires_at_ms / 1000, item.key, item.path)
    return families
