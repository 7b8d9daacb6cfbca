"""The gRPC client of all tests of the proxy, compiled once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.lab.java import COMPILE_TIMEOUT_S, fetch, find_tools

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def grpc(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a Java program with the gRPC client."""
    tools = find_tools()
    lib = fetch(tools["mvn"], HERE / "pom.xml", "rocketmq-proxy-*.jar")
    classes = tmp_path_factory.mktemp("grpc")
    command = [tools["javac"], "-cp", f"{lib}/*", "-proc:none", "-d", str(classes), str(HERE / "Grpc.java")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [tools["java"], *options, "-cp", f"{classes}:{lib}/*"]
