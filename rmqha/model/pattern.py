"""Regular expressions that somebody gives: matched in time linear in the text, by RE2.

Python's own engine tries every way to read a pattern such as `(a+)+$`: forty characters then take it hours. RE2 is
loaded only where a pattern is used, a broker never needs it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PATTERN_CHARS = 1000
MAX_MEMORY_BYTES = 8 << 20
"""Most bytes of a compiled pattern and its automata."""


class Pattern:
    """Compiled once. Text is UTF-8; bytes that are none match no character of a pattern."""

    def __init__(self, text: str, *, ignore_case: bool = False, literal: bool = False) -> None:
        """ValueError, one sentence, for what RE2 does not take. `literal`: no character of it means anything else."""
        import re2

        if len(text) > MAX_PATTERN_CHARS:
            raise ValueError(f"it is longer than {MAX_PATTERN_CHARS} characters")
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        options.max_mem = MAX_MEMORY_BYTES
        options.case_sensitive = not ignore_case
        options.literal = literal
        try:
            # compiled from bytes, so that bytes can be searched without being decoded; read as UTF-8 all the same
            found: Any = re2.compile(text.encode(), options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            hint = _REFUSED if "perl operator" in reason or "escape sequence" in reason else ""
            raise ValueError(f"{reason}{hint}") from None
        self._search: Callable[[bytes], object] = found.search
        self._fullmatch: Callable[[bytes], object] = found.fullmatch

    def is_in(self, text: bytes) -> bool:
        """True if it matches somewhere."""
        return self._search(text) is not None

    def is_whole(self, text: bytes) -> bool:
        """True if it matches all of the text."""
        return self._fullmatch(text) is not None


@lru_cache(maxsize=32)
def compiled(text: str) -> Pattern:
    """The pattern, compiled at the first use of each text in a process. ValueError as `Pattern`."""
    return Pattern(text)


_REFUSED = " (patterns are RE2's, which has no back-references and no look-around)"
