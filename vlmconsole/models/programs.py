"""Programs in a model's folder: what its author would have run here when the model is loaded.

mlx-vlm runs `model_file` of config.json, transformers (and with it SGLang and vLLM) what `auto_map` names, also of a
processor or a tokenizer. A downloaded folder is data: whoever loads one asks here first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.system.bounded_http import json_value

KEYS = frozenset({"model_file", "auto_map", "custom_pipelines", "custom_generate"})
DATA = frozenset({"tokenizer.json", "vocab.json", "merges.json", "added_tokens.json"})
"""Files of words, which may be called anything, and of megabytes."""
LARGEST = 4 * 1024**2
ALLOW = "If you trust its author, set trust_remote_code = true in the server's profile."


class ProgramsError(LabError):
    """A model's folder names programs of its author, and nobody has allowed them."""

    code = "programs-untrusted"


def programs_in(folder: Path) -> list[str]:
    """Return what the settings of a model's folder would have run, as `config.json: auto_map.AutoModel = x.Y`; sorted.

    Every settings file at the folder's top is read, at any depth. One that cannot be read is told too: what it would
    have run is not known. Empty for a folder that is not there.
    """
    programs: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if path.name in DATA or path.name.endswith(".index.json"):
            continue
        try:
            if path.stat().st_size > LARGEST:
                programs.append(f"{path.name} is too large to be looked through")
                continue
            settings = json_value(path.read_bytes())
        except (OSError, ValueError):
            programs.append(f"{path.name} cannot be read")
            continue
        programs += [f"{path.name}: {where} = {value}" for where, value in _named(settings, "")]
    return programs


def _named(value: Any, where: str) -> Iterator[tuple[str, str]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in inner:
        path = f"{where}.{name}" if where else str(name)
        if name in KEYS and child not in (None, "", {}, []):
            yield path, json.dumps(child)[:120]
        else:
            yield from _named(child, path)


def refuse_programs(folder: Path, hint: str = ALLOW) -> None:
    """Raise ProgramsError, with what the folder names, when loading it would run its author's programs."""
    programs = programs_in(folder)
    if programs:
        more = f" and {len(programs) - 2} more" if len(programs) > 2 else ""
        raise ProgramsError(
            f"the model in {folder} wants to run programs of its own ({'; '.join(programs[:2])}{more})", hint
        )
