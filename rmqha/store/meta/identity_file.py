"""Control plane: who a directory belongs to: `brokerIdentity`, and the `-temp` file while an id is applied for.

Source: formats.md §8. `cluster#brokerName#brokerId`; the temp file adds `#registerCheckCode` and exists from the moment
an id was chosen until the controller has confirmed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqha.model.error import StoreError, UsageError
from rmqha.model.identity import Identity
from rmqha.model.offset import BrokerId
from rmqha.port import Disk
from rmqha.store.meta.problem import damaged, disk_errors, place, usage_errors

PATH = "brokerIdentity"
PENDING_PATH = "brokerIdentity-temp"
_CHOICES = "restore the file, or choose another directory"


@dataclass(frozen=True, slots=True)
class PendingIdentity:
    """An id that was applied for. The controller recognises the same applicant by the check code."""

    identity: Identity
    check_code: str


def _read(disk: Disk, path: str, parts_count: int) -> list[str] | None:
    with usage_errors(disk, path, "read the file"):
        if not disk.exists(path):
            return None
        data = disk.read(path)
    try:
        parts = data.decode().strip().split("#")
    except UnicodeDecodeError as error:
        raise damaged(disk, path, error.start, "UTF-8 text", f"byte 0x{data[error.start]:02X}", _CHOICES) from None
    number = parts[2] if len(parts) == parts_count else ""
    if not (number.isascii() and number.isdigit() and len(number) < 19 and int(number) > 0 and all(parts)):
        form = "cluster#brokerName#brokerId" + ("#registerCheckCode" if parts_count == 4 else "")
        raise damaged(disk, path, 0, form, repr(data[:60]), _CHOICES)
    return parts


class IdentityFile:
    """Reads and writes both files. Everything written is durable on return."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self) -> Identity | None:
        """The confirmed identity, None if the directory has none. Raises StoreError if the file is damaged."""
        parts = _read(self._disk, PATH, 3)
        return Identity(parts[0], parts[1], BrokerId(int(parts[2]))) if parts else None

    def read_pending(self) -> PendingIdentity | None:
        """The application under way. A temp file that a crash left unfinished counts as none."""
        try:
            parts = _read(self._disk, PENDING_PATH, 4)
        except StoreError:
            self.drop_pending()
            return None
        if parts is None:
            return None
        return PendingIdentity(Identity(parts[0], parts[1], BrokerId(int(parts[2]))), parts[3])

    def write_pending(self, pending: PendingIdentity) -> None:
        """Phase one: before the controller is asked for this id (request 1013)."""
        check_names(pending.identity)
        self._write(PENDING_PATH, f"{_text(pending.identity)}#{pending.check_code}")

    def confirm(self, identity: Identity) -> None:
        """Phase two: the controller has given the id. Writes brokerIdentity, then removes the temp file."""
        check_names(identity)
        self._write(PATH, _text(identity))
        self.drop_pending()

    def drop_pending(self) -> None:
        with disk_errors(self._disk, PENDING_PATH, "remove the file"):
            if self._disk.exists(PENDING_PATH):
                self._disk.remove(PENDING_PATH)

    def _write(self, path: str, text: str) -> None:
        with usage_errors(self._disk, path, "write the file"):
            self._disk.make_dirs("")
            self._disk.write_atomic(path, text.encode())

    def require(self, cluster_name: str, broker_name: str) -> Identity | None:
        """The identity found, None in a new directory. UsageError if the directory belongs to another broker."""
        found = self.read()
        if found is not None and (found.cluster_name, found.broker_name) != (cluster_name, broker_name):
            raise UsageError(
                f"{place(self._disk, '')} belongs to broker {found.broker_name} of cluster {found.cluster_name},"
                f" not to {broker_name} of {cluster_name}; set storePathRootDir to another directory"
            )
        return found


def _text(identity: Identity) -> str:
    return f"{identity.cluster_name}#{identity.broker_name}#{identity.broker_id}"


def check_names(identity: Identity) -> None:
    """UsageError for names that the file cannot hold."""
    for key, name in (("brokerClusterName", identity.cluster_name), ("brokerName", identity.broker_name)):
        if not name or "#" in name or name != name.strip():
            raise UsageError(f"{key} = {name!r} must not be empty, hold '#' or start or end with a space")
