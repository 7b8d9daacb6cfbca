"""The layers of pyproject.toml hold: import-linter's contracts, as a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.patience import HANG_S

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """As a process, since import-linter keeps its settings and caches in global state."""
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--config", str(folder / "pyproject.toml")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_the_contracts_are_kept() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "5 kept, 0 broken" in result.stdout


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
