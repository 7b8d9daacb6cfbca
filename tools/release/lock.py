"""Renew requirements/*.lock: `make lock`. Needs a package index; PIP_INDEX_URL and PIP_CERT count.

One lock for Python 3.11 and newer, every system and processor, each file with its hash (uv's universal resolution).
"""

from __future__ import annotations

from tools.release.run_lock import RUN_LOCK, run_lock
from tools.release.sbom import LOCK
from tools.release.uv import uv

EXTRAS = ("spark", "demo", "dev", "compression", "fsspec")
SHARED = ("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate")
RENEWED = ("--upgrade", "--custom-compile-command", "make lock")


def main() -> None:
    uv([*SHARED, *RENEWED, "requirements/build.in", "--output-file", "requirements/build.lock"])
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    build = ("--constraint", "requirements/build.lock")
    uv([*SHARED, *RENEWED, "pyproject.toml", *extras, *build, "--output-file", "requirements/dev.lock"])
    RUN_LOCK.write_text(run_lock(LOCK.read_text()))


if __name__ == "__main__":
    main()
