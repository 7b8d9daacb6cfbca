"""Regular expressions of users, matched by RE2 in time linear in the text.

Python's own engine backtracks: a pattern such as `(a+)+$` takes hours on forty characters. RE2 is imported only when a
pattern is used; a broker never needs it.
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
    """A compiled pattern. Text is UTF-8; invalid bytes match no character of a pattern."""

    def __init__(self, text: str, *, ignore_case: bool = False, literal: bool = False) -> None:
        """Raises ValueError with one sentence for a pattern that RE2 refuses. `literal`: `text` is plain text, not a
        pattern."""
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
    """Compiled pattern from a cache. Raises ValueError as `Pattern` does."""
    return Pattern(text)


_REFUSED = " (patterns are RE2's, which has no back-references and no look-around)"
