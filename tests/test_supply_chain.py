"""What gets into an environment: everything locked with hashes, the lock fits pyproject.toml, floors below which there
are known vulnerabilities stay where they are."""

from __future__ import annotations

import hashlib
import re
import tomllib
import zipfile
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

bootstrap: Any = import_module("tools.bootstrap")
containerfile: Any = import_module("tools.release.containerfile")
release: Any = import_module("tools.release.files")
run_lock: Any = import_module("tools.release.run_lock")
sbom: Any = import_module("tools.release.sbom")
uv: Any = import_module("tools.release.uv")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {name: (ROOT / "requirements" / f"{name}.lock").read_text() for name in ("build", "dev", "run")}
SAFE = {"cbor2": "5.9", "h11": "0.16", "pyyaml": "6.0.1", "pyarrow": "18"}
"""The oldest releases that no vulnerability is known of that reaches this code."""


def asked() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *chain.from_iterable(extras)]
    return [Requirement(line) for line in lines]


def versions(lock: str) -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^(\S+?)==(\S+)", lock, re.M):
        found.setdefault(canonicalize_name(name), []).append(Version(version))
    return found


def test_the_lock_has_all_that_the_project_asks_for() -> None:
    """If not: `make lock`."""
    locked = versions(LOCKS["dev"])
    for wanted in asked():
        found = locked.get(canonicalize_name(wanted.name), [])
        assert found and all(wanted.specifier.contains(item) for item in found), wanted
    build = versions(LOCKS["build"])
    for line in PROJECT["build-system"]["requires"]:
        wanted = Requirement(line)
        assert all(wanted.specifier.contains(item) for item in build[wanted.name]), wanted


@pytest.mark.parametrize("name", LOCKS)
def test_each_file_has_a_hash_and_comes_from_wherever_pip_is_told(name: str) -> None:
    lock = LOCKS[name]
    assert "://" not in lock and "--index" not in lock and " @ " not in lock
    entries = re.findall(r"^[a-z].*$", lock, re.M)
    assert entries and all(line.endswith(" \\") for line in entries)
    assert len(sbom.lock_hashes(lock)) == len(entries)
    assert all(hashes for hashes in sbom.lock_hashes(lock).values())


@pytest.mark.parametrize(("name", "oldest"), SAFE.items())
def test_floors_do_not_sink(name: str, oldest: str) -> None:
    for wanted in asked():
        if wanted.name == name:
            floors = [Version(item.version) for item in wanted.specifier if item.operator == ">="]
            assert floors and min(floors) >= Version(oldest)


def test_the_environments_pip_is_the_lock_s() -> None:
    version, hashes = bootstrap.locked(LOCKS["build"], "pip")
    assert Version(version) >= Version("25.3") and hashes
    page = f'<a href="../pip-1.0-py3-none-any.whl">old</a><a href="a/pip-{version}-py3-none-any.whl#sha256=0">new</a>'
    url = bootstrap.wheel_url(page, "https://index.example/simple/pip/", version)
    assert url == f"https://index.example/simple/pip/a/pip-{version}-py3-none-any.whl"
    for wrong, given in ((bootstrap.locked, (LOCKS["build"], "pi")), (bootstrap.wheel_url, ("", "x", version))):
        with pytest.raises(ValueError, match=r"make lock|offers no wheel"):
            wrong(*given)


@pytest.mark.parametrize(
    ("path", "encoding", "version", "told"),
    [
        ("/srv/ü/rmqha", "ANSI_X3.4-1968", (3, 11), r"has not all letters of '/srv/\xfc/rmqha': set LC_ALL=C.UTF-8"),
        ("/srv/ü/rmqha", "ANSI_X3.4-1968", (3, 13), ""),
        ("/srv/ü/rmqha", "UTF-8", (3, 11), ""),
        ("/srv/a b/rmqha", "ANSI_X3.4-1968", (3, 11), ""),
    ],
)
def test_a_path_that_python_cannot_read_is_told_before_anything_is_fetched(
    path: str, encoding: str, version: tuple[int, int], told: str
) -> None:
    problem = bootstrap.path_problem(path, encoding, version)
    assert told in problem and bool(told) == bool(problem)


def test_uv_hears_what_pip_was_told() -> None:
    made = uv.environment({"PIP_INDEX_URL": "https://index.example/simple", "UV_INDEX": "https://own.example"})
    assert made["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert made["UV_INDEX"] == "https://own.example" and "SSL_CERT_FILE" not in made


def test_the_list_of_packages_is_cyclonedx() -> None:
    made = sbom.document(LOCKS["dev"])
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    refs = [item["bom-ref"] for item in made["components"]]
    assert len(set(refs)) == len(refs)
    known = {made["metadata"]["component"]["bom-ref"], *refs}
    assert known == {edge["ref"] for edge in made["dependencies"]}
    assert all(set(edge["dependsOn"]) <= known for edge in made["dependencies"])
    scopes = {item["name"]: item["scope"] for item in made["components"]}
    assert scopes["trio"] == scopes["h11"] == scopes["google-re2"] == "required"
    assert scopes["pyspark"] == scopes["lz4"] == "optional"
    assert "pytest" not in scopes
    assert made == sbom.document(LOCKS["dev"])


def test_the_light_environment_has_what_runs_and_no_spark() -> None:
    """If not: `make lock`."""
    assert LOCKS["run"] == run_lock.run_lock(LOCKS["dev"])
    names = set(versions(LOCKS["run"]))
    direct = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    assert direct <= names
    assert not names & {"pyspark", "pyarrow", "numpy", "pytest", "mypy", "ruff", "selenium"}


def test_a_release_is_whole_and_two_builds_of_it_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795000000")
    for name in ("one", "other"):
        assert release.main(tmp_path / name, []) == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    version = import_module("rmqha").__version__
    names = {f"rmqha-{version}-py3-none-any.whl", f"rmqha-{version}.tar.gz", f"rmqha-{version}.cdx.json", "CHANGES.md"}
    native = {name for name in made if "manylinux" in name}
    assert set(made) - native == names | {"SHA256SUMS"}
    told = dict(line.split("  ")[::-1] for line in made["SHA256SUMS"].decode().splitlines())
    assert told == {name: hashlib.sha256(made[name]).hexdigest() for name in names | native}
    with zipfile.ZipFile(tmp_path / "one" / f"rmqha-{version}-py3-none-any.whl") as wheel:
        files = set(wheel.namelist())
        metadata = wheel.read(f"rmqha-{version}.dist-info/METADATA").decode()
    assert {"rmqha/ops/local/quickstart.toml", "nameserver/web/static/topics.html"} <= files
    assert not [name for name in files if name.startswith(("tests/", "docs/"))]
    assert "Classifier: Programming Language :: Python :: 3.11" in metadata
    assert "Requires-Dist: pyspark" in metadata and "extra == 'spark'" in metadata


def test_changes_of_a_version_are_its_own_part_else_what_is_unreleased() -> None:
    text = "# C\n\n## Unreleased\n\n- new\n\n## 0.2.0\n\n- old\n"
    assert release.section(text, "0.2.0") == "## 0.2.0\n\n- old\n"
    assert release.section(text, "0.3.0") == "## Unreleased\n\n- new\n\n"
    with pytest.raises(ValueError, match=r"nothing of 0\.3\.0"):
        release.section("# C\n", "0.3.0")


def test_each_step_of_the_image_can_be_carried_out_without_an_engine() -> None:
    """`make image` does."""
    steps = list(containerfile.instructions((ROOT / "Containerfile").read_text()))
    assert [rest for name, rest in steps if name == "FROM"] == [f"{containerfile.BASE} AS build", containerfile.BASE]
    assert sum(name == "RUN" for name, _ in steps) == 3 and ("USER", "rmqha") in steps
    with pytest.raises(ValueError, match="'ADD x y' is none of FROM"):
        list(containerfile.instructions("FROM a\nADD x y\n"))


def test_the_image_is_given_all_that_its_build_names() -> None:
    """No container is built here: a file that is not copied, or no longer there, is seen all the same."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", " ")
    stage, _, rest = text.partition("\nFROM python")[2].partition("\nFROM python")
    copied = [word for line in re.findall(r"^COPY (.+)$", stage, re.M) for word in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = PROJECT["project"]
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    given = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {line.removeprefix("!") for line in given} == set(copied), "an engine is given what it copies, and no more"
    needed = {"pyproject.toml", project["readme"], *project["license-files"], *wheel}
    assert needed <= set(copied)
    locks = re.findall(r"-r (\S+)", stage)
    assert locks and set(locks) <= set(copied) and all((ROOT / lock).stat().st_size for lock in locks)
    (command,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', rest, re.M)
    assert command in project["scripts"]
