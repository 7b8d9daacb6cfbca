"""The tree keeps the house rules of tests/tidy.py, and the checks see what they are for."""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import tidy
from tests.tidy import Finding

ROOT = Path(__file__).parent.parent
PACKAGES = ("rmqha", "controller", "nameserver")
OTHERS = ("tests", "benchmarks", "tools", "examples")
REREAD_ROOMS = ("ha", "host", "kernel", "model", "raft", "sim", "wire")
PURE_CONTRACT = "pure rooms touch neither clock, chance, system nor framework"
CONTROLLER_SHELLS = ("cli", "config", "server", "raft_peer_filter", "raft_log", "__init__")
"""Modules of the controller that may meet the world; every other one is pure."""


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def contract() -> list[str]:
    """The modules that import-linter holds for pure: one list for both tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(list(item["source_modules"]) for item in contracts if item["name"] == PURE_CONTRACT)


def is_pure(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package == "controller" and rest:
        return rest.rpartition(".")[2] not in CONTROLLER_SHELLS
    return any(name == root or name.startswith(f"{root}.") for root in (*contract(), "rmqha.sim"))


def is_product(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] in PACKAGES


def is_library(path: Path) -> bool:
    """Users call these rooms."""
    return path.relative_to(ROOT).parts[:2] in {("rmqha", name) for name in ("client", "spark", "scan", "wire")}


def is_reread_room(path: Path) -> bool:
    """Rooms whose docstrings were reread one by one; add a room when its own are."""
    package, room = path.relative_to(ROOT).parts[:2]
    return package == "rmqha" and room in REREAD_ROOMS


def is_reread(path: Path) -> bool:
    return is_reread_room(path) or path.relative_to(ROOT).parts[0] in ("controller", "nameserver")


def sizes(tree: ast.Module) -> Iterator[Finding]:
    return tidy.sizes(tree, max((getattr(node, "end_lineno", 0) for node in tree.body), default=0))


OTHER_CHECKS = (
    tidy.swallowed_errors,
    tidy.late_callbacks,
    tidy.docstrings_without_subject,
    tidy.docstrings_of_bare_names,
    tidy.docstrings_beginning_with_circumstance,
    tidy.retired_words,
    tidy.possessive_patterns,
)
PURE_CHECKS = (tidy.system_imports, tidy.unstable_identities, tidy.unsorted_sets, tidy.float_times)


class Law(NamedTuple):
    holds_for: Callable[[Path], bool]
    checks: tuple[Callable[[ast.Module], Iterator[Finding]], ...]


LAWS = {
    "pure and simulated code is deterministic": Law(
        lambda path: is_product(path) and is_pure(module_name(path)),
        PURE_CHECKS,
    ),
    "packages neither print nor swallow": Law(is_product, (tidy.prints, tidy.swallowed_errors)),
    "constructors take the callbacks that they need": Law(is_product, (tidy.late_callbacks,)),
    "names have the field's words": Law(is_product, (tidy.retired_words,)),
    "docstrings begin with their subject": Law(
        is_product, (tidy.docstrings_without_subject, tidy.docstrings_of_bare_names)
    ),
    "docstrings name the thing first": Law(is_reread, (tidy.docstrings_beginning_with_circumstance,)),
    "public classes have a docstring": Law(
        lambda path: is_library(path) or is_reread_room(path), (tidy.public_classes_without_docstring,)
    ),
    "patterns match alike with every Python": Law(is_product, (tidy.possessive_patterns,)),
    "public functions of the libraries have a docstring": Law(is_library, (tidy.public_functions_without_docstring,)),
    "modules and functions are short": Law(lambda path: True, (sizes,)),
}


class TreeFindings:
    """What all files are, and what breaks the laws. A file is parsed once."""

    def __init__(self) -> None:
        self.file_counts: Counter[str] = Counter()
        self.findings: dict[str, list[str]] = {name: [] for name in LAWS}
        self.classes: dict[str, list[str]] = {}
        """Places of each public class of the product."""
        self.identifiers: set[str] = set()
        self.error_names: list[tuple[str, str]] = []
        """Errors that the product's docstrings name, each with its place."""
        self.module_names: list[tuple[str, str]] = []
        """Modules of ours, or names in them, that the product's docstrings name, each with its place."""

    def check(self, path: Path) -> None:
        place, tree = path.relative_to(ROOT), ast.parse(path.read_text())
        for name in [name for name, law in LAWS.items() if law.holds_for(path)]:
            self.file_counts[name] += 1
            found = [item for check in LAWS[name].checks for item in check(tree)]
            self.findings[name] += [f"{place}:{item.line}: {item.sentence}" for item in found]
        if is_product(path):
            self.identifiers.update(tidy.identifiers(tree))
            self.error_names += [(f"{place}:{line}", name) for line, name in tidy.error_names(tree)]
            self.module_names += [(f"{place}:{line}", name) for line, name in tidy.module_names(tree)]
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    self.classes.setdefault(node.name, []).append(str(place))


@pytest.fixture(scope="module")
def tree() -> TreeFindings:
    found = TreeFindings()
    for path in modules(*PACKAGES, *OTHERS):
        found.check(path)
    return found


@pytest.mark.parametrize("name", LAWS)
def test_the_tree_keeps_the_law(tree: TreeFindings, name: str) -> None:
    assert tree.file_counts[name] > 40, "the list of its modules has shrunk"
    assert not tree.findings[name], "\n".join(tree.findings[name])


def test_every_pure_module_of_the_contract_exists() -> None:
    names = {module_name(path) for path in modules(*PACKAGES)}
    assert [name for name in contract() if name not in names] == []


def test_a_folder_has_at_most_14_modules() -> None:
    """A package that is larger has rooms that want a name."""
    folders = Counter(path.parent for path in modules(*PACKAGES, *OTHERS) if path.name != "__init__.py")
    assert [f"{folder}: {count}" for folder, count in sorted(folders.items()) if count > 14] == []


def test_no_two_public_classes_of_the_product_have_one_name(tree: TreeFindings) -> None:
    """A reader who searches for a class finds one."""
    assert len(tree.classes) > 500
    assert [f"{name}: {', '.join(found)}" for name, found in sorted(tree.classes.items()) if len(found) > 1] == []


def test_docstrings_name_errors_that_there_are(tree: TreeFindings) -> None:
    """A rename leaves no name of the past."""
    known = tree.identifiers | set(dir(builtins))
    assert len(tree.error_names) > 500
    assert [f"{place}: {name}" for place, name in tree.error_names if name not in known] == []


def exists(name: str) -> bool:
    """True for a module or package of ours, or a name that stands in one."""
    path, _, attribute = name.rpartition(".")
    file = ROOT.joinpath(*name.split("."))
    if file.is_dir() or file.with_suffix(".py").exists():
        return True
    owner = ROOT.joinpath(*path.split("."))
    source = owner / "__init__.py" if owner.is_dir() else owner.with_suffix(".py")
    return source.exists() and re.search(rf"\b{attribute}\b", source.read_text()) is not None


def test_docstrings_name_modules_that_there_are(tree: TreeFindings) -> None:
    assert len(tree.module_names) > 30
    missing = [(place, name) for place, name in tree.module_names if not exists(name)]
    assert [item for item in missing if not exists(item[1].rpartition(".")[0])] == []


def test_every_tests_folder_is_a_package() -> None:
    """Otherwise tests/controller would shadow the controller."""
    folders = {path.parent for path in modules("tests")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (tidy.system_imports, "import time"),
        (tidy.system_imports, "from os import path"),
        (tidy.system_imports, "import os.path as p"),
        (tidy.system_imports, "def f():\n    from random import random"),
        (tidy.unstable_identities, "key = id(x)"),
        (tidy.unstable_identities, "key = hash('text') % 8"),
        (tidy.unsorted_sets, "for x in {1, 2}: f(x)"),
        (tidy.unsorted_sets, "s = set(a)\nfor x in s: f(x)"),
        (tidy.unsorted_sets, "def f(s: frozenset[str]):\n    return [x for x in s]"),
        (
            tidy.unsorted_sets,
            "class C:\n    def f(self):\n        self.s: set[str] = set()\n        return list(self.s)",
        ),
        (tidy.unsorted_sets, "s = set()\nt = s | u\nx = ','.join(t)"),
        (tidy.unsorted_sets, "s = {1}\nx = s.pop()"),
        (tidy.unsorted_sets, "s = {1}\nx = next(iter(s))"),
        (tidy.unsorted_sets, "def f() -> set[str]: ...\nx = tuple(f())"),
        (tidy.unsorted_sets, "s = {1}\nx = [*s, 2]"),
        (tidy.unsorted_sets, "s = {1}\nd = {x: f(x) for x in s.union(t)}"),
        (tidy.float_times, "delay_ms = 0.5"),
        (tidy.float_times, "x = delay_ms / 2"),
        (tidy.float_times, "x = (now_ms - start_ms) / count"),
        (tidy.float_times, "f(delay_ms=1.5)"),
        (tidy.float_times, "if now_ms > 1.0: pass"),
        (tidy.float_times, "x = clock.now_ms() * 2.0"),
        (tidy.prints, "print('x')"),
        (tidy.public_functions_without_docstring, "class C:\n    @property\n    def f(self): return 1"),
        (tidy.public_classes_without_docstring, "class C:\n    x = 1"),
        (tidy.docstrings_without_subject, '"""What a thing is."""'),
        (tidy.docstrings_without_subject, 'def f():\n    """Is there one?"""'),
        (tidy.docstrings_without_subject, 'def f():\n    """\n    Of a thing.\n    """'),
        (tidy.docstrings_without_subject, 'class C:\n    x: int\n    """Own. How many there are."""'),
        (tidy.docstrings_without_subject, 'class C:\n    async def f(self):\n        """The same, later."""'),
        (tidy.docstrings_of_bare_names, 'class C:\n    """`x` is one."""'),
        (tidy.docstrings_of_bare_names, 'def f(x):\n    """`x`: one."""'),
        (tidy.docstrings_of_bare_names, 'async def f():\n    """To all of them."""'),
        (tidy.docstrings_beginning_with_circumstance, '"""By id, ascending."""'),
        (tidy.docstrings_beginning_with_circumstance, 'class C:\n    x: int\n    """Own. With a master: its id."""'),
        (tidy.swallowed_errors, "try:\n    f()\nexcept OSError:\n    pass"),
        (tidy.late_callbacks, "class C:\n    def f(self):\n        self.a: Callable[[int], None] = lambda x: None"),
        (tidy.late_callbacks, "class C:\n    def f(self):\n        self.a: Callable[[], dict[str, int]] = dict"),
        (tidy.possessive_patterns, "x = re.compile(r'(?:a|b)*+')"),
        (tidy.possessive_patterns, "x = re.sub(rb'(?>a)b', b'', y)"),
        (tidy.possessive_patterns, "x = re.match(rf'{a}[a-z]++', y)"),
        (tidy.retired_words, "class StoreLook: pass"),
        (tidy.retired_words, "class Newcomers: pass"),
        (tidy.retired_words, "async def look_at(): pass"),
        (tidy.retired_words, "def f(strangers): pass"),
        (tidy.retired_words, "class C:\n    def f(self):\n        self._looked_to = 1"),
    ],
)
def test_a_check_sees_what_it_is_for(check: Callable[[ast.Module], Iterator[Finding]], bad: str) -> None:
    assert list(check(ast.parse(bad)))


@pytest.mark.parametrize(
    "good",
    [
        "from rmqha.port import Clock",
        "from .time import x",
        "class C:\n    def __hash__(self): return hash(self.x)",
        "s = {2, 1}\nfor x in sorted(s): f(x)",
        "s = {2, 1}\nx = sorted(y + 1 for y in s if y)",
        "s = set(a)\nx = {y for y in s} | {*s, 3}",
        "s = {1}\nx = any(f(y) for y in s) or len(s) or max(s) in s",
        "s = {1}\nx = tuple(sorted({*s, 2}))",
        "d = {1: 2}\nfor x in d: f(d.pop(x))",
        "x = delay_ms // 2\ny = size_bytes / 2\nratio = 0.5",
        "try:\n    f()\nexcept OSError as error:\n    log(error)",
        '"""Offsets of a thing, as it has them."""\nx = "What"',
        '"""Formats by version; Into-like names and Bytes pass."""',
        "x = re.compile(r'[*+]+\\++[]?+]')\ny = re.compile(rb'[+\\-*/]+')",
        "def look_up(lookup, outlook):\n    x = 1",
        "class C:\n    def f(self, a: Callable[[], None]):\n        self.a: Callable[[], None] = a",
    ],
)
def test_a_check_lets_good_code_pass(good: str) -> None:
    tree = ast.parse(good)
    assert [finding for check in (*PURE_CHECKS, *OTHER_CHECKS) for finding in check(tree)] == []


def test_sizes_are_seen() -> None:
    long_function = "def f():\n" + "    x = 1\n" * tidy.FUNCTION_LINE_COUNT
    assert [finding.line for finding in tidy.sizes(ast.parse(long_function), 81)] == [1]
    assert list(tidy.sizes(ast.parse(""), tidy.MODULE_LINE_COUNT + 1))
    assert not list(tidy.sizes(ast.parse("def f():\n    return 1"), tidy.MODULE_LINE_COUNT))


def test_the_changelog_is_read_line_by_line() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.count("\n- ") > 100
    assert [f"CHANGELOG.md:{finding.line}: {finding.sentence}" for finding in tidy.changelog(text)] == []


@pytest.mark.parametrize(
    "bad",
    [
        "- One under no kind.",
        "### Added\n- A line of which\n  the end stands on the next one.",
        f"### Added\n- {'Long ' * 40}.",
        "### Added\n- No full stop",
        "### Added\n- One thing. Another thing.",
        "### Added\n- The same.\n\n## 0.1.0\n\n### Fixed\n- The same.",
        "### Fixed\n- One.\n\n### Added\n- Another.",
        "### Added\n- One.\n\n### Added\n- Another.",
        "### News\n- One.",
        "### Added\nProse that is no change.",
    ],
)
def test_a_change_that_is_hard_to_read_is_seen(bad: str) -> None:
    assert list(tidy.changelog(bad))


def test_a_plain_changelog_passes() -> None:
    text = "# Changes\n\nProse. More.\n\n## 1.0\n\n### Added\n\nAn area\n- One thing.\n\n### Fixed\n- Another.\n"
    assert list(tidy.changelog(text)) == []
