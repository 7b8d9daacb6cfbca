"""The scripts that submit a job, run with a spark-submit that only writes down what it is asked for."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmqha.cli.generate.command import generate
from rmqha.cli.generate.spark import PLACES
from rmqha.model.error import UsageError

SUBMIT = """#!/bin/sh
python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"
"""


def written(*arguments: str) -> str:
    done = CliRunner().invoke(generate, ["spark", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def submitted(tmp_path: Path, script: str) -> list[str]:
    """The arguments that spark-submit gets when the script is run for one store."""
    (tmp_path / "spark-submit").write_text(SUBMIT)
    (tmp_path / "spark-submit").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    named = {"SPARK_MASTER": "host", "KUBERNETES_API": "https://api:6443"}
    environment = {**os.environ, "PATH": path, **named}
    done = subprocess.run(
        ["sh", "-s", "/data/my store"], input=script, env=environment, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_script_submits_the_job_with_its_arguments(tmp_path: Path, place: str) -> None:
    found = submitted(tmp_path, written(place, "--job", "my job.py", "--stores", "/data", "--image", "i:1"))
    assert found[-1] == "/data/my store" and found[-2].endswith("my job.py")
    pairs = dict(zip(found[:-2:2], found[1:-2:2], strict=True))
    masters = {"standalone": "spark://host:7077", "yarn": "yarn", "kubernetes": "k8s://https://api:6443"}
    assert pairs["--master"] == masters[place]
    settings = dict(found[at + 1].split("=", 1) for at, word in enumerate(found) if word == "--conf")
    assert settings["spark.pyspark.python"] and settings["spark.executor.memoryOverhead"] == "1g"
    mounts = [value for name, value in settings.items() if name.endswith("mount.path")]
    assert mounts == (["/data"] * 2 if place == "kubernetes" else [])
    assert ("--archives" in found) == (place == "yarn")
    assert found[-2].startswith("local:///opt/jobs/") == (place == "kubernetes")


def test_an_address_of_a_job_stays_one(tmp_path: Path) -> None:
    assert submitted(tmp_path, written("kubernetes", "--job", "s3a://b/job.py"))[-2] == "s3a://b/job.py"


def test_a_job_is_python_and_a_wrong_directory_one_sentence() -> None:
    assert ast.parse(written("job"))
    with pytest.raises(UsageError, match="--stores 'data' must be an absolute path"):
        written("kubernetes", "--stores", "data")
