"""What the wheel needs at run time, as a CycloneDX document: `make sbom`, or `python -m tools.release.sbom FILE`.

The packages are those of this environment, which requirements/dev.lock has fixed, reached from pyproject.toml; what
only extras need has the scope `optional`. Hashes are the lock's: of each file of that version.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rmqha import __version__

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "dev.lock"
RUNTIME_EXTRAS = ("compression", "spark", "fsspec")
_ENTRY = re.compile(r"^(\S+?)==(\S+).*\\\n((?:[ ]+--hash=\S+(?: \\)?\n)+)", re.M)


def lock_hashes(text: str) -> dict[tuple[str, str], list[str]]:
    """(package, version) → sha256 of its files."""
    return {
        (name, version): re.findall("sha256:([0-9a-f]{64})", files) for name, version, files in _ENTRY.findall(text)
    }


def needs(lines: Iterable[str], extra: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Names and extras of what these requirements mean here; with `extra`, only what that adds."""
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        wanted = marker is not None and not always and marker.evaluate({"extra": extra}) if extra else always
        if wanted:
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def closure(start: list[tuple[str, frozenset[str]]]) -> dict[str, Distribution]:
    """The packages that are reached from `start`, by name."""
    found: dict[str, Distribution] = {}
    seen, left = set[tuple[str, str]](), [(name, extra) for name, extras in start for extra in ("", *extras)]
    while left:
        if (item := left.pop()) in seen:
            continue
        seen.add(item)
        found[item[0]] = distribution(item[0])
        left += [
            (name, extra) for name, extras in needs(found[item[0]].requires or (), item[1]) for extra in ("", *extras)
        ]
    return found


def component(found: Distribution, scope: str, hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    name = canonicalize_name(found.metadata["Name"])
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{found.version}",
        "name": name,
        "version": found.version,
        "scope": scope,
        "purl": f"pkg:pypi/{name}@{found.version}",
    }
    if "License-Expression" in found.metadata:
        described["licenses"] = [{"expression": found.metadata["License-Expression"]}]
    files = hashes.get((name, found.version), [])
    if files:
        described["hashes"] = [{"alg": "SHA-256", "content": value} for value in files]
    return described


def document(lock: str) -> dict[str, Any]:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = list(needs(own["dependencies"]))
    required = closure(direct)
    optional = closure(list(needs(line for extra in RUNTIME_EXTRAS for line in own["optional-dependencies"][extra])))
    hashes = lock_hashes(lock)
    ref = f"pkg:pypi/{own['name']}@{__version__}"
    every = {**optional, **required}
    scopes = {name: "required" if name in required else "optional" for name in every}
    refs = {name: f"pkg:pypi/{name}@{found.version}" for name, found in every.items()}
    edges = [{"ref": ref, "dependsOn": sorted(refs[name] for name, _ in direct)}]
    for name in sorted(every):
        below = sorted({refs[item] for item, _ in needs(every[name].requires or ()) if item in refs})
        edges.append({"ref": refs[name], "dependsOn": below})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ref + lock)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": ref, "name": own["name"], "version": __version__}},
        "components": [component(every[name], scopes[name], hashes) for name in sorted(every)],
        "dependencies": edges,
    }


def main(target: Path) -> None:
    made = document(LOCK.read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(made, indent=2) + "\n")
    required = sum(item["scope"] == "required" for item in made["components"])
    print(f"{target}: {required} packages that rmqha needs, {len(made['components']) - required} of its extras")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
