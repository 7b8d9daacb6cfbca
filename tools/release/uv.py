"""How the tools run uv: with pip's settings, so that one set of environment variables serves both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FROM_PIP = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_EXTRA_INDEX_URL": "UV_INDEX", "PIP_CERT": "SSL_CERT_FILE"}


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """`given` with uv's variables for those of pip, where they are not set themselves."""
    made = {theirs: given[ours] for ours, theirs in FROM_PIP.items() if ours in given}
    return {"UV_NO_PROGRESS": "1", **made, **given}


def uv(arguments: Sequence[str]) -> None:
    """Run it in the repository; it speaks for itself. Ends the program if it fails."""
    command = [str(Path(sys.executable).parent / "uv"), "--no-config", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(os.environ), check=False)
    if done.returncode:
        sys.exit(f"uv {' '.join(arguments[:2])} failed; what it said stands above")
