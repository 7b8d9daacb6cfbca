"""Codecs: bytes in, values out; no time, no I/O. Layouts: docs/internals/formats.md."""
