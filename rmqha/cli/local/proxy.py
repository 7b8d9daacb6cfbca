"""`rmqha proxy`: Apache's proxy in front of a cluster, for clients that speak gRPC. Control plane.

Its jars come from Maven once and stay in the user's cache; its configuration is written for the cluster that a name
server tells of. The process becomes the proxy (exec), so a supervisor watches the proxy itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click

from rmqha.cli.options import namesrv_option
from rmqha.client.admin import Admin
from rmqha.host.access.process_security import ambient
from rmqha.host.asking.shell import ask_by
from rmqha.host.text_file import user_directory
from rmqha.model.error import UsageError
from rmqha.model.identity import Credentials

VERSION = "5.4.0"
OLDEST_JAVA = 17
FETCH_TIMEOUT_S = 600
LIBRARIES = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rmqha</groupId><artifactId>proxy</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-proxy</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
OPENED = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch")
"""Packages of the JDK that RocketMQ reaches into."""
USERS = {
    "authenticationEnabled": True,
    "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
    "authorizationEnabled": True,
    "authorizationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
}
"""Keys of a proxy that asks the brokers for its clients' users and policies."""


@click.command(epilog="Example: rmqha proxy --grpc-port 8081")
@click.option("--cluster", metavar="NAME", help="The cluster to serve; needed where the name server knows several.")
@click.option(
    "--grpc-port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port for clients of gRPC."
)
@click.option(
    "--remoting-port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port for other clients."
)
@click.option("--heap", default="512m", show_default=True, help="Memory of the JVM, as -Xmx has it.")
@click.option("--auth", is_flag=True, help="Let in only users of the cluster, as far as their policies go.")
@click.option("--check", is_flag=True, help="Fetch and write what it needs, print the configuration's place, and end.")
@namesrv_option
def proxy(
    cluster: str | None, grpc_port: int, remoting_port: int, heap: str, auth: bool, check: bool, namesrv: str
) -> None:
    """Run Apache RocketMQ's proxy, in cluster mode, in front of a cluster.

    Clients of RocketMQ 5 (gRPC) connect to its gRPC port. It needs Java 17 or newer, and Maven for the first start. Of
    a cluster with accounts it asks as the one that --security names; with --auth that is a super user.
    """
    credentials = ambient.get().credentials
    if auth and credentials is None:
        raise UsageError(
            "--auth needs a super user, as whom the proxy asks the brokers: rmqha --security FILE proxy --auth, "
            "with accessKey and secretKey in FILE"
        )
    if not re.fullmatch(r"[1-9][0-9]*[kmgKMG]?", heap):
        raise UsageError(f"--heap {heap!r} is no size such as 512m")
    java = find_java()
    name = cluster or ask_by(_only_cluster, namesrv)
    libraries = fetch()
    home = cache() / f"proxy-home-{grpc_port}"
    keys = {**access_keys(credentials), **(USERS if auth else {})}
    config = write_configuration(home, name, namesrv, grpc_port, remoting_port, keys)
    if check:
        click.echo(str(config))
        return
    _become(java, libraries, home, config, heap)


def cache() -> Path:
    """Directory of the user's cache. Raises UsageError."""
    root = user_directory("XDG_CACHE_HOME", ".cache")
    if root is None:
        raise UsageError("there is no home directory to keep the proxy in: set XDG_CACHE_HOME to a directory of yours")
    return root / "rmqha"


def find_java() -> str:
    """The java of JAVA_HOME, else of PATH, if it is new enough. Raises UsageError."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not os.access(found, os.X_OK):
        raise UsageError(
            f"the proxy is a Java program and no Java was found: install Java {OLDEST_JAVA} or newer "
            "(Debian: openjdk-17-jre-headless), or set JAVA_HOME"
        )
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        raise UsageError(f"the proxy needs Java {OLDEST_JAVA} or newer; {found} is {said.strip().splitlines()[:1]}")
    return found


def fetch() -> Path:
    """Directory with the proxy's jars; the first call downloads them while others wait. Raises UsageError."""
    directory = cache() / f"proxy-{VERSION}"
    if directory.is_dir():
        return directory
    maven = shutil.which("mvn")
    if maven is None:
        raise UsageError(f"the jars of the proxy are not in {directory} and no mvn was found: install Maven")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():  # another process was faster
            return directory
        pom, made = Path(scratch) / "pom.xml", Path(scratch) / "lib"
        pom.write_text(LIBRARIES)
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={made}", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise UsageError(f"Maven could not fetch the proxy within {FETCH_TIMEOUT_S} s; try again") from None
        if done.returncode or not any(made.glob("rocketmq-proxy-*.jar")):
            said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
            raise UsageError(f"Maven could not fetch the proxy: {said[0]}")
        made.rename(directory)
    return directory


def access_keys(credentials: Credentials | None) -> dict[str, Any]:
    """The account by which the proxy asks name servers and brokers."""
    if credentials is None:
        return {}
    account = {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
    return {"enableAclRpcHookForClusterMode": True, "innerClientAuthenticationCredentials": json.dumps(account)}


def write_configuration(
    home: Path, cluster: str, namesrv: str, grpc_port: int, remoting_port: int, more: dict[str, Any]
) -> Path:
    """Write the proxy's configuration file, for its owner alone, and return its path. Raises OSError."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / "rmq-proxy.json"
    keys = {
        "rocketMQClusterName": cluster,
        "proxyClusterName": cluster,
        "namesrvAddr": namesrv,
        "proxyMode": "CLUSTER",
        "grpcServerPort": grpc_port,
        "remotingListenPort": remoting_port,
        **more,
    }
    config.unlink(missing_ok=True)
    config.touch(0o600)
    config.write_text(json.dumps(keys, indent=2) + "\n")
    return config


async def _only_cluster(namesrv: str) -> str:
    """Name of the only cluster that the name server knows. Raises UsageError and UnreachableError."""
    async with Admin(namesrv) as admin:
        info = await admin.cluster_info()
    names = sorted(info["clusters"])
    if len(names) != 1:
        known = ", ".join(names) or "none: start a broker first"
        raise UsageError(f"name the cluster with --cluster; {namesrv} knows {known}")
    return str(names[0])


def _become(java: str, libraries: Path, home: Path, config: Path, heap: str) -> NoReturn:
    options = [f"-Xmx{heap}", f"-Duser.home={home}", "-Djava.net.preferIPv4Stack=true"]
    options += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    main = "org.apache.rocketmq.proxy.ProxyStartup"
    environment = {**os.environ, "RMQ_PROXY_HOME": str(home), "ROCKETMQ_HOME": str(home)}
    command = [java, *options, "-cp", f"{libraries}/*", main, "-pc", str(config), "-pm", "CLUSTER"]
    os.execve(java, command, environment)
