"""A finding of `rmqha health`, the page or the doctor: a verdict, one sentence, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Verdict(IntEnum):
    """Verdict of a finding, in the order of reading."""

    WRONG = 0
    """Something does not work, or loses what was promised."""
    WARN = 1
    """Something works, with a risk or a cost."""
    NOTE = 2
    """Nothing is wrong; an operator should know."""
    OK = 3


class Consequence(IntEnum):
    """Consequence of a finding, by which findings with one verdict are ordered: clients first, then causes."""

    NO_WRITES = 0
    """Clients cannot send."""
    MACHINE = 1
    """A disk or a log is at fault, from which more may follow."""
    OTHER = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a verdict and a sentence. `subject`: a node, a group or "machine"; `check`: the doctor's check, ""
    of other findings; `fix`: a command, or the change to make."""

    verdict: Verdict
    subject: str
    check: str
    sentence: str
    fix: str = ""
    consequence: Consequence = Consequence.OTHER

    @property
    def is_note(self) -> bool:
        return self.verdict is Verdict.NOTE

    @property
    def line(self) -> str:
        return f"{self.subject}: {self.sentence}" + (f"; {self.fix}" if self.fix else "")

    def as_reason(self) -> dict[str, str]:
        """JSON of `rmqha health` and `rmqha top`."""
        return {"where": self.subject, "what": self.sentence, "fix": self.fix}

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.name,
            "subject": self.subject,
            "check": self.check,
            "sentence": self.sentence,
            "fix": self.fix,
        }


def fault(subject: str, sentence: str, fix: str = "", consequence: Consequence = Consequence.OTHER) -> Finding:
    return Finding(Verdict.WRONG, subject, "", sentence, fix, consequence)


def note(subject: str, sentence: str, fix: str = "") -> Finding:
    return Finding(Verdict.NOTE, subject, "", sentence, fix)


def ok(subject: str, check: str, sentence: str) -> Finding:
    return Finding(Verdict.OK, subject, check, sentence)


def warn(subject: str, check: str, sentence: str, fix: str) -> Finding:
    return Finding(Verdict.WARN, subject, check, sentence, fix)


def wrong(subject: str, check: str, sentence: str, fix: str) -> Finding:
    return Finding(Verdict.WRONG, subject, check, sentence, fix)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the worst first, else in the order in which they were found."""
    return sorted(findings, key=lambda item: (item.verdict, item.consequence))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; equal ones of several subjects are one, in the place of the first."""
    subjects: dict[tuple[Verdict, str, str, str], list[str]] = {}
    for item in findings:
        subjects.setdefault((item.verdict, item.check, item.sentence, item.fix), []).append(item.subject)
    return [
        Finding(verdict, ", ".join(dict.fromkeys(names)), check, sentence, fix)
        for (verdict, check, sentence, fix), names in subjects.items()
    ]


def counts_sentence(findings: Sequence[Finding]) -> str:
    """The numbers of findings in words: "1 wrong, 2 warnings, 30 ok"."""
    counts = {verdict: sum(item.verdict is verdict for item in findings) for verdict in Verdict}
    warnings = "1 warning" if counts[Verdict.WARN] == 1 else f"{counts[Verdict.WARN]} warnings"
    return f"{counts[Verdict.WRONG]} wrong, {warnings}, {counts[Verdict.OK]} ok"
