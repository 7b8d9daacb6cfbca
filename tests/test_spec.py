"""The specification, its cases and its page name the same rules; Spin itself is run by `make spec`."""

from __future__ import annotations

import re
from pathlib import Path

from tools.check_spec import CASES, MODEL, Case, Outcome, verdict

PAGE = (MODEL.parent / "README.md").read_text()
HOLDING = Case("right", "CP")
FAILING = Case("wrong", "CP BUG", "ends badly")


def test_every_wrong_rule_of_the_model_is_a_case_and_stands_on_the_page() -> None:
    switches = set(re.findall(r"BUG_\w\w+", re.sub(r"/\*.*?\*/", "", MODEL.read_text(), flags=re.DOTALL)))
    wrong = [case for case in CASES if case.violation]
    assert {item for case in wrong for item in case.defines.split() if item.startswith("BUG_")} == switches
    assert {item for item in switches if f"| `{item}` |" not in PAGE} == set()
    assert {case.name for case in CASES if case.name not in PAGE} == set()


def test_every_action_of_the_model_is_taken_and_stands_on_the_page() -> None:
    text = MODEL.read_text()
    actions = set(re.findall(r"^inline ([A-Z]\w+)", text, re.MULTILINE))
    taken = text[text.index("#define EACH(Action)") :]
    assert {item for item in actions if not re.search(rf"\b{item}\b", taken)} == set()
    faults = {"Restart", "PowerLoss", "Lose"}
    assert {item for item in actions - faults if f"`{item}`" not in PAGE} == set()


def test_a_right_rule_fails_when_anything_is_found_or_the_search_does_not_end() -> None:
    assert not verdict(HOLDING, Outcome(1, 1, [], complete=True))
    assert verdict(HOLDING, Outcome(1, 1, [], complete=False))


def test_a_wrong_rule_must_be_found_by_the_property_that_it_breaks() -> None:
    assert not verdict(FAILING, Outcome(1, 1, ["VIOLATED: it ends badly"], complete=False))
    assert verdict(FAILING, Outcome(1, 1, [], complete=True))
    assert verdict(FAILING, Outcome(1, 1, ["VIOLATED: another"], complete=False))


def test_the_model_needs_no_installed_package() -> None:
    lines = (Path(__file__).parents[1] / "tools" / "check_spec.py").read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    others = {"concurrent.futures", "os", "pathlib", "re", "subprocess", "sys", "tempfile", "typing"}
    assert imported == {"__future__", *others}
