"""Test with the newest Python here that the locks serve: `make test-newest`. .venv-newest is made anew each time.

Debian 12 has Python 3.11, Debian 13 has 3.13, whose warnings and errors are not the same. All else is as locked. Spark
stays out, as in `tools.release.lowest`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.release.lowest import MARKS, PATHS, version_of
from tools.release.uv import ROOT, uv

DIRECTORY = ROOT / ".venv-newest"
LOCK = ROOT / "requirements" / "dev.lock"
SERVED = ("python3.11", "python3.12", "python3.13")
"""The Pythons that the locks serve."""


def newest_python() -> str:
    """One on the path, of the system or of pyenv, or this one."""
    pyenv = (Path.home() / ".pyenv" / "versions").glob("*/bin/*")
    known = [*map(shutil.which, SERVED), *(f"/usr/bin/{name}" for name in SERVED)]
    known += [str(path) for path in pyenv if path.name in SERVED]
    return max([sys.executable, *(path for path in known if path and _runs(path))], key=version_of)


def _runs(python: str) -> bool:
    """False for a path where nothing is, and for a name of pyenv's that stands for no version."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def main(paths: list[str]) -> int:
    newest, python = newest_python(), DIRECTORY / "bin" / "python"
    if version_of(newest) == version_of(sys.executable):
        print(f"{sys.executable} is the newest Python here that the locks serve: `make test` runs on it")
        return 0
    print(f"tests on {newest}", flush=True)
    uv(["venv", "--quiet", "--clear", "--python", newest, str(DIRECTORY)])
    install = ["pip", "install", "--quiet", "--python", str(python), "--constraint", str(LOCK)]
    uv([*install, "--editable", ".[dev,compression,scan]"])
    wanted = paths or [f"tests/{path}" for path in PATHS]
    return subprocess.call([str(python), "-m", "pytest", "-m", MARKS, "-p", "no:cacheprovider", *wanted], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
