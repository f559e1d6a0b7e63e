"""`vlmconsole env list | make NAME`: the Python environments of the heavy stacks."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any

import typer

import vlmconsole
from vlmconsole.cli.common import FAILED, USAGE, emit, fail, say, state
from vlmconsole.queue import environments
from vlmconsole.text.signs import QUIET, sign_of


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Python environments for SGLang, MLX-VLM and verl.")
    group.command("list")(list_command)
    group.command("make")(make)
    app.add_typer(group, name="env")


def list_command(
    check: Annotated[bool, typer.Option("--check", help="Import what each built environment should hold")] = False,
) -> None:
    """The environments, and which of them are built. With --check, exit 1 when one does not import what it should."""
    places = state.lab.places
    rows: list[dict[str, Any]] = []
    for recipe in environments.recipes().values():
        now = environments.condition(recipe.name, places)
        row: dict[str, Any] = {"name": recipe.name, "title": recipe.title, "python": recipe.python, "state": now}
        row["built"] = now == "built"
        row["path"] = str(places.environments / recipe.name)
        if check and now != "not built":
            row["check"] = _checked(recipe)
            row["imports"] = not any(text.startswith("! ") for text in row["check"].values())
        rows.append(row)
    lines = []
    for row in rows:
        broken = row.get("imports") is False
        word = "broken" if broken else row["state"]
        lines.append(f"{sign_of(word, QUIET).mark} {word:10}  {row['name']:16} {row['title']}")
        again = f"vlmconsole env make {row['name']}"
        lines += [f"      does not import all it should: `{again}` brings it to its pins"] if broken else []
        lines += [f"      {name}: {text}" for name, text in row.get("check", {}).items()]
    emit({"environments": rows}, "\n".join(lines))
    if any(row.get("imports") is False for row in rows):
        raise typer.Exit(FAILED)


def make(
    name: Annotated[str, typer.Argument(help="Environment name; see `vlmconsole env list`")],
    plan: Annotated[bool, typer.Option("--plan", help="Print the commands; run nothing")] = False,
) -> None:
    """Build an environment from its pinned file, and prove that it imports."""
    known = environments.recipes()
    if name not in known:
        fail(f"No environment “{name}”.", f"there are: {', '.join(known)}", USAGE)
    recipe, places = known[name], state.lab.places
    folder = places.environments / name
    if plan:
        steps = environments.plan(recipe, places, _core(), environments.condition(name, places) != "built")
        value = {"name": name, "path": str(folder), "commands": steps, "checks": [*recipe.check, *recipe.gpu_check]}
        size = f"about {recipe.disk_gb:g} GB of disk\n" if recipe.disk_gb else ""
        emit(value | {"disk_gb": recipe.disk_gb}, size + "\n".join(" ".join(step) for step in steps))
        return
    if recipe.platforms and sys.platform not in recipe.platforms:
        fail(f"{name} can be built on {', '.join(recipe.platforms)} only; this is {sys.platform}.")
    with environments.building(name, places) as anew:
        for step in environments.plan(recipe, places, _core(), anew):
            _do(step, recipe)
        installed = _checked(recipe)
        bad = [module for module, text in installed.items() if text.startswith("! ")]
        if bad:
            fail(f"{name} was built, but {', '.join(bad)} cannot be imported.", installed[bad[0]][2:], check=installed)
    lines = [f"{name} is built and imports correctly: {folder}"]
    lines += [f"  {module}: {text[2:]}" for module, text in installed.items() if text.startswith("? ")]
    emit({"name": name, "path": str(folder), "check": installed}, "\n".join(lines))


def _checked(recipe: environments.EnvironmentRecipe) -> dict[str, str]:
    """As `environments.check`, which is silent for minutes where the imports are large and the disk is cold."""
    say(f"importing what {recipe.name} should hold: {', '.join([*recipe.check, *recipe.gpu_check])}")
    return environments.check(recipe, state.lab.places)


def _do(step: list[str], recipe: environments.EnvironmentRecipe) -> None:
    """One command of the building. Raises Failure, and leaves what is there to the next `env make`."""
    say("$ " + " ".join(step))
    try:
        done = subprocess.run(step, stdout=sys.stderr, timeout=environments.BUILD_LIMIT)
    except FileNotFoundError:
        fail(f"{step[0]} is not installed.", f"{recipe.name} needs Python {recipe.python}; uv can fetch it by itself")
    except subprocess.TimeoutExpired:
        fail(f"Building {recipe.name} took more than {environments.BUILD_LIMIT // 60} minutes and was stopped.")
    if done.returncode == 127:  # a version manager's stand-in for a Python that is not there
        fail(f"{step[0]} cannot be run here.", f"{recipe.name} needs Python {recipe.python}; uv can fetch it by itself")
    if done.returncode:
        fail(f"Building {recipe.name} failed (exit {done.returncode}).", "`vlmconsole env make` rebuilds it")


def _core() -> str:
    """What to install of vlmconsole: this very source tree when it runs from one, else this version."""
    tree = Path(vlmconsole.__file__).resolve().parent.parent
    if (tree / "pyproject.toml").exists():
        return str(tree)
    try:
        return f"vlmconsole=={distribution('vlmconsole').version}"
    except PackageNotFoundError:
        return f"vlmconsole=={vlmconsole.__version__}"
