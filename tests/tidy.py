"""The house rules as checks over syntax trees: the determinism law of pure and simulated code, docstrings, sizes.

Pure code sees time, chance, disk and network only through rmqha.port, so that one seed decides a whole simulation.
Types are not known here: a name counts as a set if its module annotates it as one or gives it one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

MODULE_LINE_COUNT = 800
FUNCTION_LINE_COUNT = 80
CHANGE_CHARS = 160
CHANGE_KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Kinds of changes and their order, from Keep a Changelog 1.1.0."""

_SYSTEM_MODULES = """
    asyncio click concurrent datetime fcntl getpass glob io locale logging mmap multiprocessing os pathlib
    platform pyspark queue random rich sched secrets select selectors shutil signal socket subprocess sys tempfile
    threading time trio uuid zoneinfo
"""
SYSTEM_MODULES = frozenset(_SYSTEM_MODULES.split())
_ORDER_BLIND = frozenset(("all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"))
"""Calls whose outcome does not depend on the order of what they are given."""
_ORDER_KEEPING = frozenset(("dict", "enumerate", "iter", "list", "map", "filter", "tuple", "zip", "reversed"))
_SET_METHODS = frozenset(("union", "intersection", "difference", "symmetric_difference"))


RETIRED_WORDS = {
    "buried": "pending deletion",
    "bury": "unlink",
    "complain": "print an error, require",
    "crowd": "open connections",
    "deed": "action",
    "farewell": "close_notify",
    "grave": "pending unlink",
    "hurry": "prioritize",
    "keeper": "manager",
    "lineage": "table changes",
    "look": "check, inspect, ask or read",
    "looked": "checked, scanned, asked",
    "looking": "checking, options",
    "mend": "repair",
    "obey": "execute",
    "newcomer": "unverified session",
    "patience": "timeout",
    "picture": "page data",
    "reput": "dispatch",
    "sheet": "scrape, page",
    "spoke": "wrote",
    "standing": "readiness, serving state",
    "story": "timeline, details",
    "stranger": "non-member, foreign file, unproven peer",
    "visitor": "pending connection",
    "vitals": "heartbeat values",
    "wish": "election request, preferred id",
}
"""Words of our own that names had, and the terms that stand for them now (docs/start/glossary.md)."""


@dataclass(frozen=True, slots=True)
class Finding:
    line: int
    sentence: str


@lru_cache(maxsize=1)
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module; the checks of one module follow each other."""
    return tuple(ast.walk(tree))


def system_imports(tree: ast.Module) -> Iterator[Finding]:
    """Imports of clocks, chance, the system or a framework."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in SYSTEM_MODULES:
                yield Finding(node.lineno, f"imports {name}; ask for it through rmqha.port")


def unstable_identities(tree: ast.Module) -> Iterator[Finding]:
    """id() and hash(): they differ between processes. Defining __hash__ is what hash() is for."""
    allowed = {
        id(inner)
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for inner in ast.walk(node)
    }
    for node in nodes(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("id", "hash")
            and id(node) not in allowed
        ):
            yield Finding(node.lineno, f"calls {node.func.id}(), whose value differs between processes")


class _Sets:
    """Which expressions of a module are sets."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: frozenset[str] = frozenset()
        found: set[str] = set()
        while True:
            for node in nodes(tree):
                found.update(self._given_by(node))
            if found == self._names:
                return
            self._names = frozenset(found)

    def _given_by(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.AnnAssign(target=target, annotation=annotation):
                if _is_set_annotation(annotation):
                    yield from _key(target)
            case ast.arg(arg=name, annotation=annotation) if annotation is not None:
                if _is_set_annotation(annotation):
                    yield name
            case ast.Assign(targets=targets, value=given):
                if self.holds(given):
                    for assigned in targets:
                        yield from _key(assigned)
            case ast.FunctionDef(name=name, returns=returns) if returns is not None:
                if _is_set_annotation(returns):
                    yield f"{name}()"
            case _:
                pass

    def holds(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name() | ast.Attribute():
                return any(key in self._names for key in _key(node))
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self.holds(left) or self.holds(right)
            case ast.IfExp(body=body, orelse=orelse):
                return self.holds(body) or self.holds(orelse)
            case ast.Call(func=ast.Name(id=name)):
                return name in ("set", "frozenset") or f"{name}()" in self._names
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return (name in _SET_METHODS and self.holds(value)) or f"{name}()" in self._names
            case ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
                return name in ("set", "frozenset")
            case _:
                return False


def _key(node: ast.expr) -> Iterator[str]:
    """The name that stands for a variable or an attribute of self."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield f".{node.attr}"


def _is_set_annotation(annotation: ast.expr) -> bool:
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(head, ast.Name) and head.id in ("set", "frozenset", "AbstractSet", "Set", "MutableSet")


def unsorted_sets(tree: ast.Module) -> Iterator[Finding]:
    """Places where the order of a set, which differs between processes, could reach a result."""
    sets = _Sets(tree)
    blind = {
        id(argument)
        for node in nodes(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ORDER_BLIND
        for argument in node.args
    }
    for node in nodes(tree):
        iterated: list[ast.expr] = []
        match node:
            case ast.For(iter=source):
                iterated = [source]
            case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
                iterated = [generator.iter for generator in generators] if id(node) not in blind else []
            case ast.GeneratorExp(generators=generators):
                iterated = [generator.iter for generator in generators] if id(node) not in blind else []
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _ORDER_KEEPING:
                iterated = arguments if id(node) not in blind else []
            case ast.Call(func=ast.Attribute(attr="join"), args=arguments):
                iterated = arguments
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                iterated = [value]
            case ast.Starred(value=value):
                iterated = [value] if not _inside_blind(tree, node, blind) else []
            case _:
                pass
        for source in iterated:
            if sets.holds(source):
                yield Finding(source.lineno, f"the order of the set {ast.unparse(source)} is used; sort it")


def _inside_blind(tree: ast.Module, starred: ast.Starred, blind: set[int]) -> bool:
    """A set spread inside a set display, or inside what an order-blind call is given."""
    for node in nodes(tree):
        if starred in getattr(node, "elts", ()):
            return isinstance(node, ast.Set) or id(node) in blind
    return False


def float_times(tree: ast.Module) -> Iterator[Finding]:
    """Times are whole milliseconds: no float literal meets a `_ms` name, and no `/` divides one."""
    for node in nodes(tree):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                if isinstance(op, ast.Div) and (_names_a_time(left) or _names_a_time(right)):
                    yield Finding(node.lineno, f"`/` makes a float of a time: {ast.unparse(node)}; use `//`")
                pairs = [(left, right), (right, left)]
            case ast.Assign(targets=targets, value=value):
                pairs = [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = [(target, value)]
            case ast.AugAssign(target=changed, value=value):
                pairs = [(changed, value)]
            case ast.Compare(left=left, comparators=comparators):
                pairs = [(left, value) for value in comparators] + [(value, left) for value in comparators]
            case ast.keyword(arg=str() as name, value=value) if name.endswith("_ms"):
                pairs = [(ast.Name(name), value)]
            case _:
                pass
        for time, met in pairs:
            if _names_a_time(time) and isinstance(met, ast.Constant) and isinstance(met.value, float):
                yield Finding(met.lineno, f"a time is a whole number of milliseconds, not {met.value}")


def _names_a_time(node: ast.AST) -> bool:
    """A `_ms` name, or a sum or product of one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lower().endswith("_ms")
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.endswith("_ms")
        case ast.BinOp(left=left, right=right):
            return _names_a_time(left) or _names_a_time(right)
        case _:
            return False


def prints(tree: ast.Module) -> Iterator[Finding]:
    for node in nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield Finding(node.lineno, "prints; the command line renders, everything else traces")


def swallowed_errors(tree: ast.Module) -> Iterator[Finding]:
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler) and all(isinstance(item, ast.Pass) for item in node.body):
            yield Finding(node.lineno, "swallows an error")


_EMPTY_MAKERS = frozenset(
    ("bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple")
)


def late_callbacks(tree: ast.Module) -> Iterator[Finding]:
    """Attributes for a callback that somebody may set later and that do nothing before: a wire that is forgotten is
    silence. A constructor takes what it needs, or one Protocol of events."""
    for node in nodes(tree):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value is not None):
            continue
        names = {item.id for item in ast.walk(node.annotation) if isinstance(item, ast.Name)}
        empty = isinstance(node.value, ast.Lambda) or (
            isinstance(node.value, ast.Name) and node.value.id in _EMPTY_MAKERS
        )
        if "Callable" in names and empty:
            yield Finding(node.lineno, f"{node.target.attr} is a callback with a silent default; make it an argument")


_NO_QUANTIFIER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]", re.DOTALL)
_POSSESSIVE = re.compile(r"[*+?}]\+|\(\?>")


def possessive_patterns(tree: ast.Module) -> Iterator[Finding]:
    """Possessive quantifiers and atomic groups: Python before 3.11.5, Debian 12's too, matches some of them wrongly
    (gh-106052)."""
    for node in nodes(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        for part in ast.walk(node.args[0]):
            text = part.value if isinstance(part, ast.Constant) else ""
            text = text.decode("latin-1") if isinstance(text, bytes) else str(text)
            if _POSSESSIVE.search(_NO_QUANTIFIER.sub("_", text)):
                yield Finding(
                    node.lineno, "a possessive quantifier or an atomic group; Python 3.11.2 matches it wrongly"
                )


_SUBJECTLESS = re.compile(
    r"(What|Whatever|Of|How|As|Whether|Those|Who|Whom|Whose|Whoever|That|The same|So|Where|When|Why|Which|"
    r"It|Its|They|Nobody|Somebody|Everybody|Else|Also|Told|From now on)\b"
)
"""Beginnings of a first line that names no subject: the reader must guess what the rest is said of."""
_CIRCUMSTANCE = re.compile(
    r"(After|Against|Among|At|Because|Before|Behind|Below|Beside|Between|Beyond|By|During|Either|For|From|Here|If|In|"
    r"Instead|Into|Neither|Never|Not|On|Once|Only if|Over|Per|Same|Since|Then|There|Through|To|Under|Unless|Until|"
    r"While|With|Within|Without)\b"
)
"""Beginnings of a first line that say when or where before they say what the thing is."""
_ASKING = re.compile(r"(Is|Are|Was|Were|Has|Have|Does|Do|Did|Can|May|Must|Should|Will|Would)\b[^.]*\?")
"""A first sentence that asks: say when the answer is True."""


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Texts that stand first in a module, class or function, or below an assignment."""
    for node in nodes(tree):
        body: list[ast.stmt] = getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []
        for item in body:
            match item:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text
                case _:
                    pass


def docstrings_without_subject(tree: ast.Module) -> Iterator[Finding]:
    """First lines that ask, or begin with a relative pronoun or a question word; `Own.` marks a key, and is skipped."""
    for text in docstrings(tree):
        found = _SUBJECTLESS.match(str(text.value).strip().removeprefix("Own. "))
        if found:
            yield Finding(text.lineno, f"a docstring begins with {found[0]!r}; begin with its subject or an imperative")
        elif _ASKING.match(str(text.value).strip()):
            yield Finding(text.lineno, "a docstring asks; say when the answer is True")


_BARE_NAME = re.compile(r"`(?!-)")
"""A docstring's first words are a name in it: say first what the class is, or what the function does."""
_PREPOSITION = re.compile(
    r"(Above|After|Ahead|Among|And|At|Before|Behind|Below|Between|But|By|For|From|If|In|Into|On|Once|Only|Or|Out|Over|"
    r"Since|Through|To|Under|Until|Up|While|With|Without) "
)


def docstrings_of_bare_names(tree: ast.Module) -> Iterator[Finding]:
    """Docstrings of classes and functions that begin with a preposition, or with the name of a field or an argument;
    `__init__` may, and so may what is named by an option of the command line."""
    for node in nodes(tree):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name == "__init__":
            continue
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str(text))) if found := (
                _BARE_NAME.match(text.strip()) or _PREPOSITION.match(text.strip())
            ):
                yield Finding(node.body[0].lineno, f"{node.name}: a docstring begins with {found[0]!r}; say what it is")
            case _:
                pass


_ERROR_NAME = re.compile(r"(?<![\w.])[A-Z]\w*Error\b")
_MODULE_NAME = re.compile(r"`((?:rmqha|controller|nameserver)(?:\.\w+)+)")


def names_in_docstrings(tree: ast.Module, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Line and text of what the docstrings name by a pattern: its group if it has one."""
    for text in docstrings(tree):
        for found in pattern.finditer(str(text.value)):
            yield text.lineno, found[found.lastindex or 0]


def error_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Errors that docstrings name."""
    yield from names_in_docstrings(tree, _ERROR_NAME)


def module_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Modules of ours, or names in them, that docstrings name."""
    yield from names_in_docstrings(tree, _MODULE_NAME)


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Names that code defines, imports or uses."""
    for node in nodes(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name.rpartition(".")[2]
            case _:
                pass


def docstrings_beginning_with_circumstance(tree: ast.Module) -> Iterator[Finding]:
    """First lines whose first word is a preposition or a conjunction; the thing itself comes first."""
    for text in docstrings(tree):
        found = _CIRCUMSTANCE.match(str(text.value).strip().removeprefix("Own. "))
        if found:
            yield Finding(text.lineno, f"a docstring begins with {found[0]!r}; say first what the thing is")


def public_classes_without_docstring(tree: ast.Module) -> Iterator[Finding]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield Finding(node.lineno, f"{node.name} has no docstring")


def public_functions_without_docstring(tree: ast.Module) -> Iterator[Finding]:
    """Functions and methods of a library that users may call. Properties and methods of a Protocol count too."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    for item in (*tree.body, *(item for scope in classes for item in scope.body)):
        if (
            isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            and not item.name.startswith("_")
            and ast.get_docstring(item) is None
        ):
            yield Finding(item.lineno, f"{item.name} has no docstring")


def sizes(tree: ast.Module, line_count: int) -> Iterator[Finding]:
    if line_count > MODULE_LINE_COUNT:
        yield Finding(1, f"has {line_count} lines, more than {MODULE_LINE_COUNT}; split it")
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINE_COUNT:
                yield Finding(node.lineno, f"{node.name} has {lines} lines, more than {FUNCTION_LINE_COUNT}")


def retired_words(tree: ast.Module) -> Iterator[Finding]:
    """Names with a word that has a standard term; `look_up` is one itself."""
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.replace("look_up", "")).lower().split("_")
        for word in words:
            term = RETIRED_WORDS.get(word) or RETIRED_WORDS.get(word.removesuffix("s"))
            if term is not None:
                yield Finding(getattr(node, "lineno", 0), f"{name}: for {word} say {term}")


def changelog(text: str) -> Iterator[Finding]:
    """Lines of a changelog that a reader cannot take in one by one: a bullet is one line, one sentence, of one kind."""
    kinds: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            kinds = []
        elif line.startswith("### "):
            kinds.append(line.removeprefix("### "))
            if kinds != [kind for kind in CHANGE_KINDS if kind in kinds]:
                yield Finding(number, f"the kinds are {', '.join(CHANGE_KINDS)}, each once, in this order")
        elif line.startswith("- "):
            if len(line) > CHANGE_CHARS or not line.endswith("."):
                yield Finding(number, f"a change is a sentence on one line of {CHANGE_CHARS} characters at most")
            if re.search(r"[.!?] [A-Z`]", line):
                yield Finding(number, "a change is one sentence")
            if not kinds or line in seen:
                yield Finding(number, "a change stands once, under its kind")
            seen.add(line)
        elif kinds and (line.startswith(" ") or line.endswith(".")):
            yield Finding(number, "below a kind stand changes, and names of areas between them")
