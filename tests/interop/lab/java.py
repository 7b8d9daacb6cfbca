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
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import HANG_S

HERE = Path(__file__).parent.parent
POM = HERE / "pom.xml"
OLDEST_JAVA = 17
FETCH_TIMEOUT_S = 480
COMPILE_TIMEOUT_S = HANG_S

SHARED = ("commons-cli-", "dledger-", "fastjson", "guava-", "netty-", "opentelemetry-", "rocketmq-")
"""Jars whose classes servers and clients load."""

OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.util.calendar",
)
"""Packages of the JDK that RocketMQ reaches into; its own start scripts open them too."""


WITHOUT_TLS = {"tls.server.mode": "disabled"}
"""Else each server makes two pairs of RSA keys for certificates of its own as it starts: a second of CPU and more."""


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
    said = version_of(tools["java"])
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        raise MissingError(
            f"Apache RocketMQ 5.4.0 needs Java {OLDEST_JAVA} or newer, {tools['java']} is: {said.strip()!r}"
        )
    return tools


def version_of(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def cache_directory(pom: Path = POM) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "rmqha" / f"rocketmq-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"


@contextmanager
def alone_in(cache: Path) -> Iterator[Path]:
    """A scratch directory in the cache, while other processes wait."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(scratch)


def fetch(mvn: str, pom: Path = POM, wanted: str = "rocketmq-broker-*.jar") -> Path:
    """The directory with all jars of a pom, `wanted` among them; the first call downloads them while others wait.
    Raises MissingError."""
    directory = cache_directory(pom)
    if directory.is_dir():
        return directory
    with alone_in(directory.parent) as scratch:
        if directory.is_dir():  # another process was faster
            return directory
        lib = scratch / "lib"
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


def share_classes(java: str, lib: Path) -> Path:
    """The archive of the jars' classes, read and verified, that a JVM maps (class data sharing); the first call makes
    it while others wait. A JVM goes without one that it does not like, and so do all if this one makes none."""
    version = hashlib.sha256(version_of(java).encode()).hexdigest()[:12]
    archive = lib.with_name(f"{lib.name}-{version}.jsa")
    if archive.exists():
        return archive
    with alone_in(lib.parent) as scratch:
        if archive.exists():
            return archive
        own = Path(java).resolve().parents[1] / "lib" / "classlist"
        names = own.read_text().splitlines() if own.exists() else []
        for path in sorted(path for path in lib.iterdir() if path.name.startswith(SHARED)):
            with zipfile.ZipFile(path) as jar:
                classes = [name.removesuffix(".class") for name in jar.namelist() if name.endswith(".class")]
                names += [name for name in classes if not name.startswith("META-INF") and not name.endswith("-info")]
        (scratch / "classes").write_text("\n".join(names) + "\n")
        command = [java, "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedClassListFile={scratch / 'classes'}"]
        command += [f"-XX:SharedArchiveFile={scratch / 'archive'}", "-cp", f"{lib}/*"]
        done = subprocess.run(command, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False)
        if done.returncode == 0:
            (scratch / "archive").rename(archive)
    return archive


class Java:
    """Command lines for programs of RocketMQ and of tests/interop/java. `scratch` takes classes and Java's home.
    `starts_fast`: each start takes less CPU than Apache's programs need elsewhere, so no measurement asks for it."""

    def __init__(self, scratch: Path, *, starts_fast: bool = False) -> None:
        self.starts_fast = starts_fast
        self._tools = find_tools()
        self._lib = fetch(self._tools["mvn"])
        self._archive = share_classes(self._tools["java"], self._lib) if starts_fast else None
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
            **(WITHOUT_TLS if self.starts_fast else {}),
            **(properties or {}),
        }
        options = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        for package in OPENED:
            options += [f"--add-opens={package}=ALL-UNNAMED", f"--add-exports={package}=ALL-UNNAMED"]
        options += [f"-D{key}={value}" for key, value in settings.items()]
        if self._archive is not None:
            options += [f"-XX:SharedArchiveFile={self._archive}", "-Xlog:cds*=off"]
        classpath = f"{self._lib}/*:{self._classes}"  # an archive is of the first ones
        return [self._tools["java"], *options, "-cp", classpath, main, *arguments]
