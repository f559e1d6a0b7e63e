"""Presets as forms: each setting with its kind, help, limits and value, checked as it is typed; and as a command."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from vlmconsole.jobs.kinds import UnknownKindError, load_kind
from vlmconsole.jobs.presets import (
    Preset,
    PresetError,
    lay_over,
    list_presets,
    load_preset,
    no_number,
    odd_number,
    parse_value,
)
from vlmconsole.queue.adding import Planned, merge, plan, with_proposals
from vlmconsole.queue.flows import read_flow, sources
from vlmconsole.runs.places import Places
from vlmconsole.text.settings_errors import explain
from vlmconsole.text.toml import toml_value

FieldKind = Literal["whole number", "number", "yes or no", "choice", "text", "list", "table"]
FLOWS = "Several steps as one"


@dataclass(frozen=True)
class PresetEntry:
    """A preset in the list to choose from, under the title of its kind."""

    name: str
    kind: str
    title: str
    group: str
    notes: str
    source: str


@dataclass(frozen=True)
class FormField:
    """One setting. `key` is what `--set` takes, `value` the preset's own as text, `allowed` its limits."""

    key: str
    label: str
    kind: FieldKind
    value: str
    help: str = ""
    unit: str = ""
    allowed: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    proposed: bool = False  # blank: follows from the data


@dataclass(frozen=True)
class FormGroup:
    """Fields under a title: "" for a preset's own, the name of the step in a flow."""

    title: str
    fields: tuple[FormField, ...]


def catalogue(places: Places) -> tuple[list[PresetEntry], str]:
    """Return every preset, by the title of its kind and then by name; and what is wrong with a user's file, or ""."""
    wrong = ""
    try:
        presets = list_presets(places)
    except PresetError as error:
        presets, wrong = list_presets(None), str(error)
    entries = [PresetEntry(p.name, p.kind, p.title, _group(p.kind, places), p.notes.strip(), p.source) for p in presets]
    return sorted(entries, key=lambda entry: (entry.group, entry.name)), wrong


def _group(kind: str, places: Places) -> str:
    if kind == "flow":
        return FLOWS
    try:
        return load_kind(kind, places).title
    except UnknownKindError:
        return kind


def form(name: str, places: Places) -> list[FormGroup]:
    """Return the form of a preset. Raises LabError when there is no such preset or kind."""
    preset = load_preset(name, places)
    if preset.kind != "flow":
        return [FormGroup("", tuple(_fields(load_kind(preset.kind, places).spec, preset.spec, "", preset.proposed)))]
    groups = []
    for step in read_flow(preset.name, preset.spec).steps:
        own = load_preset(step.preset, places)
        spec = merge(own.spec, step.set)
        title = f"{step.name}: {own.title}"
        groups.append(FormGroup(title, tuple(_fields(load_kind(own.kind, places).spec, spec, f"{step.name}."))))
    return groups


def _fields(
    model: type[BaseModel], spec: Mapping[str, Any], prefix: str, proposed: Sequence[str] = ()
) -> Iterator[FormField]:
    schemas = model.model_json_schema()
    for name, info in model.model_fields.items():
        inner = _model_of(info.annotation)
        value = spec.get(name)
        if inner is not None and (value is None or isinstance(value, dict)):
            yield from _fields(inner, value or {}, f"{prefix}{name}.")
            continue
        schema = _plain(schemas["properties"].get(name, {}), schemas.get("$defs", {}))
        open_to_data = name in proposed and name not in spec
        if name not in spec and not info.is_required() and not open_to_data:
            value = info.get_default(call_default_factory=True)
        more = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        choices = tuple(str(choice) for choice in schema.get("enum", ()))
        yield FormField(
            f"{prefix}{name}",
            f"{prefix.partition('.')[2]}{name}",
            _kind(schema, choices),
            as_text(value),
            info.description or "",
            str(more.get("unit", "")),
            _allowed(schema, choices),
            choices,
            info.is_required(),
            open_to_data,
        )


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a nested table; one that may be left out is edited as a whole."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _plain(schema: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a value without its wrappings: references followed, "or nothing" left out."""
    if "$ref" in schema:
        return _plain(named.get(str(schema["$ref"]).rpartition("/")[2], {}), named)
    if "const" in schema:
        return {**schema, "enum": [schema["const"]]}
    options = [option for option in schema.get("anyOf", schema.get("allOf", ())) if option.get("type") != "null"]
    return _plain(options[0], named) if len(options) == 1 else dict(schema)


def _kind(schema: Mapping[str, Any], choices: Sequence[str]) -> FieldKind:
    if choices:
        return "choice"
    kinds: dict[object, FieldKind] = {
        "integer": "whole number",
        "number": "number",
        "boolean": "yes or no",
        "array": "list",
        "object": "table",
    }
    return kinds.get(schema.get("type"), "text")


def _allowed(schema: Mapping[str, Any], choices: Sequence[str]) -> str:
    if choices:
        return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
    signs = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
        "multipleOf": "in steps of",
    }
    limits = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if isinstance(schema.get(key), int | float)]
    return ", ".join(limits)


def as_text(value: Any) -> str:
    """Return a setting as one types it: nothing for None, `true`, `0.001`, `[1, 2]`, plain text as it is."""
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def sets(groups: Sequence[FormGroup], values: Mapping[str, str]) -> list[str]:
    """`key=value` of every field that differs from the preset, as `--set` takes it. Blank is the preset's own."""
    changed = []
    for field in (field for group in groups for field in group.fields):
        text = values.get(field.key, field.value).strip()
        if not text or text == field.value.strip():
            continue
        if field.kind == "table":
            changed.append(f"{field.key}={toml_value(parse_json(text))}")
            continue
        # A text that looks like a number or a list stays a text.
        quoted = field.kind in ("text", "choice") and not isinstance(parse_value(text), str)
        changed.append(f"{field.key}={toml_value(text) if quoted else text}")
    return changed


def parse_json(text: str) -> Any:
    """Return a table as it was typed, or the text itself when it is none (its check then says what is wrong)."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def problems(name: str, changes: Sequence[str], places: Places) -> dict[str, str]:
    """Return what is wrong with which key, in words that say what it may be; key "" for the whole. Empty when all is
    well.
    """
    preset = load_preset(name, places)
    if preset.kind != "flow":
        return dict(_problems(preset, changes, "", places))
    by_field: dict[str, str] = {}
    for step in read_flow(preset.name, preset.spec).steps:
        own = load_preset(step.preset, places)
        own = Preset(own.name, own.kind, own.title, merge(own.spec, step.set))
        mine = [change.removeprefix(f"{step.name}.") for change in changes if change.startswith(f"{step.name}.")]
        by_field |= dict(_problems(own, mine, f"{step.name}.", places))
    return by_field


def _problems(preset: Preset, changes: Sequence[str], prefix: str, places: Places) -> Iterator[tuple[str, str]]:
    kind = load_kind(preset.kind, places)
    model = kind.spec
    try:
        spec, _ = with_proposals(kind, preset, lay_over(preset, changes), places)
        if wrong := odd_number(spec) or no_number(model, spec):
            yield prefix + wrong.split("“", 1)[-1].split("”", 1)[0], wrong
            return
        model.model_validate(spec)
    except PresetError as error:
        yield prefix, error.message
    except ValidationError as error:
        for problem in error.errors():
            if not sources(problem.get("input")):  # the result of an earlier step is not known yet
                path = [str(part) for part in problem["loc"] if not isinstance(part, int)]
                yield prefix + ".".join(path), explain(problem, model)


def planned(name: str, changes: Sequence[str], places: Places, alone: bool = True) -> list[Planned]:
    """Return what would be queued, with its estimate. `alone`: it follows on no other job. Raises LabError."""
    return plan(load_preset(name, places), changes, places, alone=alone)


def twin(name: str, changes: Sequence[str], after: Sequence[str] = (), priority: int | None = None) -> str:
    """Return the command line that queues the same."""
    words = ["vlmconsole", "jobs", "add", name]
    for change in changes:
        words += ["--set", change]
    for other in after:
        words += ["--after", other]
    if priority is not None:
        words += ["--priority", str(priority)]
    return shlex.join(words)
