"""The Python environments that jobs run in: pinned files in ``presets/environments``, built below the lab home."""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places

BUILD_LIMIT = 3600  # seconds


class NoEnvironmentError(LabError):
    """An environment is unknown, not built, or does not import what it should; the message says which."""


@dataclass(frozen=True)
class Recipe:
    """How an environment is made: Python version, pinned requirements, and the imports that prove it works."""

    name: str
    title: str
    python: str  # a version, or ">=3.11": then this very Python does where it is new enough
    requirements: tuple[str, ...]
    check: tuple[str, ...]  # modules that must import
    platforms: tuple[str, ...] = ()
    index: str = ""
    disk_gb: float | None = None
    notes: str = ""


def recipes() -> dict[str, Recipe]:
    """The shipped recipes by name."""
    found = {}
    for entry in files("vlmconsole.presets").joinpath("environments").iterdir():
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            table: dict[str, Any] = tomllib.loads(entry.read_text("utf-8"))
            table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
            found[name] = Recipe(name=name, **table)
    return dict(sorted(found.items()))


def python_of(name: str, places: Places) -> Path:
    """The interpreter of a built environment (whether or not it is there)."""
    return places.environments / name / "bin" / "python"


def missing(name: Any, places: Places) -> str:
    """Why a job's environment cannot be entered, as a sentence; empty when it can."""
    if not name or python_of(str(name), places).exists():
        return ""
    return f"needs the environment {name}, which is not built: `vlmconsole env make {name}`"


def interpreter_of(name: Any, places: Places) -> Path:
    """The interpreter for a job: its environment's, or this one. Raises NoEnvironmentError."""
    why = missing(name, places)
    if why:
        raise NoEnvironmentError(why)
    return python_of(str(name), places) if name else Path(sys.executable)


def plan(recipe: Recipe, places: Places, core: str) -> list[list[str]]:
    """The commands that build it, in order: uv where it is installed, else venv and pip. ``core`` is what to install
    of vlmconsole itself (a path or a requirement), without extras, so that the worker runs there."""
    folder = str(places.environments / recipe.name)
    python = str(python_of(recipe.name, places))
    index = ["--extra-index-url", recipe.index] if recipe.index else []
    uv = shutil.which("uv")
    base = base_python(recipe)
    if uv:
        return [
            [uv, "venv", "--python", base, folder],
            [uv, "pip", "install", "--python", python, *index, *recipe.requirements],
            [uv, "pip", "install", "--python", python, core],
        ]
    return [
        [base if "/" in base else f"python{base}", "-m", "venv", folder],
        [python, "-m", "pip", "install", *index, *recipe.requirements],
        [python, "-m", "pip", "install", core],
    ]


def base_python(recipe: Recipe) -> str:
    """What the environment is made from: this Python's path where the recipe takes it, else a version to be found."""
    least = recipe.python.removeprefix(">=")
    if least == recipe.python:
        return recipe.python
    wanted = tuple(int(part) for part in least.split("."))
    return sys.executable if sys.version_info[: len(wanted)] >= wanted else least


def check(recipe: Recipe, places: Places) -> dict[str, str]:
    """Import the recipe's modules in the built environment: {module: version, or "! error"}. Raises if not built."""
    interpreter = interpreter_of(recipe.name, places)
    script = (
        "import importlib, json, sys\nfound = {}\nfor name in sys.argv[1:]:\n    try:\n"
        "        found[name] = [True, str(getattr(importlib.import_module(name), '__version__', 'imports'))]\n"
        "    except Exception as error:\n        found[name] = [False, f'{type(error).__name__}: {error}']\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(interpreter), "-P", "-c", script, *recipe.check, "vlmconsole.jobs.worker"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        return {"python": f"! {done.stderr.strip().splitlines()[-1:]}"}
    found: dict[str, list[Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: text if fine else f"! {text}" for name, (fine, text) in found.items()}
