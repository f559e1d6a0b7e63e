"""Count the house of a checkout: files, rooms, circles, class names, glossary words, tests that hold a sentence.

    python tests/tools/house.py [ROOT] [--json]

Reads source only, imports nothing of it, and knows both layouts: `screens/`, `jobs/` and `presets/` beside
`vlmconsole/` or inside it. The order of the rooms is the one that the checkout's own tests hold.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sentences import sentences, strings, wording_of

PACKAGE = "vlmconsole"
MAPPED = ("screens", "jobs", "presets", "assets")
#: The left column of the glossary in CONTRIBUTING, as far as it can be counted by exact name.
WORDS = (
    *("one", "found", "said", "told", "these", "there", "stands", "taking"),
    *("foreseen", "trouble", "altered", "story", "beside"),
)
ENGINES = frozenset({"mlx", "sglang", "vllm", "openai"})
LONG_FILE, LONGEST_FILE = 400, 600


@dataclass
class Module:
    """One Python file. `name` is dotted and begins with the package; that of a package ends without `__init__`."""

    name: str
    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        """The package folder it lies in, without the package's own name."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        return package.removeprefix(PACKAGE).lstrip(".") or "."


def read(folder: Path, prefix: str) -> Iterator[Module]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join((prefix, *(parts[:-1] if parts[-1] == "__init__" else parts)))
        yield Module(name, path, path.read_text(encoding="utf-8"))


def product(root: Path) -> list[Module]:
    modules = list(read(root / PACKAGE, PACKAGE))
    for name in MAPPED:
        modules += read(root / name, f"{PACKAGE}.{name}")
    return modules


# -- imports ----------------------------------------------------------------------------------------------------------


def imports(module: Module, known: set[str]) -> set[str]:
    """Modules of the product that it imports, at its head or later; imports for type checking do not count."""
    targets: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for branch in node.orelse:
                visit(branch)
            return
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                targets.add(inner if inner in known else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(module.tree)
    return targets & known - {module.name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two and more that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return groups


def floors(tests: Iterable[Module]) -> dict[str, int]:
    """Level of each room, counted from the ground; empty where no file of the tests lists them.

    The list is `ROOMS`, a table by name in strict order, or `FLOORS`, as it was before, with several names a floor.
    """
    for module in tests:
        for node in module.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="ROOMS")], value=ast.Dict(keys=keys)):
                    return {name: level for level, key in enumerate(keys) if key is not None for name in strings(key)}
                case ast.Assign(targets=[ast.Name(id="FLOORS")], value=ast.List(elts=elements)):
                    return {name: level for level, floor in enumerate(elements) for name in strings(floor)}
    return {}


def level(name: str, levels: dict[str, int]) -> int | None:
    """The level of a module: of the longest of its prefixes that is listed."""
    parts = name.split(".")[1:]
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((levels[prefix] for prefix in prefixes if prefix in levels), None)


def upward(graph: dict[str, set[str]], levels: dict[str, int]) -> list[str]:
    """Imports of a higher floor, as "importer -> imported"."""
    arrows = []
    for name, targets in sorted(graph.items()):
        own = level(name, levels)
        for target in sorted(targets):
            other = level(target, levels)
            if own is not None and other is not None and other > own:
                arrows.append(f"{_short(name)} -> {_short(target)}")
    return arrows


def mutual(graph: dict[str, set[str]]) -> list[str]:
    """Pairs of top-level rooms that import each other."""
    rooms = {(_top(name), _top(target)) for name, targets in graph.items() for target in targets}
    return sorted(f"{a} <-> {b}" for a, b in rooms if a < b and (b, a) in rooms)


def _top(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def _short(name: str) -> str:
    return name.removeprefix(f"{PACKAGE}.")


# -- names and classes ------------------------------------------------------------------------------------------------


def identifiers(modules: Iterable[Module]) -> Counter[str]:
    """How often each name is written: names, arguments, attributes, definitions, keywords."""
    counts: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=name):
                    counts[name or ""] += 1
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    counts[name] += 1
    return counts


def twins(modules: Iterable[Module]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Class names that are used more than once, with their places: (at module level, with those inside a class)."""
    outer: dict[str, list[str]] = defaultdict(list)
    every: dict[str, list[str]] = defaultdict(list)

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                every[child.name].append(place)
                if isinstance(node, ast.Module):
                    outer[child.name].append(place)
                visit(child, f"{place}.{child.name}")
            else:
                visit(child, place)

    for module in modules:
        visit(module.tree, _short(module.name))
    return _repeated(outer), _repeated(every)


def _repeated(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(found) for name, found in sorted(places.items()) if len(found) > 1}


def chains(modules: Iterable[Module]) -> dict[str, list[str]]:
    """The longest line of our own classes, itself first, of every class that is made of one of Textual's."""
    bases: dict[str, list[str]] = {}
    for module in modules:
        names = _imported(module)
        own = {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                heads = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                bases[f"{module.name}.{node.name}"] = [
                    f"{module.name}.{text}" if text in own else _resolve(text, names)
                    for text in map(ast.unparse, heads)
                ]

    def line(name: str) -> list[str]:
        return [name, *max((line(base) for base in bases[name] if base in bases), key=len, default=[])]

    def of_textual(name: str) -> bool:
        return any(base.startswith("textual") or (base in bases and of_textual(base)) for base in bases[name])

    return {name: line(name) for name in bases if of_textual(name)}


def _imported(module: Module) -> dict[str, str]:
    names = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            names.update({alias.asname or alias.name: alias.name for alias in node.names})
    return names


def _resolve(text: str, names: dict[str, str]) -> str:
    head, dot, rest = text.partition(".")
    return names.get(head, head) + dot + rest


def engine_lines(modules: Iterable[Module]) -> tuple[list[str], list[str]]:
    """Lines outside engines/ that compare the name of an engine, and all that hold one as a string."""
    compared: set[str] = set()
    held: set[str] = set()
    for module in modules:
        if _top(module.name) == "engines":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and node.value in ENGINES:
                held.add(f"{_short(module.name)}:{node.lineno}")
            if isinstance(node, (ast.Compare, ast.MatchValue)):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and part.value in ENGINES:
                        compared.add(f"{_short(module.name)}:{part.lineno}")
    return sorted(compared), sorted(held)


# -- the table --------------------------------------------------------------------------------------------------------


def count(root: Path) -> dict[str, Any]:
    """Every figure of a checkout, as JSON values. Raises OSError where there is no checkout."""
    modules, tests = product(root), list(read(root / "tests", "tests"))
    graph_names = {module.name for module in modules}
    graph = {module.name: imports(module, graph_names) for module in modules}
    levels = floors(tests)
    names, everywhere = identifiers(modules), identifiers(modules + tests)
    same, same_inside = twins(modules)
    lines = {_short(name): [_short(part) for part in line] for name, line in chains(modules).items()}
    deep = sorted((line for line in lines.values() if len(line) > 2), key=len, reverse=True)
    compared, held = engine_lines(modules)
    test_files = [(m.name.removeprefix("tests."), m.tree) for m in tests if m.path.name.startswith("test_")]
    held_by_tests = sentences(test_files, wording_of(m.tree for m in modules))
    by_file = Counter(name.partition("::")[0] for name in held_by_tests.asserted)
    return {
        "files": {"product": len(modules), "tests": len(tests)},
        "lines": {"product": sum(m.lines for m in modules), "tests": sum(m.lines for m in tests)},
        "files_over_400": sum(module.lines > LONG_FILE for module in modules),
        "files_over_600": sum(module.lines > LONGEST_FILE for module in modules),
        "longest_files": {_short(module.name): module.lines for module in sorted(modules, key=lambda m: -m.lines)[:5]},
        "rooms": dict(sorted(Counter(m.room for m in modules).items())),
        "classes_of_same_name": same,
        "classes_of_same_name_with_inner": same_inside,
        "words": {word: {"product": names[word], "with_tests": everywhere[word]} for word in WORDS},
        "modules_named_so": sorted(_short(m.name) for m in modules if m.name.rpartition(".")[2] in WORDS),
        "circles": [[_short(name) for name in group] for group in circles(graph)],
        "floors_known": len(levels),
        "upward_imports": upward(graph, levels),
        "rooms_that_import_each_other": mutual(graph),
        "tests": held_by_tests.tests,
        "tests_with_sentence": len(held_by_tests.asserted),
        "tests_with_sentence_of_product": len(held_by_tests.ours),
        "tests_with_any_sentence": len(held_by_tests.held),
        "tests_with_sentence_by_file": dict(by_file.most_common()),
        "longest_chain": max(map(len, lines.values()), default=0),
        "chains_of_three_and_more": deep,
        "engine_names_compared": len(compared),
        "engine_names_compared_at": compared,
        "engine_names_compared_by_room": dict(Counter(place.partition(".")[0] for place in compared).most_common()),
        "engine_names_as_strings": len(held),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as lines for people."""
    rooms, same, inner = (figures[k] for k in ("rooms", "classes_of_same_name", "classes_of_same_name_with_inner"))
    words = "  ".join(f"{word} {n['product']}/{n['with_tests']}" for word, n in figures["words"].items())
    longest = ", ".join(f"{name} {lines}" for name, lines in figures["longest_files"].items())
    rows = [
        ("files", "{product} product, {tests} tests".format(**figures["files"])),
        ("lines", "{product} product, {tests} tests".format(**figures["lines"])),
        ("long files", f"{figures['files_over_400']} > 400, {figures['files_over_600']} > 600 lines ({longest})"),
        ("rooms", "  ".join(f"{name} {files}" for name, files in rooms.items())),
        ("class names", f"{len(same)} used more than once, {len(inner)} with classes inside of classes"),
        *(("", f"{name}: {', '.join(homes)}") for name, homes in same.items()),
        ("words", f"(product/with tests) {words}"),
        ("", f"modules named so: {', '.join(figures['modules_named_so']) or 'none'}"),
        ("circles", str(len(figures["circles"]))),
        *(("", " <-> ".join(group)) for group in figures["circles"]),
        (
            "upward",
            f"{len(figures['upward_imports'])} imports of a higher floor ({figures['floors_known']} names listed)",
        ),
        *(("", arrow) for arrow in figures["upward_imports"]),
        ("mutual", f"{', '.join(figures['rooms_that_import_each_other']) or 'no rooms import each other'}"),
        ("tests", f"{figures['tests']}, of which {figures['tests_with_sentence']} hold a sentence that is matched"),
        ("", f"{figures['tests_with_sentence_of_product']} of them in the product's words"),
        ("", f"{figures['tests_with_any_sentence']} hold any sentence, matched or not"),
        ("chain", f"{figures['longest_chain']} of our own classes at most"),
        *(("", " < ".join(line)) for line in figures["chains_of_three_and_more"][:8]),
        ("engines", f"{figures['engine_names_compared']} lines compare an engine's name outside engines/"),
        ("", "  ".join(f"{room} {lines}" for room, lines in figures["engine_names_compared_by_room"].items())),
        ("", f"{figures['engine_names_as_strings']} lines hold one as a string"),
    ]
    return "\n".join(f"{name:<12} {text}" for name, text in rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    options.add_argument("--json", action="store_true")
    wanted = options.parse_args()
    figures = count(wanted.root)
    sys.stdout.write((json.dumps(figures, indent=1) if wanted.json else table(figures)) + "\n")


if __name__ == "__main__":
    main()
