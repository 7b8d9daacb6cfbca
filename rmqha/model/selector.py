"""SQL92 selectors: which messages a consumer wants, by their properties. Pure.

RocketMQ's subset and semantics (checked against its own broker in tests/interop). Values are text, whole numbers of 32
and 64 bits, floating point numbers and booleans. A missing property is NULL; logic has three values. Text is converted
to the other side's type; if that is impossible, the whole selector is false. Text behind a complete expression is
ignored.

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" text { "," text } ")" | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary      = ("+" | "-" | NOT) unary | literal | property | "(" or ")"
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

MAX_EXPRESSION_LENGTH = 65_536
MAX_TOKEN_COUNT = 1024
"""Most tokens of an expression, a list of texts counted as one: 250 comparisons, which take 5 ms to parse."""
MAX_CONTAINS_LENGTH = 1024
"""Most characters of all texts behind CONTAINS in an expression: the search for one takes its length times that of the
property."""
MIN_CONTAINS_LENGTH = 8
"""Length for which a shorter text counts."""
MAX_DEPTH = 100
MAX_REMEMBERED_COUNT = 1024
MAX_REMEMBERED_TOKENS = 32_768
MAX_REMEMBERED_CHARS = 2 * 1024 * 1024
"""A compiled expression takes some 200 bytes of memory for each token."""
MAX_CONVERTED_COUNT = 64
"""Size of the caches of converted texts: a long text is converted once for all comparisons."""

Get = Callable[[str], str | None]
"""A message's property by name."""
Value = str | int | float | bool | None
Evaluate = Callable[[Get], Value]

_KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS",
                       "CONTAINS", "STARTSWITH", "ENDSWITH"))  # fmt: skip
_SPACE = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
_SPACE_IN_LINE = re.compile(r"(?:[ \t\n\r\f]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)+")
"""White space and comments on the last line: a comment from -- on needs a line end, so there is none here."""
_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)"
    r"|(?P<whole>[1-9][0-9]*[lL]?|0)"
    r"|(?P<text>'(?:''|[^'])*')"
    r"|(?P<word>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[=<>(),+\-])"
)
_TEXT = re.compile(r"'[^']*(?:''[^']*)*'")
_TEXT_LIST = re.compile(rf"[ \t\n\r\f]*{_TEXT.pattern}(?:[ \t\n\r\f]*,[ \t\n\r\f]*{_TEXT.pattern})*[ \t\n\r\f]*\)")
"""List of texts behind the opening parenthesis. The pattern is unambiguous, so that a failing match ends soon."""
_JAVA_WHOLE = re.compile(r"[-+]?\d+")
_JAVA_DOUBLE = re.compile(
    r"[-+]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fFdD]?)"
    r"|(?P<hex>[-+]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][-+]?[0-9]+)[fFdD]?"
)
_JAVA_SPACES = "".join(map(chr, range(33)))
_SMALLEST_DOUBLE = 5e-324
_MAX_DIGITS = 19
"""Digits of a number of 64 bits."""


class SelectorError(ValueError):
    """Error in an expression; the text says where and why."""


class _IncomparableError(Exception):
    """Raised for two values that cannot be compared: the message does not match."""


class Long(int):
    """A whole number of 64 bits. A plain int in an expression has 32."""


class Selector:
    """A compiled expression."""

    def __init__(
        self, expression: str, evaluate: Evaluate, token_count: int, value_count: int, contains_length: int
    ) -> None:
        """`value_count`: most values that one evaluation reads; `contains_length`: characters of all texts behind
        CONTAINS."""
        self.expression = expression
        self.token_count = token_count
        self._value_count = value_count
        self._contains_length = contains_length
        self._evaluate = evaluate

    def cost(self, properties_length: int) -> int:
        """Upper bound on the cost of one evaluation, in half microseconds."""
        return self._value_count + self._contains_length * properties_length // 1024

    def matches(self, get: Get) -> bool:
        """True if a message matches. `get` returns its properties."""
        try:
            return self._evaluate(get) is True
        except _IncomparableError:
            return False


def parse_selector(expression: str) -> Selector:
    """Compile an expression; the last ones are cached, as consumers send theirs with each pull. Raises
    SelectorError."""
    return _REMEMBERED.selector(expression)


class _Remembered:
    """Cache of the selectors used last, with bounds on their number and memory."""

    def __init__(self) -> None:
        self._selectors: OrderedDict[str, Selector] = OrderedDict()
        self._token_count = self._char_count = 0

    def selector(self, expression: str) -> Selector:
        found = self._selectors.get(expression)
        if found is not None:
            self._selectors.move_to_end(expression)
            return found
        found = self._selectors[expression] = _parse(expression)
        self._token_count += found.token_count
        self._char_count += len(expression)
        while (
            len(self._selectors) > MAX_REMEMBERED_COUNT
            or self._token_count > MAX_REMEMBERED_TOKENS
            or self._char_count > MAX_REMEMBERED_CHARS
        ):
            text, oldest = self._selectors.popitem(last=False)
            self._token_count -= oldest.token_count
            self._char_count -= len(text)
        return found


_REMEMBERED = _Remembered()


def _parse(expression: str) -> Selector:
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise SelectorError(f"{len(expression)} characters; a selector may have {MAX_EXPRESSION_LENGTH}")
    parser = _Parser(expression)
    evaluate = _truth(parser.alternatives(0)).evaluate
    return Selector(expression, evaluate, parser.token_count, parser.value_count, parser.contains_length)


class _Node(NamedTuple):
    """A node of an expression. `is_truth`: its value is true, false or NULL. `name` is set for a property,
    `is_constant` for a literal."""

    evaluate: Evaluate
    is_truth: bool = False
    is_constant: bool = False
    name: str = ""

    @property
    def value(self) -> Value:
        """The value of a literal."""
        return self.evaluate(_nothing)


def _nothing(name: str) -> None:
    return None


def _constant(value: Value) -> _Node:
    return _Node(lambda get: value, is_truth=value is None or isinstance(value, bool), is_constant=True)


def _truth(node: _Node) -> _Node:
    """The node as a condition. A property alone is a text and so never true."""
    if node.is_truth:
        return node
    if node.name:
        return _Node(lambda get: None if node.evaluate(get) is None else False, is_truth=True)
    raise SelectorError("the expression is no condition: compare its value with something")


# --- comparing --------------------------------------------------------------------------------------------------------
@lru_cache(MAX_CONVERTED_COUNT)
def _whole(text: str, bits: int) -> int:
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _MAX_DIGITS or not _JAVA_WHOLE.fullmatch(text):
        raise _IncomparableError
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _IncomparableError
    return number


@lru_cache(MAX_CONVERTED_COUNT)
def _double(text: str) -> float:
    match = _JAVA_DOUBLE.fullmatch(text.strip(_JAVA_SPACES))
    if match is None:
        raise _IncomparableError
    if match["hex"]:
        try:
            return float.fromhex(match["hex"])
        except OverflowError:
            return -math.inf if match["hex"][0] == "-" else math.inf
    return float(match[0].rstrip("fFdD") if not match[0].endswith(("NaN", "Infinity")) else match[0])


def _like(text: str, model: Value) -> Value:
    """The text as a value of the model's type."""
    if isinstance(model, bool):
        return len(text) == len("true") and text.lower() == "true"
    if isinstance(model, float):
        return _double(text)
    return _whole(text, 64 if isinstance(model, Long) else 32)


def _order(left: Value, right: Value) -> int:
    """Negative, zero or positive, as Java's compareTo. Neither is None."""
    if isinstance(left, str) != isinstance(right, str):
        if isinstance(left, str):
            left = _like(left, right)
        elif isinstance(left, bool):
            raise _IncomparableError
        else:
            right = _like(str(right), left)
    elif isinstance(left, bool) != isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _double_order(float(left), float(right))  # type: ignore[arg-type]
    return (left > right) - (left < right)  # type: ignore[operator]


def _double_order(left: float, right: float) -> int:
    """NaN is above all and equal to itself, −0 below 0."""
    if left < right:
        return -1
    if left > right:
        return 1
    keys = [(math.isnan(item), math.copysign(1.0, item) if not math.isnan(item) else 0.0) for item in (left, right)]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def _equal(left: _Node, right: _Node) -> _Node:
    first, second = left.evaluate, right.evaluate

    def evaluate(get: Get) -> Value:
        one, other = first(get), second(get)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        return _order(one, other) == 0

    return _Node(evaluate, is_truth=True)


def _ordered(left: _Node, right: _Node, accepts: Callable[[int], bool]) -> _Node:
    for node in (left, right):
        if node.is_truth or (node.is_constant and isinstance(node.value, str)):
            raise SelectorError("only numbers and properties have an order")
    first, second = left.evaluate, right.evaluate

    def evaluate(get: Get) -> Value:
        one, other = first(get), second(get)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _double(one), _double(other)
        return accepts(_order(one, other))

    return _Node(evaluate, is_truth=True)


_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


# --- logic ------------------------------------------------------------------------------------------------------------
def _not(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None else not value

    return _Node(evaluate, is_truth=True)


def _junction(nodes: list[_Node], decisive: bool) -> _Node:
    """OR is decided by a true part, AND by a false one; a part behind that one is not evaluated."""
    if len(nodes) == 1:
        return nodes[0]
    parts = [_truth(node).evaluate for node in nodes]

    def evaluate(get: Get) -> Value:
        result: Value = not decisive
        for part in parts:
            value = part(get)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _Node(evaluate, is_truth=True)


def _between(node: _Node, low: _Node, high: _Node, negated: bool) -> _Node:
    if negated:
        return _junction([_ordered(node, low, _ORDERS["<"]), _ordered(node, high, _ORDERS[">"])], True)
    if low.is_constant and high.is_constant:
        first, last = low.value, high.value
        if first is None or last is None or isinstance(first, str | bool) or isinstance(last, str | bool):
            raise SelectorError("BETWEEN needs two numbers or properties")
        if _order(last, first) < 0:
            raise SelectorError(f"BETWEEN {first} AND {last} holds nothing")
    return _junction([_ordered(node, low, _ORDERS[">="]), _ordered(node, high, _ORDERS["<="])], False)


def _among(node: _Node, texts: frozenset[str], negated: bool) -> _Node:
    if not node.name:
        raise SelectorError("IN needs a property before it")
    inner = node.evaluate

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None else (value in texts) is not negated

    return _Node(evaluate, is_truth=True)


_PARTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _part(node: _Node, holds: Callable[[str, str], bool], text: str, negated: bool) -> _Node:
    """Two-valued: false for what is no text and for an empty text to look for, negated or not."""
    inner = node.evaluate

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return isinstance(value, str) and text != "" and holds(value, text) is not negated

    return _Node(evaluate, is_truth=True)


def _negative(node: _Node) -> _Node:
    inner = node.evaluate

    def evaluate(get: Get) -> Value:
        value = inner(get)
        if value is None or isinstance(value, str | bool):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return _Node(evaluate)


# --- grammar ----------------------------------------------------------------------------------------------------------
class _Parser:
    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._last_line = max(expression.rfind("\n"), expression.rfind("\r"))
        self._chain_count = 0
        self.contains_length = 0
        self.token_count = 0
        self.value_count = 0
        """Values that one evaluation may look at."""
        self._kind, self._token = "", ""
        self._next()

    def _scan(self) -> tuple[str, str]:
        self.token_count += 1
        if self.token_count > MAX_TOKEN_COUNT:
            raise SelectorError(f"more than {MAX_TOKEN_COUNT} words, values and signs")
        space = (_SPACE if self._at <= self._last_line else _SPACE_IN_LINE).match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        if self._at == len(self._text):
            return "end", ""
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise SelectorError(f"unexpected character {self._text[self._at]!r} at position {self._at}")
        self._at = match.end()
        token = match[match.lastgroup]
        if match.lastgroup == "word" and token.upper() in _KEYWORDS:
            return "keyword", token.upper()
        return match.lastgroup, token

    def _next(self) -> None:
        self._kind, self._token = self._scan()

    def _is(self, *tokens: str) -> bool:
        return self._kind in ("keyword", "sign") and self._token in tokens

    def _take(self, *tokens: str) -> str:
        token = self._token
        if not self._is(*tokens):
            found = self._token or "the end"
            raise SelectorError(f"expected {' or '.join(tokens)}, found {found} before position {self._at}")
        self._next()
        return token

    def alternatives(self, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise SelectorError(f"nested deeper than {MAX_DEPTH}")
        nodes = [self._conditions(depth)]
        while self._is("OR"):
            self._next()
            nodes.append(self._conditions(depth))
        return _junction(nodes, True)

    def _conditions(self, depth: int) -> _Node:
        nodes = [self._equality(depth)]
        while self._is("AND"):
            self._next()
            nodes.append(self._equality(depth))
        return _junction(nodes, False)

    def _equality(self, depth: int) -> _Node:
        left = self._comparison(depth)
        while True:
            if self._is("=", "<>"):
                sign = self._take("=", "<>")
                right = self._comparison(depth)
                left = self._equal(left, right)
                left = _not(left) if sign == "<>" else left
            elif self._is("IS"):
                self._next()
                negated = self._is("NOT")
                if negated:
                    self._next()
                self._take("NULL")
                left = _equal(left, _constant(None))
                left = _not(left) if negated else left
            else:
                return left
            self._count_chain()

    def _count_chain(self) -> None:
        """A comparison may be compared again: a chain is as deep as it is long."""
        self._chain_count += self._is("=", "<>", "IS", "NOT", *_PARTS)
        if self._chain_count > MAX_DEPTH:
            raise SelectorError(f"more than {MAX_DEPTH} comparisons of comparisons")

    @staticmethod
    def _equal(left: _Node, right: _Node) -> _Node:
        for node in (left, right):
            if node.is_constant and node.value is None:
                raise SelectorError("nothing is equal to NULL; write IS NULL")
        if left.is_constant and right.is_constant and left.is_truth and not right.is_truth:
            raise SelectorError("TRUE and FALSE cannot be compared with that")
        return _equal(left, right)

    def _comparison(self, depth: int) -> _Node:
        left = self._unary(depth)
        while True:
            if self._is(*_ORDERS):
                sign = self._take(*_ORDERS)
                left = _ordered(left, self._unary(depth), _ORDERS[sign])
            elif self._is("NOT", "BETWEEN", "IN", *_PARTS):
                left = self._test(left, depth)
            else:
                return left
            self._count_chain()

    def _test(self, left: _Node, depth: int) -> _Node:
        negated = self._is("NOT")
        if negated:
            self._next()
        word = self._take("BETWEEN", "IN", *_PARTS)
        if word == "BETWEEN":
            low = self._unary(depth)
            self._take("AND")
            return _between(left, low, self._unary(depth), negated)
        if word == "IN":
            return _among(left, self._text_list(), negated)
        text = self._text_literal()
        if word == "CONTAINS":
            self.contains_length += max(MIN_CONTAINS_LENGTH, len(text))
            if self.contains_length > MAX_CONTAINS_LENGTH:
                raise SelectorError(f"the texts behind CONTAINS may have {MAX_CONTAINS_LENGTH} characters together")
        return _part(left, _PARTS[word], text, negated)

    def _unary(self, depth: int) -> _Node:
        self.value_count += 1
        if depth > MAX_DEPTH:
            raise SelectorError(f"nested deeper than {MAX_DEPTH}")
        if self._is("+", "-", "NOT"):
            sign = self._take("+", "-", "NOT")
            inner = self._unary(depth + 1)
            if sign == "NOT":
                return _not(_truth(inner))
            return _negative(inner) if sign == "-" else inner
        if self._is("("):
            self._next()
            inner = self.alternatives(depth + 1)
            self._take(")")
            return inner
        return self._primary()

    def _primary(self) -> _Node:
        kind, token = self._kind, self._token
        if kind == "text":
            return _constant(self._text_literal())
        if kind == "keyword" and token in ("TRUE", "FALSE", "NULL"):
            self._next()
            return _constant({"TRUE": True, "FALSE": False, "NULL": None}[token])
        if kind == "whole":
            self._next()
            return _constant(_whole_literal(token))
        if kind == "float":
            self._next()
            return _constant(_float_literal(token))
        if kind == "word":
            self._next()
            return _Node(lambda get: get(token), name=token)
        raise SelectorError(f"expected a value, found {token or 'the end'} before position {self._at}")

    def _text_list(self) -> frozenset[str]:
        """Texts behind IN. There may be thousands, so the list is matched as a whole; if it contains comments, it is
        parsed token by token."""
        found = _TEXT_LIST.match(self._text, self._at) if self._is("(") else None
        if found is not None:
            self._at = found.end()
            self._next()
            return frozenset(item[1:-1].replace("''", "'") for item in _TEXT.findall(found[0]))
        self._take("(")
        texts = [self._text_literal()]
        while self._is(","):
            self._next()
            texts.append(self._text_literal())
        self._take(")")
        return frozenset(texts)

    def _text_literal(self) -> str:
        if self._kind != "text":
            raise SelectorError(f"expected a text in quotes, found {self._token or 'the end'}")
        token = self._token
        self._next()
        return token[1:-1].replace("''", "'")


def _whole_literal(token: str) -> int:
    digits = token.rstrip("lL")
    if len(digits) > _MAX_DIGITS or int(digits) >= 1 << 63:
        raise SelectorError(f"{token[:40]} has more than 64 bits")
    number = int(digits)
    return number if number < 1 << 31 else Long(number)


def _float_literal(token: str) -> float:
    number = float(token)
    if math.isinf(number) or number < _SMALLEST_DOUBLE:
        raise SelectorError(f"{token[:40]} is too large or too small")
    return number
