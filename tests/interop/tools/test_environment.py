"""A machine without Java or Maven is told so in one sentence; nothing is skipped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.lab.java import Java, MissingError, fetch, find_tools
from tests.interop.lab.processes import Process
from tests.support.patience import HANG_S

pytestmark = pytest.mark.interop


def tool(directory: Path, name: str, says: str = "") -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    path.chmod(0o755)


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tool(tmp_path, "java", 'openjdk version "17.0.1"')
    tool(tmp_path, "javac")
    with pytest.raises(MissingError, match=r"^Apache RocketMQ 5\.4\.0 needs mvn on PATH: install [^\n]*$"):
        find_tools()
    tool(tmp_path, "mvn")
    assert find_tools()["mvn"] == str(tmp_path / "mvn")


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tool(tmp_path, "java", 'openjdk version "11.0.2"')
    tool(tmp_path, "javac")
    tool(tmp_path, "mvn")
    with pytest.raises(MissingError, match=r"needs Java 17 or newer, .*11\.0\.2"):
        find_tools()


MAVEN = """\
#!/bin/sh
echo asked >> "$0.record"
sleep 0.2
for word in "$@"; do case "$word" in -DoutputDirectory=*) lib="${word#*=}"; esac; done
mkdir "$lib" && touch "$lib/rocketmq-broker-0.jar"
"""


def test_two_workers_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    maven = tmp_path / "mvn"
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fetch, [str(maven)] * 2)
    assert first == second
    assert [path.name for path in first.iterdir()] == ["rocketmq-broker-0.jar"]
    assert (tmp_path / "mvn.record").read_text() == "asked\n"


def test_programs_map_what_others_have_loaded(java: Java, tmp_path: Path) -> None:
    program, *rest = java.command("Names")
    process = Process("names", [program, "-Xlog:class+load", *rest], tmp_path)
    assert process.wait(HANG_S) == 0, process.tail()
    name = "org.apache.rocketmq.remoting.protocol.RequestCode"
    assert f"{name} source: shared objects file" in process.output.read_text()
