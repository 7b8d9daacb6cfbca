"""Files that are reloaded when they change: certificates, keys, accounts, credentials. Shell.

While a new file is broken, incomplete or readable by others, the old content stays in force.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from rmqha.model.error import UsageError

T = TypeVar("T")


def refuse_if_open_to_others(path: str, holds: str) -> None:
    """Raise UsageError if others than the owner may write this file, or others than the owner and the group may read
    it. Raises OSError too. A directory passes: reading it fails later."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISDIR(mode) and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UsageError(f"{path} holds {holds} and others may open it: chmod 600 {path}")


def _stamp(path: str) -> tuple[int, ...]:
    """Values that change when the file is replaced, or its content or mode changes."""
    try:
        found = Path(path).stat()
    except OSError as error:
        return (error.errno or -1,)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class LiveFiles(Generic[T]):
    """Object made from files, which is made again when they change. `current`: the newest one that `make` could make;
    `problem`: one sentence why the files' present content is not in force, "" if it is."""

    def __init__(self, key: str, paths: tuple[str, ...], make: Callable[[], T], *, certificates: str = "") -> None:
        """`key`: configuration key that names the first file; `certificates`: path of the file whose certificates
        expire, "" for none. Raises UsageError with one sentence if the files cannot be used."""
        self.key = key
        self.paths = paths
        self._make = make
        self._certificates = certificates
        self._seen = self._stamps()
        self.problem = ""
        self.begins_at_ms: int | None = None
        """Wall time (ms) from which on all certificates are valid."""
        self.expires_at_ms: int | None = None
        """Wall time (ms) at which the first certificate expires."""
        self.current = self._load()

    @property
    def path(self) -> str:
        return self.paths[0]

    def refresh(self) -> bool:
        """Read the files again if one has changed; True if so. It may take long: call it in a thread."""
        seen = self._stamps()
        if seen == self._seen:
            return False
        self._seen = seen  # taken before the files are read: a change during the reading is seen the next time
        try:
            self.current = self._load()
            self.problem = ""
        except UsageError as error:
            self.problem = str(error)
        return True

    def _load(self) -> T:
        made = self._make()
        if self._certificates:
            try:
                validity_ms = common_validity_ms(Path(self._certificates).read_text("latin-1"))
            except OSError as error:
                raise UsageError(f"cannot read {self._certificates}: {error.strerror}") from None
            self.begins_at_ms, self.expires_at_ms = validity_ms or (None, None)
        return made

    def _stamps(self) -> list[tuple[int, ...]]:
        return [_stamp(path) for path in self.paths]


# --- validity of certificates, from their PEM text --------------------------------------------------------------------

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x17, 0x18, 0xA0


SOON_MS = 14 * 24 * 3600 * 1000
"""Time (ms) before its end from which on a certificate is reported."""
RENEW = "put a new certificate there; it is taken over without a restart"


def common_validity_ms(pem: str) -> tuple[int, int] | None:
    """Wall times (ms) from which on all certificates in `pem` are valid, and at which the first of them expires; None
    if there is no certificate, or one that is not X.509."""
    import ssl

    found = []
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if end:
            try:
                found.append(_validity_ms(ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END)))
            except (ValueError, IndexError):
                return None
    return (max(begin for begin, _ in found), min(end for _, end in found)) if found else None


def _validity_ms(der: bytes) -> tuple[int, int]:
    """Wall times (ms) notBefore and notAfter of one certificate (RFC 5280 §4.1). Raises ValueError or IndexError for
    bytes that are no certificate."""
    certificate, _ = _element(der, 0)
    rest, _ = _element(certificate[1], 0)
    place, elements = 0, list[tuple[int, bytes]]()
    while len(elements) < 5:
        item, place = _element(rest[1], place)
        if item[0] != _VERSION:
            elements.append(item)
    # serial number, signature algorithm, issuer, validity
    (kind, text), place = _element(elements[3][1], 0)
    (end_kind, end_text), _ = _element(elements[3][1], place)
    return _time_ms(kind, text.decode("ascii")), _time_ms(end_kind, end_text.decode("ascii"))


def _element(data: bytes, place: int) -> tuple[tuple[int, bytes], int]:
    """Tag and content of the DER element at `place`, and the index of the next element."""
    tag, size = data[place], data[place + 1]
    place += 2
    if size & 0x80:
        count = size & 0x7F
        if not 0 < count <= 4:
            raise ValueError("a length that DER does not have here")
        size = int.from_bytes(data[place : place + count], "big")
        place += count
    if place + size > len(data):
        raise ValueError("an element longer than what holds it")
    return (tag, data[place : place + size]), place + size


def _time_ms(kind: int, text: str) -> int:
    if kind == _UTC_TIME:
        # two digits of the year: 50 and above are of the last century
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError("no time")
    return round(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def expiry_sentence(key: str, path: str, left_ms: int) -> str:
    """One sentence for health and doctor about a certificate that expires soon, or has expired."""
    if left_ms <= 0:
        return f"{key}: a certificate in {path} has ended: TLS connections fail"
    days = left_ms // (24 * 3600 * 1000)
    return f"{key}: a certificate in {path} ends {f'in {days} days' if days else 'within a day'}"
