"""Findings of a check of a store. Values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """Data is damaged or lost, or a broker would not start."""
    WARNING = "warning"
    """Something is not as it must be, and nothing is lost by it."""
    NOTE = "note"
    """Worth knowing; the store is sound all the same."""


class FindingKind(StrEnum):
    """The part that is affected, which decides the repair."""

    LOG_DAMAGE = "log-damage"
    LOG_TAIL = "log-tail"
    LOG_SIZE = "log-size"
    QUEUE = "queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    PROGRESS = "progress"
    EPOCHS = "epochs"
    EPOCH_BACKUP = "epoch-backup"
    BOOT = "boot"
    HIGHEST_EPOCH = "highest-epoch"
    SIDECAR = "sidecar"
    IDENTITY = "identity"
    PENDING_IDENTITY = "pending-identity"
    CONFIG = "config"
    CONFIG_BACKUP = "config-backup"
    CONFIG_KEYS = "config-keys"
    TIMER = "timer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One finding of a check. `path` is relative to the store, `at` a byte in that file (None: the file or directory as
    a whole)."""

    severity: Severity
    kind: FindingKind
    path: str
    at: int | None
    expected: str
    found: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        where = self.path or "the store"
        byte = "" if self.at is None else f" at byte {self.at}"
        advice = f"; {self.advice}" if self.advice else ""
        if not self.expected:
            return f"{where}{byte}: {self.found}{advice}"
        return f"{where}{byte}: expected {self.expected}, found {self.found}{advice}"


class Findings:
    """Collection of findings. If one directory has too many of one kind, the rest are counted, not kept."""

    KEPT_COUNT = 10

    def __init__(self) -> None:
        self._kept: list[StoreFinding] = []
        self._counts: dict[tuple[FindingKind, Severity, str], int] = {}

    def add(
        self,
        severity: Severity,
        kind: FindingKind,
        path: str,
        at: int | None,
        expected: str,
        found: str,
        advice: str = "",
    ) -> None:
        key = (kind, severity, path.rpartition("/")[0] if "/" in path else path)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= self.KEPT_COUNT:
            self._kept.append(StoreFinding(severity, kind, path, at, expected, found, advice))

    def note(self, path: str, text: str, at: int | None = None) -> None:
        self.add(Severity.NOTE, FindingKind.OTHER, path, at, "", text)

    def all(self) -> list[StoreFinding]:
        more = [
            StoreFinding(
                severity, kind, directory, None, "", f"{count - self.KEPT_COUNT} more findings like those above"
            )
            for (kind, severity, directory), count in self._counts.items()
            if count > self.KEPT_COUNT
        ]
        return self._kept + more
