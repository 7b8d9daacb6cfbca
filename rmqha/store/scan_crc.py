"""CRC-32 of bodies: by the package isal where it is installed, which is several times as fast as zlib."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
