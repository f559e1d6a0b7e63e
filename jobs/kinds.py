"""Finding a kind of job by name: entry points of the group `vlmconsole.jobs`, or `module:ATTRIBUTE`."""

import difflib
import importlib
import importlib.util
import json
import os
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import JobKind
from vlmconsole.runs.places import Places
from vlmconsole.system.reading import UnreadableError, read_toml

GROUP = "vlmconsole.jobs"
IMPORT_FROM = "import_from"  # of a job's options and its job.json: see `place_of`
TRUSTED_VARIABLE = "VLMCONSOLE_TRUSTED_PROGRAMS"


class UnknownKindError(LabError):
    """No such kind, or its package cannot be imported; the message says which and what to do."""

    exit_status = 2


def kind_names() -> list[str]:
    """Return the installed kinds, sorted; nothing is imported."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def trusted(places: Places | None) -> frozenset[str]:
    """Return the modules and programs that presets may name beyond the installed ones: the user's setting of that name.

    Read by hand, since the lab's settings stand above this floor; a file that cannot be read trusts nothing.
    """
    given = os.environ.get(TRUSTED_VARIABLE)
    if given is None and places is not None:
        try:
            given = read_toml(places.config).get("trusted_programs")
        except UnreadableError:
            given = None
    words = given.split(",") if isinstance(given, str) else []
    return frozenset(word.strip() for word in words if word.strip())


def place_of(name: str) -> str:
    """Return the folder that the module of a kind `module:ATTRIBUTE` was imported from; "" for an installed one."""
    top = name.partition(":")[0].partition(".")[0] if ":" in name else "vlmconsole"
    spec = importlib.util.find_spec(top) if top != "vlmconsole" else None
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent.parent if spec.submodule_search_locations else Path(spec.origin).parent
    installed = {Path(sysconfig.get_path(scheme)).resolve() for scheme in ("purelib", "platlib", "stdlib")}
    return "" if folder.resolve() in installed else str(folder.absolute())


def load_kind(name: str, places: Places | None = None, *, queued: bool = False, place: object = None) -> JobKind:
    """Return the kind called `name`. A plug-in needs no registration to be tried: `my_module:KIND` works too, where the
    user trusts that module. A preset is data: it may be somebody else's, and importing is running.

    `queued`: of a job, whose kind was looked at when it was planned; `place`: where its module was found then,
    looked in last. Raises UnknownKindError.
    """
    if queued and isinstance(place, str) and place and place not in sys.path:
        sys.path.append(place)
    if ":" in name:
        module = name.partition(":")[0]
        installed = {point.value.partition(":")[0] for point in entry_points(group=GROUP)}
        if not queued and module not in installed | trusted(places):
            raise UnknownKindError(
                f"the kind “{name}” is a module that no installed package names as a kind, and it is not imported",
                f"If you trust it: trusted_programs = {json.dumps(module)} in config.toml, or {TRUSTED_VARIABLE}.",
            )
        return _import(name, name)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _import(point.value, name)
    names = kind_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean “{close[0]}”?" if close else ""
    raise UnknownKindError(
        f"no kind of job is called “{name}”.{hint} Installed: {', '.join(names) or 'none'}. "
        f"A kind comes from a package with an entry point in the group {GROUP}.",
        code="kind-unknown",
    )


def _import(path: str, name: str) -> JobKind:
    module, _, attribute = path.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute or "KIND")
    except (ImportError, AttributeError) as error:
        raise UnknownKindError(
            f"the kind “{name}” is {path}, which cannot be imported here: {error}. "
            "Is its environment the right one? `vlmconsole doctor` checks."
        ) from error
    if not isinstance(kind, JobKind):
        raise UnknownKindError(
            f"the kind “{name}” is {path}, which is no JobKind but {type(kind).__name__}", code="kind-invalid"
        )
    return kind
