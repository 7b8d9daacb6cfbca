"""The extra `scan`: it is enough for rmqha.scan, and the extra `spark` has all of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.store.support import unpack
from tests.support.patience import HANG_S

sbom: Any = import_module("tools.release.sbom")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PROGRAM = """
import importlib, json, pkgutil, sys
class Uninstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)
root, hidden = sys.argv[1], set(json.loads(sys.argv[2]))
sys.meta_path.insert(0, Uninstalled())
import rmqha.scan
for item in pkgutil.walk_packages(rmqha.scan.__path__, "rmqha.scan."):
    importlib.import_module(item.name)
from rmqha.scan.api import open_store, read_store
print(sum(batch.num_rows for batch in read_store(open_store(root))))
"""


def test_it_has_all_that_reads_a_store(tmp_path: Path) -> None:
    """In a process that finds no package but those that `pip install rmqha[scan]` brings."""
    unpack("n0", tmp_path)
    installed = set(sbom.closure(list(sbom.needs([*PROJECT["dependencies"], *EXTRAS["scan"]]))))
    tops = {
        top: {canonicalize_name(owner) for owner in owners} - {"rmqha"}
        for top, owners in packages_distributions().items()
    }
    hidden = sorted(top for top, owners in tops.items() if owners and not owners & installed)
    assert {"pyspark", "fsspec", "pytest"} <= set(hidden) and not {"numpy", "pyarrow", "isal"} & set(hidden)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "n0"), json.dumps(hidden)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_spark_has_all_of_it() -> None:
    assert set(EXTRAS["scan"]) < set(EXTRAS["spark"])
