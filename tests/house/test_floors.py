"""The floors of the house: who may import whom, and what may be heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from folders import ROOT
from rooms import LEVEL, with_table

MAPPED = {
    "screens": ROOT / "screens",
    "jobs": ROOT / "jobs",
    "presets": ROOT / "presets",
    "assets": ROOT / "assets",
}
HEAVY = {"torch", "transformers", "peft", "mlx", "mlx_vlm", "verl", "ray"}
#: Rooms that hold models in memory.
MODELS_IN_MEMORY = {"training", "toy"}
#: The inside of a job's run: imported by its kind only when it runs, so these may import training/ at their head.
IN_A_RUN = {"jobs.sft_run", "jobs.sft_dev"}
SCREEN_ONLY = {"textual", "textual_plot"}


def shipped() -> list[tuple[str, Path]]:
    """(dotted module without `vlmconsole.`, file) of every Python file that ships."""
    found = [(path.relative_to(ROOT / "vlmconsole"), path) for path in (ROOT / "vlmconsole").rglob("*.py")]
    for name, folder in MAPPED.items():
        found += [(Path(name) / path.relative_to(folder), path) for path in folder.rglob("*.py")]
    return [(".".join(rel.with_suffix("").parts), path) for rel, path in found]


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only type checking reads."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from runtime_nodes(child)


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, whether at import time) of every import of a file; imports for type checking do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy: set[int] = set()
    typing_only: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lazy.update(id(inner) for inner in ast.walk(node))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(id(inner) for inner in ast.walk(node))
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which floor is meant"
            base = node.module or ""
            found += [
                (f"{base}.{alias.name}" if base == "vlmconsole" else base, id(node) not in lazy) for alias in node.names
            ]
    return found


@pytest.mark.parametrize(("module", "path"), shipped(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_file_imports_only_from_its_floor_or_below(module: str, path: Path) -> None:
    own = module.split(".")[0]
    if own == "__init__":
        return
    for name, eager in imports(path):
        head, _, rest = name.partition(".")
        if head == "vlmconsole" and rest:
            other = rest.split(".")[0]
            if other != "__version__" and (module, rest) != ("engines.mlx", "servers.processes"):
                assert LEVEL[other] <= LEVEL[own], f"{path}: {other} does not stand before {own}"
            if own == "screens":
                assert other != "jobs", f"{path}: screens never import jobs"
            if rest in IN_A_RUN:
                assert not eager or module in IN_A_RUN, f"{path}: {rest} is imported only inside a job's run"
            if other in MODELS_IN_MEMORY and own not in MODELS_IN_MEMORY and module not in IN_A_RUN:
                assert not eager, f"{path}: {other}/ is imported only inside a job's run"
        if head in SCREEN_ONLY:
            assert own in {"screens", "app"}, f"{path} imports {name}"
        if head in HEAVY and own not in MODELS_IN_MEMORY:
            assert not eager, f"{path} imports {name} at import time"


def test_every_package_folder_is_listed_for_the_wheel() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    have = {
        "vlmconsole" + ("." + m.removesuffix("__init__").strip(".") if m != "__init__" else "")
        for m, p in shipped()
        if p.name == "__init__.py"
    }
    assert {name.rstrip(".") for name in have} == listed


def test_the_core_imports_without_screens_and_without_heavy_stacks() -> None:
    modules = [
        m
        for m, _ in shipped()
        if m.split(".")[0] not in {"screens", "app", *MODELS_IN_MEMORY, "__main__"} and not m.endswith("__main__")
    ]
    names = [
        "vlmconsole." + m.removesuffix(".__init__") for m in modules if m != "__init__" and m != "engines.mlx_server"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"bad = {sorted(HEAVY | SCREEN_ONLY)!r}\n"
        "print([name for name in bad if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_files_stay_small() -> None:
    # Most are far below 400. Past that one looks for two things in one file; a class is never cut to fit a number.
    long = {str(path.relative_to(ROOT)): n for _, path in shipped() if (n := len(path.read_text().splitlines())) > 600}
    assert not long, f"files past 600 lines: {long}"


def test_the_first_frame_does_not_wait_for_what_comes_after_it() -> None:
    """Before its first paint the console imports no text area, no pictures, no network: a cold start is measured."""
    code = (
        "import sys, vlmconsole.app;"
        "late = ('textual.widgets._text_area', 'PIL', 'httpx', 'pydantic');"
        "print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = (
        "import sys, vlmconsole.screens.chat.screen, vlmconsole.chats.store;"
        "print([name for name in ('PIL', 'httpx', 'pydantic', 'vlmconsole.vision.images') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "what opens with the first conversation"


def test_a_home_is_read_out_of_a_path_in_one_place() -> None:
    """pathlib's own way raises RuntimeError for a user that is not there, which no caller expects."""
    users = {name for name, path in shipped() if ".expanduser(" in path.read_text(encoding="utf-8")}
    assert users == {"system.typed_paths", "vision.paths"}  # the latter takes what is no user's home as it is written


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Circles, lazy imports among them: what is cut in two must be two."""
    modules = {"vlmconsole." + m.removesuffix(".__init__"): path for m, path in shipped()}
    arrows = {
        module: {name for name in used_modules(path, modules) if name != module} for module, path in modules.items()
    }
    arrows["vlmconsole.screens.pictures.picture"].discard("vlmconsole.screens.pictures.graphics")
    TopologicalSorter(arrows).prepare()  # CycleError names the files


def used_modules(path: Path, modules: dict[str, Path]) -> set[str]:
    """Every module of ours that a file imports, whether at its head or inside a function."""
    used: set[str] = set()
    for node in runtime_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used |= {
                full if (full := f"{node.module}.{alias.name}") in modules else str(node.module) for alias in node.names
            }
    return used & modules.keys()


def test_the_table_of_rooms_in_contributing_is_this_house() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert with_table(page) == page, "run: python tests/lab/rooms.py"
    rooms = {module.split(".")[0] for module, _ in shipped()} - {"__init__"}
    assert rooms == set(LEVEL)
