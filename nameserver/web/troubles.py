"""Troubles in the words of `rmqha health`, group by group: one odd answer spoils one group's part. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nameserver.web.message_view import short, visible
from rmqha.ops.health.agreement import Agreement, View
from rmqha.ops.health.findings import HealthFinding, judge
from rmqha.ops.health.survey import NodeReport, ServerKind

ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Errors that an answer of a release that is older, newer or foreign may lead to; the part that needs it is left out
then."""
MAX_FINDINGS = 200


def troubles(words: list[NodeReport], groups: Iterable[str], name_server: Mapping[str, Any]) -> dict[str, Any]:
    """JSON-ready: `findings` (where, what, fix, note), `views` (those that do not match), `healthy`, `answered`."""
    common = [word for word in words if word.kind is not ServerKind.BROKER]
    brokers: dict[str, list[NodeReport]] = {}
    for word in words:
        if word.kind is ServerKind.BROKER:
            for name in sorted(word.groups | {word.group}):
                brokers.setdefault(name, []).append(word)
    findings, views = _judged(words, [], "the controllers")
    if name_server.get("suspectsItself"):
        what = (
            "most brokers fell silent at once: more likely it is cut off than all of them dead; it keeps their routes"
        )
        findings.append(HealthFinding("this name server", what, "check its network"))
    known = set(findings)
    for name in groups:
        own = [*(_narrowed(word, name) for word in common), *brokers.get(name, ())]
        found, seen = _judged(own, [name], name)
        findings += [item for item in found if item not in known]
        views += seen
    wrong = [item for item in findings if not item.note]
    shown = [*wrong, *(item for item in findings if item.note)][:MAX_FINDINGS]
    answered = sum(word.answers for word in words)
    return {
        "healthy": answered > 0 and not wrong,
        "answered": answered,
        "wrong": len(wrong),
        "findings": [_finding(item) for item in shown],
        "views": [_view(item) for item in views if item.agreement is not Agreement.MATCHING][:MAX_FINDINGS],
    }


def _judged(words: list[NodeReport], groups: list[str], about: str) -> tuple[list[HealthFinding], list[View]]:
    try:
        health = judge(words, groups)
    except ODD as error:
        what = f"what some node answers is not known to this release: {short(repr(error))}"
        return [HealthFinding(about, what, "rmqha status asks each node alone")], []
    return list(health.findings), list(health.views)


def _narrowed(word: NodeReport, name: str) -> NodeReport:
    """A controller's or name server's word about one group."""
    if word.controller is not None:
        told = word.controller.groups
        word = replace(word, controller=replace(word.controller, groups={name: told[name]} if name in told else {}))
    return replace(word, routes={name: word.routes[name]} if name in word.routes else {})


def _finding(item: HealthFinding) -> dict[str, Any]:
    return {"where": visible(item.where), "what": visible(item.what), "fix": visible(item.fix), "note": item.note}


def _view(item: View) -> dict[str, Any]:
    return {
        "group": visible(item.group),
        "about": item.about,
        "agreement": item.agreement.value,
        "says": [[visible(title), visible(sentence)] for title, sentence in item.says.items()],
        "silent": [visible(title) for title in item.silent],
    }
