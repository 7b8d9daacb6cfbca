"""Apache RocketMQ 5.4.0 and the JVM that runs it: fetch once with Maven, compile our own small clients, start programs.

The jars lie in $XDG_CACHE_HOME/rmqha (default ~/.cache/rmqha) under a name that follows from pom.xml, so a changed
pom.xml fetches anew. Without Java 17, javac or Maven everything here fails with one sentence; nothing is skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.patience import HANG_S

HERE = Path(__file__).parent.parent
POM = HERE / "pom.xml"
OLDEST_JAVA = 17
FETCH_TIMEOUT_S = 480
COMPILE_TIMEOUT_S = HANG_S

OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.util.calendar",
)
"""Packages of the JDK that RocketMQ reaches into; its own start scripts open them too."""


class MissingError(Exception):
    """What make interop needs and does not find."""


def find_tools() -> dict[str, str]:
    """Paths of java, javac and mvn. Raises MissingError, one sentence."""
    tools = {}
    for name in ("java", "javac", "mvn"):
        path = shutil.which(name)
        if path is None:
            raise MissingError(
                f"Apache RocketMQ 5.4.0 needs {name} on PATH: install a JDK {OLDEST_JAVA} and Maven "
                "(Debian: openjdk-17-jdk-headless, maven)"
            )
        tools[name] = path
    said = subprocess.run([tools["java"], "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        raise MissingError(
            f"Apache RocketMQ 5.4.0 needs Java {OLDEST_JAVA} or newer, {tools['java']} is: {said.strip()!r}"
        )
    return tools


def cache_directory(pom: Path = POM) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rmqha" / f"rocketmq-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


def fetch(mvn: str, pom: Path = POM, wanted: str = "rocketmq-broker-*.jar") -> Path:
    """The directory with all jars of a pom, `wanted` among them; the first call downloads them while others wait.
    Raises MissingError."""
    directory = cache_directory(pom)
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():  # another process was faster
            return directory
        lib = Path(scratch) / "lib"
        command = [mvn, "-q", "-B", "-f", str(pom), "-Dmaven.wagon.http.retryHandler.count=3"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={lib}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise MissingError(f"Maven could not fetch Apache RocketMQ within {FETCH_TIMEOUT_S} s") from None
        if done.returncode or not any(lib.glob(wanted)):
            said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise MissingError(f"Maven could not fetch Apache RocketMQ: {said[0]}")
        lib.rename(directory)
    return directory


class Java:
    """Command lines for programs of RocketMQ and of tests/interop/java. `scratch` takes classes and Java's home."""

    def __init__(self, scratch: Path) -> None:
        self._tools = find_tools()
        self._lib = fetch(self._tools["mvn"])
        self._home = scratch / "home"
        self._home.mkdir()
        self._classes = scratch / "classes"
        self._compile()

    def _compile(self) -> None:
        sources = [str(path) for path in sorted((HERE / "java").glob("*.java"))]
        command = [self._tools["javac"], "-Xlint:all,-processing", "-Werror", "-cp", f"{self._lib}/*"]
        command += ["-proc:none", "-d", str(self._classes), *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def command(
        self, main: str, *arguments: str, heap: str = "256m", properties: dict[str, str] | None = None
    ) -> list[str]:
        settings = {
            "rmq.logback.configurationFile": str(HERE / "logback.xml"),
            "user.home": str(self._home),
            "rocketmq.home.dir": str(self._home),
            "rocketmq.client.logUseSlf4j": "true",
            "java.net.preferIPv4Stack": "true",
            **(properties or {}),
        }
        options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        for package in OPENED:
            options += [f"--add-opens={package}=ALL-UNNAMED", f"--add-exports={package}=ALL-UNNAMED"]
        options += [f"-D{key}={value}" for key, value in settings.items()]
        classpath = f"{self._classes}:{self._lib}/*"
        return [self._tools["java"], *options, "-cp", classpath, main, *arguments]
