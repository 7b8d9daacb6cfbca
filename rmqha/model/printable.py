"""Text of peers made safe for a terminal: control characters, line ends and bidi marks are escaped. Pure."""

from __future__ import annotations

import re

_UNSHOWABLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, ESC and CR among them
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, line ends, bidi
    "\ud800-\udfff\U000e0000-\U000e007f"  # half characters, tags
)
_LINES = re.compile(f"[{_UNSHOWABLE}]")
_WORDS = re.compile(f"[\t\n{_UNSHOWABLE}]")
MAX_NAME_CHARS = 255


def printable(text: str, *, lines: bool = True) -> str:
    r"""Text with unsafe characters as \uXXXX, which JSON decodes again. `lines`: keep line ends and tabs."""
    return (_LINES if lines else _WORDS).sub(_escaped, text)


def is_printable(text: str) -> bool:
    """True if a name contains no unsafe character, line end or tab."""
    return _WORDS.search(text) is None


def name_refusal(what: str, name: str) -> str:
    """Reason to refuse a name that a peer has sent; "" if it is accepted. `what`: what the name is, for the reason."""
    if not is_printable(name):
        return f"{what} {printable(name[:MAX_NAME_CHARS], lines=False)} holds characters that cannot be printed"
    return f"{what} has more than {MAX_NAME_CHARS} characters" if len(name) > MAX_NAME_CHARS else ""


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
