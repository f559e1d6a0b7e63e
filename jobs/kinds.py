"""Finding a kind of job by name: entry points of the group ``vlmconsole.jobs``, or ``module:ATTRIBUTE``."""

import difflib
import importlib
from importlib.metadata import entry_points

from vlmconsole.jobs.contract import JobKind

from vlmconsole.errors import LabError

GROUP = "vlmconsole.jobs"


class UnknownKindError(LabError):
    """No such kind, or its package cannot be imported; the message says which and what to do."""

    code = 2


def kind_names() -> list[str]:
    """The installed kinds, sorted; nothing is imported."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_kind(name: str) -> JobKind:
    """The kind called ``name``. A plug-in needs no registration to be tried: ``my_module:KIND`` works too.

    Raises UnknownKindError.
    """
    if ":" in name:
        return _import(name, name)
    for point in entry_points(group=GROUP):
        if point.name == name:
            return _import(point.value, name)
    names = kind_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean “{close[0]}”?" if close else ""
    raise UnknownKindError(
        f"no kind of job is called “{name}”.{hint} Installed: {', '.join(names) or 'none'}. "
        f"A kind comes from a package with an entry point in the group {GROUP}."
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
        raise UnknownKindError(f"the kind “{name}” is {path}, which is no JobKind but {type(kind).__name__}")
    return kind
