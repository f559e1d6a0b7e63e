"""The Python environments that jobs run in: pinned files in `presets/environments`, built below the lab home."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places
from vlmconsole.system.locking import take

BUILD_LIMIT = 3600  # seconds
CHECK_LIMIT = 1200  # seconds: on a busy machine verl's trainer alone took 67 to import


class NoEnvironmentError(LabError):
    """An environment is unknown, not built, or does not import what it should; the message says which."""

    code = "environment-missing"


@dataclass(frozen=True)
class EnvironmentRecipe:
    """How an environment is made: Python version, pinned requirements, and the imports that prove it works."""

    name: str
    title: str
    python: str  # a version, or ">=3.11": then this very Python does where it is new enough
    requirements: tuple[str, ...]
    check: tuple[str, ...]  # modules that must import
    gpu_check: tuple[str, ...] = ()  # and those that can only where there is NVIDIA's driver
    platforms: tuple[str, ...] = ()
    disk_gb: float | None = None
    notes: str = ""


def recipes() -> dict[str, EnvironmentRecipe]:
    """Return the shipped recipes by name."""
    known = {}
    for entry in files("vlmconsole.presets").joinpath("environments").iterdir():
        if entry.name.endswith(".toml"):
            name = entry.name.removesuffix(".toml")
            table: dict[str, Any] = tomllib.loads(entry.read_text("utf-8"))
            table = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
            known[name] = EnvironmentRecipe(name=name, **table)
    return dict(sorted(known.items()))


def is_name(name: str) -> bool:
    """Return whether it can be an environment's name: a folder right inside the lab's environments, and nowhere
    else.
    """
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", name) is not None


def python_of(name: str, places: Places) -> Path:
    """Return the interpreter of a built environment (whether or not it is there). Raises NoEnvironmentError for a
    path.
    """
    if not is_name(name):
        raise NoEnvironmentError(f"{name!r} is no name of an environment.", "`vlmconsole env list` shows them.")
    return places.environments / name / "bin" / "python"


def marker(name: str, places: Places) -> Path:
    """Return the file that is there from the first step of building until all imports are proven."""
    return places.environments / f".{name}.making"


def condition(name: str, places: Places) -> str:
    """`built`, `unfinished` (its making goes on, or was stopped, or failed) or `not built`."""
    if not python_of(name, places).exists():
        return "not built"
    return "unfinished" if marker(name, places).exists() else "built"


@contextmanager
def building(name: str, places: Places) -> Iterator[bool]:
    """While it is built, by one process at a time; gives whether it is to be made from nothing.

    What an earlier one that did not end has left is removed first. Without an exception the environment counts as
    built afterwards. Raises NoEnvironmentError when another process is at it.
    """
    places.environments.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = condition(name, places)
    descriptor = take(marker(name, places))
    if descriptor is None:
        raise NoEnvironmentError(
            f"{name} is being made by another process.", "Wait for its end.", code="environment-busy"
        )
    try:
        folder = places.environments / name
        if left != "built" and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        yield left != "built"
        marker(name, places).unlink()
    finally:
        os.close(descriptor)


def missing(name: Any, places: Places) -> str:
    """Return why a job's environment cannot be entered, as a sentence; empty when it can."""
    if name and not is_name(str(name)):
        return f"names {name} as its environment, which is none of this lab's: `vlmconsole env list`"
    now = condition(str(name), places) if name else "built"
    if now == "built":
        return ""
    return f"needs the environment {name}, which is {now}: `vlmconsole env make {name}`"


def interpreter_of(name: Any, places: Places, proven: bool = True) -> Path:
    """Return the interpreter for a job: its environment's, or this one. `proven`: only of one whose building has ended.

    Raises NoEnvironmentError.
    """
    why = missing(name, places)
    if why and (proven or not python_of(str(name), places).exists()):
        raise NoEnvironmentError(why)
    return python_of(str(name), places) if name else Path(sys.executable)


def plan(recipe: EnvironmentRecipe, places: Places, core: str, anew: bool = True) -> list[list[str]]:
    """Return the commands that build it, in order: uv where it is installed, else venv and pip. `core` is what to
    install
    of vlmconsole itself (a path or a requirement), without extras, so that the worker runs there. Without `anew` one
    that is built is only brought to its pins."""
    folder = str(places.environments / recipe.name)
    python = str(python_of(recipe.name, places))
    uv = shutil.which("uv")
    base = base_python(recipe)
    if uv:
        make = [uv, "venv", "--python", base, folder]
        install = [uv, "pip", "install", "--python", python]
    else:
        make = [base if "/" in base else f"python{base}", "-m", "venv", folder]
        install = [python, "-m", "pip", "install"]
    return [*([make] if anew else []), [*install, *recipe.requirements], [*install, core]]


def base_python(recipe: EnvironmentRecipe) -> str:
    """Return what the environment is made from: this Python's path where the recipe takes it, else a version to be
    found.
    """
    least = recipe.python.removeprefix(">=")
    if least == recipe.python:
        return recipe.python
    wanted = tuple(int(part) for part in least.split("."))
    return sys.executable if sys.version_info[: len(wanted)] >= wanted else least


def off_pins(recipe: EnvironmentRecipe, places: Places) -> dict[str, str]:
    """Return what a built environment holds otherwise than its recipe says: {package: version there, or "missing"}.

    Read from what is installed, nothing is imported (`check` does that). Raises NoEnvironmentError.
    """
    wanted = [Requirement(line) for line in (*recipe.requirements, "vlmconsole")]
    wanted = [need for need in wanted if need.marker is None or need.marker.evaluate()]
    script = (
        "import json, sys\nfrom importlib import metadata\nfound = {}\nfor name in sys.argv[1:]:\n    try:\n"
        "        found[name] = metadata.version(name)\n    except metadata.PackageNotFoundError:\n"
        "        found[name] = ''\nprint(json.dumps(found))"
    )
    command = [str(interpreter_of(recipe.name, places)), "-P", "-c", script, *(need.name for need in wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        versions: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NoEnvironmentError(f"The Python of {recipe.name} does not run ({error}).") from None
    bad = [need for need in wanted if not (have := versions[need.name]) or not need.specifier.contains(have, True)]
    return {need.name: versions[need.name] or "missing" for need in bad}


CHECKING = """
import ctypes, importlib, json, sys
always = sys.argv[1].split(",")
try:
    ctypes.CDLL("libcuda.so.1")
    driver = True
except OSError:
    driver = False
found = {}
for name in [*always, *filter(None, sys.argv[2].split(","))]:
    if not driver and name not in always:
        found[name] = "? not proven here: it needs NVIDIA's driver, which this machine has not"
        continue
    try:
        found[name] = str(getattr(importlib.import_module(name), "__version__", "imports"))
    except Exception as error:
        found[name] = f"! {type(error).__name__}: {' '.join(str(error).split())[:300]}"
print(json.dumps(found))
"""


def check(recipe: EnvironmentRecipe, places: Places) -> dict[str, str]:
    """Import the recipe's modules in the built environment: {module: version, "! error", or "? why it was not tried"}.

    Raises NoEnvironmentError when it is not built.
    """
    interpreter = interpreter_of(recipe.name, places, proven=False)
    always = ",".join([*recipe.check, "vlmconsole.jobs.worker"])
    command = [str(interpreter), "-P", "-c", CHECKING, always, ",".join(recipe.gpu_check)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"python": f"! {error}"}
    if done.returncode:
        return {"python": f"! {' '.join(done.stderr.strip().splitlines()[-1:])}"}
    imports: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return imports
