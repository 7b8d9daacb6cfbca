"""Test with the lowest versions that pyproject.toml allows: `make test-lowest`. .venv-lowest is made anew each time.

Of Python it takes the oldest here that is allowed: Debian 12 has 3.11.2, whose `re` and `tarfile` are not those of
later ones.

A floor that is too low for our code, or that no longer installs, shows here and not with the first user who has it.
Spark stays out: its one version is in every environment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.release.uv import ROOT, uv

DIRECTORY = ROOT / ".venv-lowest"
PATHS = (
    "model", "wire", "host", "nameserver/web", "client/consumers/test_message.py", "client/producers/test_producer.py",
    "controller/quorum/test_raft_log.py", "cli/storage/test_log.py", "cli/test_main.py",
    "cli/test_completion.py", "cli/test_render.py", "cli/generate",
    "scan/test_api.py",
)  # fmt: skip
"""Those that use what we depend on, not those that test only ourselves."""
MARKS = "not interop and not chaos and not browser and not spark"


def version_of(python: str) -> tuple[int, ...]:
    told = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:3])"], text=True)
    return tuple(map(int, told.split()))


def oldest_python() -> str:
    """The system's own Python if that is older than this one, and 3.11 or newer."""
    known = [sys.executable, *map(str, Path("/usr/bin").glob("python3.1[1-9]"))]
    return min(known, key=version_of)


def main(paths: list[str]) -> int:
    python = DIRECTORY / "bin" / "python"
    uv(["venv", "--quiet", "--clear", "--python", oldest_python(), str(DIRECTORY)])
    install = ["pip", "install", "--quiet", "--python", str(python), "--resolution", "lowest-direct"]
    uv([*install, "--editable", ".[dev,compression,scan]"])
    uv(["pip", "list", "--quiet", "--python", str(python)])
    wanted = paths or [f"tests/{path}" for path in PATHS]
    # a tool of an old version may itself use what has become deprecated since
    return subprocess.call([str(python), "-m", "pytest", "-m", MARKS, "-p", "no:cacheprovider", *wanted], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
