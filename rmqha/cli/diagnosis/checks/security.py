"""Checks of files of certificates, accounts and credentials: on disk, and as a running node has them."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmqha.cli.diagnosis.checks.node_under_test import NodeUnderTest
from rmqha.host.access import security
from rmqha.host.access.live_files import RENEW, SOON_MS, LiveFiles, expiry_sentence
from rmqha.host.clock import HostClock
from rmqha.host.tracer import stamp
from rmqha.model.config.servers import ServerConfig
from rmqha.model.error import UsageError
from rmqha.ops.finding import Finding, ok, warn, wrong


def check_security(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    """Findings on the files that a configuration names, as the server would read them now."""
    if node_under_test.problem:
        return
    names = ServerConfig.keys()
    shared = {key: value for key, value in node_under_test.properties.items() if key in names}
    if node_under_test.config_path is None and not Path(shared.get("haSecretFile", "")).exists():
        shared.pop("haSecretFile", None)  # `rmqha up` will make it
    try:
        files = security.from_config(ServerConfig.from_properties(shared, node_under_test.source)).files
        if path := node_under_test.properties.get("webCredentialsFile"):
            from rmqha.host.access.accounts import credentials_file

            files.append(credentials_file("webCredentialsFile", path))
    except UsageError as error:
        yield wrong(
            node_under_test.name, "security", str(error), "mend that file; a running server goes on with the last good"
        )
        return
    now_ms = HostClock().wall_ms()
    judges = (_beginning, _expiry)
    found = [finding for item in files for judge in judges for finding in judge(node_under_test, item, now_ms)]
    yield from found
    if files and not found:
        yield ok(node_under_test.name, "security", f"files of certificates and accounts can be used: {len(files)}")


def _expiry(node_under_test: NodeUnderTest, item: LiveFiles[Any], now_ms: int) -> Iterator[Finding]:
    if item.expires_at_ms is not None and (left_ms := item.expires_at_ms - now_ms) < SOON_MS:
        make = warn if left_ms > 0 else wrong
        yield make(node_under_test.name, "security", expiry_sentence(item.key, item.path, left_ms), RENEW)


def _beginning(node_under_test: NodeUnderTest, item: LiveFiles[Any], now_ms: int) -> Iterator[Finding]:
    if item.begins_at_ms is not None and item.begins_at_ms > now_ms:
        sentence = f"{item.key}: a certificate in {item.path} is not valid before {stamp(item.begins_at_ms)}"
        fix = f"set this machine's clock, which says {stamp(now_ms)}, if it is that; else put another certificate there"
        yield wrong(node_under_test.name, "security", f"{sentence}: TLS connections fail", fix)


def check_data(node_under_test: NodeUnderTest) -> Iterator[Finding]:
    """Finding on messages that other users of this machine may read, in a store of an older release."""
    if node_under_test.data is None or not node_under_test.data.is_dir():
        return
    for path in (node_under_test.data, *sorted(node_under_test.data.iterdir())):
        if path.is_dir() and not path.is_symlink() and path.stat().st_mode & stat.S_IROTH:
            sentence = f"{path} can be read by every user of this machine"
            yield warn(node_under_test.name, "data", sentence, f"chmod -R o-rwx {node_under_test.data}")
            return
        if path == node_under_test.data and not path.stat().st_mode & stat.S_IXOTH:
            return  # nobody else gets in


def judge_security(node_under_test: NodeUnderTest, told: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings on the files of a running node, by its answer to request 52017."""
    for row in told["files"]:
        if row["problem"]:
            sentence = f"{row['key']}: {row['problem']}; what it held before is in force"
            yield wrong(node_under_test.name, "security", sentence, "mend that file; it is read again by itself")
