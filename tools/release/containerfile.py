"""The Containerfile carried out without a container engine: `python -m tools.release.containerfile` on Linux, as root.

Each stage is this machine's root under an overlay, in a mount namespace that ends with the process: in it the Python
that runs this stands at /usr/local with nothing but pip, as in the base image. COPY, RUN, USER and WORKDIR are then
done in order, and at the end the image's command is run as its user. It does not show that the base image itself has
all that is used here, nor anything that an engine does beside these instructions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmqha.ops.local.preflight import free_ports

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"
PRIVATE = "RMQHA_CONTAINERFILE_PRIVATE"
KEPT = re.compile(r"pip\b|pip-|setuptools|wheel|_distutils_hack|pkg_resources|distutils-precedence")
"""Names in site-packages that a base image has too."""
PORTS = 80
KNOWN = ("FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENTRYPOINT", "CMD")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """(instruction, its words). Raises ValueError for one that this does not carry out."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        if name not in KNOWN:
            raise ValueError(f"{line!r} is none of {', '.join(KNOWN)}")
        yield name, rest.strip()


@dataclass
class Stage:
    """A file system, and how its commands are run."""

    root: Path
    user: str = "root"
    directory: str = "/"
    entry: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> None:
        """Run it within. Raises CalledProcessError."""
        environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        environment |= {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
        # else a Python with a library beside it takes that of the machine
        environment["LD_LIBRARY_PATH"] = "/usr/local/lib"
        login = [] if self.user == "root" else ["setpriv", "--reuid", self.user, "--regid", self.user, "--clear-groups"]
        program = ["chroot", str(self.root), *login, "/bin/sh", "-c", f'cd {self.directory} && exec "$@"', "sh"]
        subprocess.run([*program, *command], env=environment, check=True)

    def copy(self, sources: Sequence[Path], target: str) -> None:
        """Copy files, and what directories hold, as COPY does."""
        place = self.root / str(Path(self.directory) / target).lstrip("/")
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, place, dirs_exist_ok=True, symlinks=True, ignore=_not_of_sources)
            else:
                into = place / source.name if target.endswith("/") or len(sources) > 1 else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, into)


def _not_of_sources(directory: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def base_image(place: Path) -> Path:
    """The root of a new stage in `place`."""
    root = _overlay(Path("/"), place / "base")
    _overlay(Path(sys.base_prefix), place / "python", at=root / "usr/local")
    site = root / "usr/local/lib/python3.11/site-packages"
    for found in site.iterdir():
        if not KEPT.match(found.name):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    pip = root / "usr/local/bin/pip"
    pip.unlink(missing_ok=True)
    pip.write_text('#!/bin/sh\nexec /usr/local/bin/python3.11 -m pip "$@"\n')
    pip.chmod(0o755)
    for name in ("dev", "proc"):
        subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
    return root


def _overlay(lower: Path, place: Path, at: Path | None = None) -> Path:
    upper, work, root = place / "upper", place / "work", at or place / "root"
    for path in (upper, work, root):
        path.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    return root


def carry_out(text: str, scratch: Path) -> Stage:
    """Do what the file says, in `scratch`; the last stage."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in instructions(text):
        print(f"{name} {rest}", flush=True)
        if name == "FROM":
            image, _, title = rest.partition(" AS ")
            if image != BASE:
                raise ValueError(f"FROM {image}: only {BASE} can be stood for by this machine")
            stage = stages[title or str(len(stages))] = Stage(base_image(scratch / str(len(stages))))
            continue
        assert stage is not None, "an image begins with FROM"
        if name == "RUN":
            stage.run(["/bin/sh", "-c", rest])
        elif name == "COPY":
            *sources, target = rest.split()
            origin = ROOT
            if sources[0].startswith("--from="):
                origin = stages[sources.pop(0).removeprefix("--from=")].root
            stage.copy([origin / source.lstrip("/") for source in sources], target)
        elif name == "WORKDIR":
            stage.directory = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = rest
        elif name == "ENTRYPOINT":
            stage.entry = json.loads(rest)
        elif name == "CMD":
            stage.arguments = json.loads(rest)
    assert stage is not None, "an image begins with FROM"
    return stage


def main() -> None:
    if PRIVATE not in os.environ:
        os.environ[PRIVATE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "tools.release.containerfile"])
    scratch = Path(tempfile.mkdtemp(prefix="rmqha-image-"))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(scratch)], check=True)
    stage = carry_out((ROOT / "Containerfile").read_text(encoding="utf-8"), scratch)
    stage.run([*stage.entry, *stage.arguments])
    port = free_ports(PORTS)
    stage.run(["/bin/sh", "-c", "if touch /usr/local/lib/x 2>/dev/null; then exit 1; fi"])
    stage.run(["/bin/sh", "-c", f"rmqha up --port-base {port} && rmqha status && rmqha down"])
    print("carried out: installed, and a group started and stopped as the image's user")


if __name__ == "__main__":
    main()
