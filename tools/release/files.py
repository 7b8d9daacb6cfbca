"""What a release is made of, in one folder: `make dist`, or `python -m tools.release.files DIR [LIBRARY...]`.

The wheels (`tools.release.dist`) and the source archive, built from this tree, the list of packages (CycloneDX), the
part of CHANGELOG.md that belongs to this version, and SHA256SUMS of all of them. Files carry the time of the last
commit (SOURCE_DATE_EPOCH), so that two builds of one commit are the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from rmqha import __version__
from tools.release import dist, sbom

ROOT = Path(__file__).resolve().parents[2]


def section(changelog: str, version: str) -> str:
    """The part of a changelog about one version, about what is unreleased if there is none of that version."""
    parts = re.split(r"^(?=## )", changelog, flags=re.M)
    for title in (version, "Unreleased"):
        for part in parts:
            if re.match(rf"## \[?{re.escape(title)}\b", part):
                return part
    raise ValueError(f"CHANGELOG.md tells nothing of {version}")


def commit_time_s() -> str:
    """When the last commit was made; what the environment says already counts more."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()


def main(target: Path, libraries: list[str]) -> int:
    """The exit code. `libraries`: native kernels of other machines, as for `tools.release.dist`."""
    target.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = commit_time_s()
    if failed := dist.main([str(target), *libraries]):
        return failed
    dist.run("hatchling", "build", "--target", "sdist", "--directory", str(target.absolute()))
    sbom.main(target / f"rmqha-{__version__}.cdx.json")
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
    (target / "CHANGES.md").write_text(notes, encoding="utf-8")
    made = [target / "CHANGES.md", *target.glob(f"rmqha-{__version__}*")]
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made))
    (target / "SHA256SUMS").write_text(sums)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist", sys.argv[2:]))
