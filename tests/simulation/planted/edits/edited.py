"""Planted bugs as edits of one function's text: a line or two, as a slip of the hand would leave them."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any

Edit = tuple[str, str]
"""Text that stands in the function once, and what takes its place."""


def function_of(owner: Any, name: str) -> FunctionType:
    """The function behind a method, property, class method or context manager of a class or module."""
    found = inspect.getattr_static(owner, name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{name} of {owner} is no function"
    return found


def _edited_code(function: FunctionType, edits: tuple[Edit, ...]) -> CodeType:
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in edits:
        assert text.count(old) == 1, f"{function.__qualname__} holds {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    flags = __future__.annotations.compiler_flag
    module = compile(text, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    return next(item for item in module.co_consts if isinstance(item, CodeType) and item.co_name == function.__name__)


@contextmanager
def edited(owner: Any, name: str, *edits: Edit) -> Iterator[None]:
    """Run the function with edits, whoever has imported it by then."""
    function = function_of(owner, name)
    code = function.__code__
    changed = _edited_code(function, edits)
    assert changed.co_freevars == code.co_freevars, f"{function.__qualname__} is a closure"
    function.__code__ = changed
    try:
        yield
    finally:
        function.__code__ = code


def edit(owner: Any, name: str, *edits: Edit) -> Callable[[], Any]:
    """A mutation of one function."""
    return lambda: edited(owner, name, *edits)


@contextmanager
def _all(mutations: tuple[Callable[[], Any], ...]) -> Iterator[None]:
    with ExitStack() as stack:
        for mutation in mutations:
            stack.enter_context(mutation())
        yield


def edits(*mutations: Callable[[], Any]) -> Callable[[], Any]:
    """A mutation of several functions at once."""
    return lambda: _all(mutations)
