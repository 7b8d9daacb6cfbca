"""The end of a copier or an archiver, in the midst of its files."""

from __future__ import annotations

from typing import Any

import pytest


class KilledError(BaseException):
    """The process ends here."""


def die_in(patch: pytest.MonkeyPatch, owner: Any, step: str, count: int, is_before: bool) -> None:
    """Raise KilledError in the call of `owner.step` that follows `count` others, before it or after it."""
    called, left = getattr(owner, step), [count]

    def call(self: Any, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 and is_before:
            raise KilledError
        found = called(self, *arguments)
        if left[0] < 0:
            raise KilledError
        return found

    patch.setattr(owner, step, call)
