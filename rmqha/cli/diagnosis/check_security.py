"""Files of certificates, accounts and credentials: as they stand, and as a running node has them."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmqha.cli.diagnosis.finding import Finding, ok, warn, wrong
from rmqha.cli.diagnosis.patient import Patient
from rmqha.host import security
from rmqha.host.clock import HostClock
from rmqha.host.live_files import LiveFiles
from rmqha.host.security_watch import RENEW, SOON_MS, expiry_words
from rmqha.model.config import ServerConfig
from rmqha.model.error import UsageError


def check_security(patient: Patient) -> Iterator[Finding]:
    """The files that its configuration names, as the server would read them now."""
    if patient.problem:
        return
    names = ServerConfig.keys()
    shared = {key: value for key, value in patient.properties.items() if key in names}
    if patient.config_path is None and not Path(shared.get("haSecretFile", "")).exists():
        shared.pop("haSecretFile", None)  # `rmqha up` will make it
    try:
        files = security.from_config(ServerConfig.from_properties(shared, patient.source)).files
        if path := patient.properties.get("webCredentialsFile"):
            from rmqha.host.accounts import credentials_file

            files.append(credentials_file("webCredentialsFile", path))
    except UsageError as error:
        yield wrong(patient.name, "security", str(error), "mend that file; a running server goes on with the last good")
        return
    now_ms = HostClock().wall_ms()
    found = [finding for item in files for finding in _expiry(patient, item, now_ms)]
    yield from found
    if files and not found:
        yield ok(patient.name, "security", f"files of certificates and accounts can be used: {len(files)}")


def _expiry(patient: Patient, item: LiveFiles[Any], now_ms: int) -> Iterator[Finding]:
    if item.expires_at_ms is not None and (left_ms := item.expires_at_ms - now_ms) < SOON_MS:
        make = warn if left_ms > 0 else wrong
        yield make(patient.name, "security", expiry_words(item.key, item.path, left_ms), RENEW)


def check_data(patient: Patient) -> Iterator[Finding]:
    """Messages that other users of this machine may read: of a store that was made before its files were closed."""
    if patient.data is None or not patient.data.is_dir():
        return
    for path in (patient.data, *sorted(patient.data.iterdir())):
        if path.is_dir() and not path.is_symlink() and path.stat().st_mode & stat.S_IROTH:
            sentence = f"{path} can be read by every user of this machine"
            yield warn(patient.name, "data", sentence, f"chmod -R o-rwx {patient.data}")
            return
        if path == patient.data and not path.stat().st_mode & stat.S_IXOTH:
            return  # nobody else gets in


def judge_security(patient: Patient, told: Mapping[str, Any]) -> Iterator[Finding]:
    """From the answer to request 52017."""
    for row in told["files"]:
        if row["problem"]:
            sentence = f"{row['key']}: {row['problem']}; what it held before is in force"
            yield wrong(patient.name, "security", sentence, "mend that file; it is read again by itself")
