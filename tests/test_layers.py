"""The layers of pyproject.toml hold: import-linter's contracts, as a test."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.patience import HANG_S

if TYPE_CHECKING:
    import grimp

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

MAX_LAYERS = 8


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    import grimp

    return grimp.build_graph("rmqha", "controller", "nameserver", cache_dir=None)


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """As a process, since import-linter keeps its settings and caches in global state."""
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--config", str(folder / "pyproject.toml")],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_the_contracts_are_kept() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 kept, 0 broken" in result.stdout


def test_a_broken_layer_is_seen(tmp_path: Path) -> None:
    """The same contracts over a toy tree in which raft imports the store."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name in ("rmqha", "controller", "nameserver"):
        for module in (path.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")):
            target = tmp_path / module
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("")
    (tmp_path / "rmqha/scan/storage.py").write_text("import os\n")
    (tmp_path / "rmqha/raft/node.py").write_text("import rmqha.store.store\nimport time\n")
    result = lint(tmp_path)
    assert result.returncode != 0
    assert "rmqha.raft is not allowed to import rmqha.store" in result.stdout
    assert "rmqha.raft is not allowed to import time" in result.stdout


def package_of(module: str) -> str:
    """`rmqha.store` of `rmqha.store.log.record`; `controller` and `nameserver` are one package each, and
    `rmqha.__main__` is the way into `rmqha.cli`."""
    if module == "rmqha.__main__":
        return "rmqha.cli"
    return ".".join(module.split(".")[: 2 if module.startswith("rmqha.") else 1])


def test_packages_stand_in_at_most_eight_layers(imports: grimp.ImportGraph) -> None:
    below: dict[str, set[str]] = {}
    for module in imports.modules:
        found = {package_of(name) for name in imports.find_modules_directly_imported_by(module)}
        below.setdefault(package_of(module), set()).update(found - {package_of(module)})

    @cache
    def layer(package: str) -> int:
        return 1 + max((layer(name) for name in below[package]), default=0)

    layers = {package: layer(package) for package in below}
    assert layers["rmqha.model"] == 1
    assert max(layers.values()) <= MAX_LAYERS, sorted(layers.items(), key=lambda item: item[1])


def test_no_modules_import_each_other_in_a_circle(imports: grimp.ImportGraph) -> None:
    modules = {name: imports.find_modules_directly_imported_by(name) for name in sorted(imports.modules)}
    TopologicalSorter(modules).prepare()  # raises CycleError, which names the modules
