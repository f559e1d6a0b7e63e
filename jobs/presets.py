"""Presets: a kind of job with its settings, in TOML. Shipped ones below `presets/`, the user's in the lab home."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vlmconsole.errors import LabError
from vlmconsole.jobs.kinds import load_kind
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import UnreadableError, read_text, toml_table
from vlmconsole.text.settings_errors import explain_all, is_model, plain_types

# These folders hold other things than jobs: server profiles, Python environments.
OTHER = frozenset({"servers", "environments"})


class PresetError(LabError):
    """A preset or a setting is wrong; the message names the key and what is allowed."""

    exit_status = 2


@dataclass(frozen=True)
class Preset:
    """One preset. `queue` holds what the queue needs to know: device, environment, needs, retries, limits."""

    name: str
    kind: str
    title: str
    spec: dict[str, Any]
    notes: str = ""
    queue: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    proposed: tuple[str, ...] = ()  # settings that follow from the data where nobody gives them


def list_presets(places: Places | None = None) -> list[Preset]:
    """Return every job preset, by name; one of the user's hides a shipped one of the same name. Broken files raise."""
    by_name = {preset.name: preset for preset in _shipped()}
    if places is not None and places.presets.is_dir():
        for path in sorted(places.presets.glob("*.toml")):
            preset = _parse(path.stem, _text(path), str(path))
            if preset is not None:
                by_name[preset.name] = preset
    return sorted(by_name.values(), key=lambda preset: preset.name)


def load_preset(name: str, places: Places | None = None) -> Preset:
    """Return the preset called `name`, or the TOML file at that path. Raises PresetError with the nearest name."""
    if name.endswith(".toml") and Path(name).exists():
        preset = _parse(Path(name).stem, _text(Path(name)), name)
        if preset is None:
            raise PresetError(f"{name} is no job preset: it has no `kind`")
        return preset
    presets = {preset.name: preset for preset in list_presets(places)}
    if name in presets:
        return presets[name]
    close = difflib.get_close_matches(name, presets, n=1)
    hint = f" Did you mean “{close[0]}”?" if close else ""
    raise PresetError(
        f"no preset is called “{name}”.{hint} `vlmconsole jobs presets` lists them.", code="preset-missing"
    )


def overlay(preset: Preset, sets: list[str] | None = None) -> BaseModel:
    """Return the preset's spec with each `key=value` laid over it, validated by its kind.

    Values are read as TOML (`3`, `true`, `[1, 2]`) and else as plain text; `a.b=1` reaches into a table.
    Raises PresetError naming the key, and UnknownKindError.
    """
    return validate(load_kind(preset.kind).spec, lay_over(preset, sets or ()), preset.name)


def lay_over(preset: Preset, sets: Sequence[str]) -> dict[str, Any]:
    """Return the preset's settings with each `key=value` laid over them, not yet validated."""
    spec = _copy(preset.spec)
    for item in sets:
        key, equals, text = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise PresetError(f"`--set {item}`: write it as key=value")
        place = spec
        *path, last = key.split(".")
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                raise PresetError(f"`--set {item}`: {step} is {inner!r} and has no keys")
            place = inner
        place[last] = parse_value(text.strip())
    return spec


def validate(model: type[BaseModel], spec: dict[str, Any], name: str) -> BaseModel:
    """`spec` as `model`; PresetError names every wrong key and what it may be."""
    if wrong := odd_number(spec) or no_number(model, spec):
        raise PresetError(f"{name}: {wrong}", code="setting-invalid")
    try:
        return model.model_validate(spec)
    except ValidationError as error:
        raise PresetError(f"{name}: {explain_all(error.errors(), model, None)}", code="setting-invalid") from None


def odd_number(value: Any, key: str = "") -> str:
    """Return which number of some settings no job can take, in words; "" for none. Files and libraries hold 64 bits."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        faults = (odd_number(item, f"{key}.{name}" if key else str(name)) for name, item in inner)
        return next(filter(None, faults), "")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"“{key}” is a whole number of {value.bit_length()} bits: write one of at most 64"
    if isinstance(value, float) and not math.isfinite(value):
        return f"“{key}” is {value}: write a finite number"
    return ""


def no_number(model: type[BaseModel], spec: Mapping[str, Any], before: str = "") -> str:
    """Return which key that takes numbers was given something that only passes for one (true, "NaN"); "" for none."""
    for name, value in spec.items():
        key, info = f"{before}{name}", model.model_fields.get(name)
        if info is None:
            continue
        kinds = set(plain_types(info.annotation))
        models = [kind for kind in kinds if is_model(kind)]
        if isinstance(value, dict) and models:
            if wrong := no_number(models[0], value, f"{key}."):
                return wrong
        elif kinds & {int, float} and not kinds & {bool, str, Any}:
            for element in value if isinstance(value, list) else [value]:
                if isinstance(element, bool):
                    return f"“{key}” is {str(value).lower()}: write a {'whole ' if float not in kinds else ''}number"
                if isinstance(element, str) and element.strip().lower().lstrip("+-") in ("nan", "inf", "infinity"):
                    return f"“{key}” is {element}: write a finite number"
    return ""


def parse_value(text: str) -> Any:
    """Return a value from the command line: TOML where it is one, plain text otherwise."""
    try:
        return toml_table(f"value = {text}", "the value")["value"]
    except UnreadableError:  # no TOML, a number of thousands of digits, brackets without end
        return text


def _copy(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, dict) else value for key, value in table.items()}


def _shipped() -> Iterator[Preset]:
    def walk(folder: Traversable) -> Iterator[Preset]:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name not in OTHER:
                    yield from walk(entry)
            elif entry.name.endswith(".toml"):
                preset = _parse(entry.name[: -len(".toml")], entry.read_text("utf-8"), f"shipped {entry.name}")
                if preset is not None:
                    yield preset

    yield from walk(files("vlmconsole.presets"))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except UnreadableError as error:
        raise PresetError(error.message, code=error.code) from None


def _parse(name: str, text: str, source: str) -> Preset | None:
    try:
        table = toml_table(text, source)
    except UnreadableError as error:
        raise PresetError(error.message, code=error.code) from None
    if "kind" not in table:
        return None
    unknown = set(table) - {"kind", "title", "spec", "notes", "queue", "proposed"}
    if unknown:
        allowed = "kind, title, notes, proposed, [spec], [queue]"
        raise PresetError(
            f"{source}: there is no key “{sorted(unknown)[0]}” in a preset (keys: {allowed})", code="preset-invalid"
        )
    if not isinstance(table.get("spec", {}), dict):
        raise PresetError(f"{source}: spec is {table['spec']!r}, not a table [spec] of settings", code="preset-invalid")
    proposed = table.get("proposed", [])
    if not isinstance(proposed, list) or not all(isinstance(key, str) for key in proposed):
        raise PresetError(f"{source}: proposed is {proposed!r}, not a list of settings", code="preset-invalid")
    return Preset(
        name,
        str(table["kind"]),
        str(table.get("title", name)),
        table.get("spec", {}),
        str(table.get("notes", "")),
        table.get("queue", {}),
        source,
        tuple(proposed),
    )
