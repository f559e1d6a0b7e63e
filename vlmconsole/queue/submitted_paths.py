"""Settings that may be a file or a folder, as whoever queues them means them: a worker works in another folder."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from vlmconsole.runs.places import Places
from vlmconsole.scoring.python_scorer import PREFIX, names_function, split_name
from vlmconsole.system.typed_paths import Located, LocatedFunction, PathOrName, named


def located(
    model: type[BaseModel], spec: Mapping[str, Any], bases: Sequence[Path], places: Places, *, later: bool = True
) -> dict[str, Any]:
    """`spec` with every relative path made absolute, of the fields that may be one (`PathOrName`, or a Path).

    A path is what is there: from the first of `bases` that has it; with `later` also what is written like one, as a
    job before it may make it. A bare name that the lab or the package knows stays one. Raises LabError for a ~ of
    nobody.
    """
    settings = dict(spec)
    for name, info in model.model_fields.items():
        marked = any(isinstance(mark, Located) for mark in info.metadata) or _is_place(info.annotation)
        if marked and name in settings:
            settings[name] = _value(settings[name], bases, places, later)
        elif name in settings and _takes_function(info.metadata):
            settings[name] = _functions(settings[name], bases)
    return settings


def stated_functions(model: type[BaseModel], spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the functions in files that settings name, `[python:]FILE.py:FUNCTION`, as written."""
    for name, info in model.model_fields.items():
        if name in spec and _takes_function(info.metadata):
            yield from _named_functions(spec[name])


def _takes_function(metadata: Sequence[Any]) -> bool:
    return any(isinstance(mark, LocatedFunction) for mark in metadata)


def _named_functions(value: Any) -> Iterator[str]:
    if isinstance(value, str) and names_function(value):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _named_functions(item)
    elif isinstance(value, dict):
        yield from _named_functions(value.get("scorer"))


def _functions(value: Any, bases: Sequence[Path]) -> Any:
    """A function's file made absolute, in a name, a table's `scorer`, or a list of both."""
    if isinstance(value, list):
        return [_functions(item, bases) for item in value]
    if isinstance(value, dict) and "scorer" in value:
        return {**value, "scorer": _functions(value["scorer"], bases)}
    if not isinstance(value, str) or not names_function(value):
        return value
    file, function = split_name(value)
    path = named(file)
    place = next((base / path for base in bases if _exists(base / path)), bases[0] / path)
    return f"{PREFIX}{place.absolute()}:{function}"


def _is_place(annotation: Any) -> bool:
    return annotation in (Path, PathOrName) or any(_is_place(inner) for inner in get_args(annotation))


def _value(value: Any, bases: Sequence[Path], places: Places, later: bool) -> Any:
    if isinstance(value, str):
        return _text(value, bases, places, later)
    if isinstance(value, list):
        return [_value(item, bases, places, later) for item in value]
    return (
        {key: _value(item, bases, places, later) for key, item in value.items()} if isinstance(value, dict) else value
    )


def _text(text: str, bases: Sequence[Path], places: Places, later: bool) -> str:
    if not text or "${" in text or "\0" in text:  # the result of an earlier step is a path or a name already
        return text
    path = named(text)
    if path.is_absolute():
        return str(path)
    existing = [base / path for base in bases if _exists(base / path)]
    if existing and (len(path.parts) > 1 or path.suffix or not _known(text, places)):
        return str(existing[0].absolute())
    written = later and text.startswith(("./", "../"))
    return str((bases[0] / path).absolute()) if written else text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a path: a name at most
        return False


def _known(name: str, places: Places) -> bool:
    """Whether a bare name is one of the lab's own things, or of those that come with the package."""
    if any(_exists(folder / name) for folder in (places.datasets, places.adapters, places.runs)):
        return True
    presets = files("vlmconsole.presets")
    return any((folder / f"{name}.toml").is_file() for folder in (presets, *presets.iterdir()) if folder.is_dir())
