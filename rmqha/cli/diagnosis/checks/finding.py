"""A finding of the doctor: a verdict, one sentence, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class CheckOutcome(IntEnum):
    """In the order of reading."""

    WRONG = 0
    """It does not work, or loses what was promised."""
    WARN = 1
    """It works, with a risk or a cost."""
    OK = 2


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """`subject` is a node, a group or "machine", `check` what was looked at, `fix` a command or what to change."""

    verdict: CheckOutcome
    subject: str
    check: str
    sentence: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.name,
            "subject": self.subject,
            "check": self.check,
            "sentence": self.sentence,
            "fix": self.fix,
        }


def ok(subject: str, check: str, sentence: str) -> DoctorFinding:
    return DoctorFinding(CheckOutcome.OK, subject, check, sentence)


def warn(subject: str, check: str, sentence: str, fix: str) -> DoctorFinding:
    return DoctorFinding(CheckOutcome.WARN, subject, check, sentence, fix)


def wrong(subject: str, check: str, sentence: str, fix: str) -> DoctorFinding:
    return DoctorFinding(CheckOutcome.WRONG, subject, check, sentence, fix)


def in_order(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """The worst first, else as they were found."""
    return sorted(findings, key=lambda item: item.verdict)


def merged(findings: Iterable[DoctorFinding]) -> list[DoctorFinding]:
    """Findings that are the same of several subjects as one, in the place of the first."""
    subjects: dict[tuple[CheckOutcome, str, str, str], list[str]] = {}
    for item in findings:
        subjects.setdefault((item.verdict, item.check, item.sentence, item.fix), []).append(item.subject)
    return [
        DoctorFinding(verdict, ", ".join(dict.fromkeys(names)), check, sentence, fix)
        for (verdict, check, sentence, fix), names in subjects.items()
    ]


def count_words(findings: Sequence[DoctorFinding]) -> str:
    """ "1 wrong, 2 warnings, 30 ok"."""
    counts = {verdict: sum(item.verdict is verdict for item in findings) for verdict in CheckOutcome}
    warnings = "1 warning" if counts[CheckOutcome.WARN] == 1 else f"{counts[CheckOutcome.WARN]} warnings"
    return f"{counts[CheckOutcome.WRONG]} wrong, {warnings}, {counts[CheckOutcome.OK]} ok"
