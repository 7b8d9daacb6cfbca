"""requirements/run.lock: of requirements/dev.lock what `rmqha` needs to run, without Spark and what only tests need.

    python -m tools.release.run_lock        # part of `make lock`

`make env` installs it: some 10 MB where the whole is 500.
"""

from __future__ import annotations

import re
import tomllib

from packaging.utils import canonicalize_name

from tools.release.sbom import LOCK, ROOT, closure, needs

RUN_LOCK = ROOT / "requirements" / "run.lock"
EXTRAS = ("compression",)
HEAD = "# This file was made of dev.lock by the following command:\n#    make lock\n"


def run_lock(dev_lock: str) -> str:
    """The entries of `dev_lock` that the dependencies of pyproject.toml and of EXTRAS reach, in their order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    wanted = set(closure(list(needs(lines))))
    entries = re.findall(r"^(\S+?)==.*(?:\n[ ]+.*)+\n", dev_lock, re.M)
    texts = re.findall(r"^\S+?==.*(?:\n[ ]+.*)+\n", dev_lock, re.M)
    kept = [text for name, text in zip(entries, texts, strict=True) if canonicalize_name(name) in wanted]
    assert len(kept) == len(wanted), f"{len(kept)} of {len(wanted)} packages are in {LOCK.name}"
    return HEAD + "".join(kept)


if __name__ == "__main__":
    RUN_LOCK.write_text(run_lock(LOCK.read_text()))
