"""Counts how often each invariant of the product is evaluated in simulated runs.

`python -m tests.simulation.probes.asserted 7 late:3` runs those seeds with every `assert` that has a sentence counted,
and prints a line for each: count, module, condition. An assertion is counted by rewriting it as its module is loaded,
as pytest does, so the product pays nothing; a process that has loaded the product already cannot count.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[3]
PACKAGES = ("rmqha.ha", "rmqha.raft", "rmqha.store", "controller.machine")
_COUNTS = "__assertion_counts__"


def invariants(tree: ast.AST, place: str) -> dict[ast.Assert, str]:
    """Assertions with a sentence, and the name of each: `place`, function and condition. Those without a sentence are
    hints for the type checker."""
    found = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assert) and node.msg is not None:
            found[node] = f"{place}: {ast.unparse(node.test)}"
        inner = f"{place}.{node.name}" if isinstance(node, ast.FunctionDef | ast.ClassDef) else place
        found |= invariants(node, inner)
    return found


def all_invariants() -> set[str]:
    """Names of all invariants of PACKAGES, from the sources."""
    names = set[str]()
    for package in PACKAGES:
        place = ROOT / package.replace(".", "/")
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            names |= set(invariants(ast.parse(path.read_text()), module).values())
    return names


class _Counted(ast.NodeTransformer):
    def __init__(self, names: dict[ast.Assert, str]) -> None:
        self._names = names

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if node not in self._names:
            return [node]
        (count,) = ast.parse(f"{_COUNTS}[{self._names[node]!r}] += 1").body
        for part in ast.walk(count):
            ast.copy_location(part, node)
        return [count, node]


class CountingLoader(SourceFileLoader):
    """Loads a module with its invariants counted in `counts`; never from a cache of byte code."""

    counts: dict[str, int]

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        names = invariants(tree, fullname)
        self.counts.update(dict.fromkeys(names.values(), 0))
        counted = ast.fix_missing_locations(_Counted(names).visit(tree))
        return compile(counted, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_COUNTS] = self.counts
        super().exec_module(module)


class Counter(MetaPathFinder):
    """Finder for the modules of PACKAGES: they are loaded with their invariants counted."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(fullname == package or fullname.startswith(f"{package}.") for package in PACKAGES):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return spec
        loader = CountingLoader(fullname, spec.origin)
        loader.counts = self.counts
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=loader, submodule_search_locations=spec.submodule_search_locations
        )


def counted(runs: Sequence[str]) -> dict[str, int]:
    """Evaluations of each invariant in `runs` ("theme:seed"). Raises RuntimeError for a run that fails, and in a
    process that has loaded the product."""
    loaded = sorted(name for name in sys.modules if name.startswith(PACKAGES))
    if loaded:
        raise RuntimeError(f"{loaded[0]} is loaded: its assertions cannot be counted any more")
    counter = Counter()
    sys.meta_path.insert(0, counter)
    from tests.simulation.planted.mutations import failure_of
    from tests.simulation.run import Run

    for text in runs:
        failure = failure_of(Run.parse(text))
        if failure:
            raise RuntimeError(f"{text} failed: {failure}")
    return counter.counts


if __name__ == "__main__":
    print(json.dumps(counted(sys.argv[1:]), indent=1))
