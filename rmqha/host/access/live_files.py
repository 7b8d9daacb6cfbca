"""Files that count anew when they change: certificates, keys, accounts, credentials. Shell.

What is made from them stays in force while a new file is broken, half written or readable by others.
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
    """Raises UsageError if more than its owner and, for reading, its group may open this file; OSError. A directory is
    left to whoever reads it to refuse."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISDIR(mode) and mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise UsageError(f"{path} holds {holds} and others may open it: chmod 600 {path}")


def _stamp(path: str) -> tuple[int, ...]:
    """Differs once the file is another one, or has other bytes, or other rights."""
    try:
        found = Path(path).stat()
    except OSError as error:
        return (error.errno or -1,)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class LiveFiles(Generic[T]):
    """Files that are read again when they change. `current` is what `make` made of `paths` when they were good for the
    last time; `problem` says in one sentence why their present content is not in force, "" if it is."""

    def __init__(self, key: str, paths: tuple[str, ...], make: Callable[[], T], *, certificates: str = "") -> None:
        """`key` is the configuration key that names the first file; `certificates` the one whose certificates end some
        day. Raises UsageError, one sentence, if there is nothing to begin with."""
        self.key = key
        self.paths = paths
        self._make = make
        self._certificates = certificates
        self._seen = self._stamps()
        self.problem = ""
        self.begins_at_ms: int | None = None
        """Wall clock; when all of the certificates are valid."""
        self.expires_at_ms: int | None = None
        """Wall clock; when the first of the certificates ends."""
        self.current = self._load()

    @property
    def path(self) -> str:
        return self.paths[0]

    def refresh(self) -> bool:
        """Look again; True if a file has changed. What takes long is the caller's thread's."""
        seen = self._stamps()
        if seen == self._seen:
            return False
        self._seen = seen  # from before the reading: what is written meanwhile differs again
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
"""A certificate that ends within this time is told of."""
RENEW = "put a new certificate there; it is taken over without a restart"


def common_validity_ms(pem: str) -> tuple[int, int] | None:
    """The wall clock's milliseconds from which on all certificates in `pem` are valid, and at which the first of them
    ends; None if there is none, or one that is no X.509."""
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
    """notBefore and notAfter of one certificate (RFC 5280 §4.1). Raises ValueError or IndexError for bytes that are
    none."""
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
    """Tag and content at `place`, and where the next element begins."""
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
    """The words of health and doctor of a certificate that ends soon, or has ended."""
    if left_ms <= 0:
        return f"{key}: a certificate in {path} has ended: TLS connections fail"
    days = left_ms // (24 * 3600 * 1000)
    return f"{key}: a certificate in {path} ends {f'in {days} days' if days else 'within a day'}"
