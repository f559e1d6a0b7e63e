"""Find the English sentences that tests match against output, so that a better wording breaks them.

A sentence is a phrase of four words or more in a string inside a test function. It is matched where it is an operand
of a comparison, the `match=` of `pytest.raises`, or the argument of a function whose name shows that it looks for a
text (`startswith`, `until`, `sees`). Names are followed to literals: constants of the file, loops, parameters of
`parametrize`. What the test itself puts in (questions, recorded answers) is no output, and docstrings do not count.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

#: Four words in a row with nothing between them but spaces, light punctuation and figures: an English phrase.
PHRASE = re.compile(r"(?:[A-Za-z][a-z]*(?:['’-][a-z]+)?[,;:.]?['’\"]?\s+['\"]?){3}[A-Za-z][a-z]*")
#: Methods and functions that look for their first argument in a text.
MATCHERS = frozenset({"startswith", "endswith", "count", "index", "find", "search", "match", "fullmatch", "findall"})
#: Functions of the tests that wait for a text or check one, by a word of their name.
CHECKERS = re.compile(r"(^|_)(until|waits?|expect\w*|assert\w*|shows?|sees?|says?|reads?|contains?|appears?)(_|$)")
#: Calls that only wrap the value which is compared.
WRAPPERS = frozenset(
    {"set", "frozenset", "tuple", "list", "sorted", "dict", "approx", "escape", "Text", "strip", "join"}
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Sentences:
    """Of all tests: `asserted` hold a sentence that is compared with output, `held` any sentence in a string."""

    tests: int = 0
    asserted: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    """Of `asserted`: those whose sentence has four words in a row from one string of the product."""


def sentences(files: Iterable[tuple[str, ast.Module]], wording: set[tuple[str, ...]]) -> Sentences:
    """What the tests of these files (label, syntax tree) hold; `wording` is the product's, see `wording_of`."""
    result = Sentences()
    for label, tree in files:
        constants = _assigned(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
                result.tests += 1
                test = f"{label}::{node.name}"
                asserted, held = _phrases(node, constants)
                if held:
                    result.held.append(test)
                if asserted:
                    result.asserted.append(test)
                if any(run in wording for text in asserted for run in _runs(text)):
                    result.ours.append(test)
    return result


def _phrases(test: Function, constants: dict[str, list[ast.expr]]) -> tuple[set[str], set[str]]:
    """(phrases matched against output, all phrases) of one test. What the test itself puts in is no output."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(test)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and isinstance(node.body[0], ast.Expr)
    }
    known = {**constants, **_parametrized(test), **_assigned(ast.walk(test))}
    matched: dict[int, str] = {}
    for node in ast.walk(test):
        for operand in _matched(node):
            matched.update(_texts(operand, known))
    everything = {
        id(node): text
        for node in ast.walk(test)
        if id(node) not in docs and (text := _text(node)) is not None and PHRASE.search(text)
    }
    inputs = [text for key, text in everything.items() if key not in matched]
    asserted = {text for text in matched.values() if PHRASE.search(text) and not any(text in put for put in inputs)}
    return asserted, asserted | set(everything.values())


def _matched(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that are compared with output at this node."""
    if isinstance(node, ast.Compare):
        yield node.left
        yield from node.comparators
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in MATCHERS or CHECKERS.search(name):
            yield from node.args
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "match")
    elif isinstance(node, ast.MatchValue):
        yield node.value


def _texts(node: ast.expr, known: dict[str, list[ast.expr]], seen: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """(identity, text) of the strings an operand is made of; the arguments of a call are what was put in."""
    text = _text(node)
    if text is not None:
        yield id(node), text
        return
    match node:
        case ast.Name(id=name) if name not in seen:
            for value in known.get(name, []):
                yield from _texts(value, known, (*seen, name))
            return
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args):
            inner: Sequence[ast.AST] = [owner, *(args if name in WRAPPERS else [])]
        case ast.Call(func=ast.Name(id=name), args=args):
            inner = args if name in WRAPPERS else []
        case ast.Attribute() | ast.Subscript() | ast.Lambda() | ast.Compare():
            inner = []
        case _:
            inner = list(ast.iter_child_nodes(node))
    for child in inner:
        if isinstance(child, ast.expr):
            yield from _texts(child, known, seen)


def _text(node: ast.AST) -> str | None:
    """The text of a string or f-string; a placeholder reads "{}"."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Literal values by the name they are given: assignments and loops over them."""
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                values[name].append(value)
            case ast.For(target=target, iter=ast.Tuple(elts=rows) | ast.List(elts=rows)):
                _unpack(target, rows, values)
            case ast.comprehension(target=target, iter=ast.Tuple(elts=rows) | ast.List(elts=rows)):
                _unpack(target, rows, values)
    return values


def _unpack(target: ast.expr, rows: Sequence[ast.expr], values: dict[str, list[ast.expr]]) -> None:
    if isinstance(target, ast.Name):
        values[target.id] += rows
        return
    names = target.elts if isinstance(target, ast.Tuple) else []
    for row in rows:
        if isinstance(row, (ast.Tuple, ast.List)) and len(row.elts) == len(names):
            for name, value in zip(names, row.elts, strict=True):
                _unpack(name, [value], values)


def _parametrized(test: Function) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = defaultdict(list)
    for decorator in test.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows), *_],
            ):
                keys = [key.strip() for text in strings(names) for key in text.split(",")]
                plain = [ast.Tuple(row.args) if isinstance(row, ast.Call) and row.args else row for row in rows]
                if len(keys) == 1:
                    plain = [row.elts[0] if isinstance(row, ast.Tuple) and row.elts else row for row in plain]
                    values[keys[0]] += plain
                else:
                    target = ast.Tuple([ast.Name(key) for key in keys])
                    _unpack(target, plain, values)
    return values


def _runs(text: str) -> set[tuple[str, ...]]:
    """Four words in a row, without case and punctuation; a placeholder parts two runs."""
    runs: set[tuple[str, ...]] = set()
    for part in re.split(r"\{\}|[()\[\]<>|=\\/_*]|\.\*", text):
        words = re.findall(r"[a-z]+", part.lower())
        runs.update(zip(words, words[1:], words[2:], words[3:], strict=False))
    return runs


def wording_of(trees: Iterable[ast.Module]) -> set[tuple[str, ...]]:
    """All runs of four words in the product's strings."""
    return {
        run for tree in trees for node in ast.walk(tree) if (text := _text(node)) is not None for run in _runs(text)
    }


def strings(node: ast.AST) -> list[str]:
    """All string constants in a piece of source."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
