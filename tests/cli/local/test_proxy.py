"""`rmqha proxy`: what it needs is named in one sentence, and its configuration is the cluster's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqha.cli.local import proxy
from tests.support.command import forget_home, rmqha_in


def java(directory: Path, version: str) -> None:
    """A program that says what `java -version` says."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    path.chmod(0o755)


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = rmqha_in(tmp_path, "proxy", "--cluster", "c", "--check")
    assert done.returncode == 2 and "install Java 17 or newer" in done.stderr and "Traceback" not in done.stderr


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = rmqha_in(tmp_path, "proxy", "--cluster", "c", "--check")
    assert done.returncode == 2 and "needs Java 17 or newer" in done.stderr


def test_without_maven_the_first_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")
    done = rmqha_in(tmp_path, "proxy", "--cluster", "c", "--check")
    assert done.returncode == 2 and "install Maven" in done.stderr


def test_without_a_home_directory_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    forget_home(monkeypatch)
    done = rmqha_in(tmp_path, "proxy", "--cluster", "c", "--check")
    assert done.returncode == 2 and "no home directory" in done.stderr and "set XDG_CACHE_HOME" in done.stderr


def test_the_configuration_names_cluster_name_servers_and_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path / "java", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "rmqha" / f"proxy-{proxy.VERSION}").mkdir(parents=True)
    done = rmqha_in(
        tmp_path,
        "proxy",
        "--cluster",
        "c",
        "--namesrv",
        "h:1;i:2",
        "--grpc-port",
        "9",
        "--remoting-port",
        "8",
        "--check",
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(Path(done.stdout.strip()).read_text())
    assert written["rocketMQClusterName"] == "c" and written["namesrvAddr"] == "h:1;i:2"
    assert (written["grpcServerPort"], written["remotingListenPort"], written["proxyMode"]) == (9, 8, "CLUSTER")


def test_of_a_cluster_with_accounts_it_asks_as_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path / "java", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "rmqha" / f"proxy-{proxy.VERSION}").mkdir(parents=True)
    keys = tmp_path / "keys"
    keys.write_text("accessKey=inner\nsecretKey=inner-secret\n")
    keys.chmod(0o600)
    words = ("proxy", "--cluster", "c", "--check", "--auth")
    done = rmqha_in(tmp_path, *words)
    assert done.returncode == 2 and "--auth needs a super user" in done.stderr
    done = rmqha_in(tmp_path, "--security", str(keys), *words)
    assert done.returncode == 0, done.stderr
    config = Path(done.stdout.strip())
    written = json.loads(config.read_text())
    account = {"accessKey": "inner", "secretKey": "inner-secret"}
    assert config.stat().st_mode & 0o777 == 0o600
    assert json.loads(written["innerClientAuthenticationCredentials"]) == account
    assert written["enableAclRpcHookForClusterMode"] and written["authenticationEnabled"]
    assert written["authorizationEnabled"] and "ProxyAuth" in written["authorizationMetadataProvider"]


def test_a_heap_that_is_no_size_is_refused(tmp_path: Path) -> None:
    done = rmqha_in(tmp_path, "proxy", "--cluster", "c", "--heap", "512m -XX:OnError=sh")
    assert done.returncode == 2 and "--heap" in done.stderr
