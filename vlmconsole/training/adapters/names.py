"""What a person calls an adapter: its folder, a run, the newest finished run of a preset or on a dataset, `last`, or a
unique part.

`:epoch-4` after any of them means that epoch instead of the chosen one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

LAST = "last"
CHOSEN = "adapter"  # the folder of the epoch that a training chose
_PART = re.compile(r"(.+):(epoch-\d+|adapter)")


@dataclass(frozen=True)
class Names:
    """The names that fit, and of unfinished runs of a preset by that name how they stand (for an error).

    `whole`: what was typed is a whole name (an adapter's, a run's, a preset's, `last`), no part of one.
    """

    fitting: tuple[str, ...]
    unfinished: tuple[str, ...] = field(default=())
    whole: bool = False


def names_for(text: str, known: Sequence[str], places: Places) -> Names:
    """Return the names among `known` (own ones, then the runs', newest first) that `text` means: one where it is
    clear.
    """
    match = _PART.fullmatch(text)
    wanted, part = (match[1], match[2]) if match else (text, "")
    exact = [name for name in known if name in (text, f"{wanted}/{part or CHOSEN}")]
    if exact:
        return Names((exact[0],), whole=True)
    runs = _Runs(places)
    of_part = [name for name in known if name.endswith(f"/{part or CHOSEN}")]
    done = [name for name in of_part if runs.done(name)]
    of_preset = [name for name in of_part if runs.preset(name) == wanted]
    of_data = [name for name in of_part if runs.data(name) == wanted]
    newest = done if wanted == LAST else [name for name in of_preset or of_data if name in done]
    if newest:
        return Names((newest[0],), whole=True)
    if wanted == LAST:
        return Names((), tuple(f"{name.partition('/')[0]} is {runs.state(name)}" for name in of_part))
    for clear in (_clear(wanted, done, runs.preset), _clear(wanted, of_part, None), _clear(text, known, None)):
        if len(clear) == 1:
            return Names(clear)
    fitting = (
        [name for name in of_part if wanted and wanted in name] if part else [n for n in known if text and text in n]
    )
    unfinished = [f"{name.partition('/')[0]} is {runs.state(name)}" for name in of_preset]
    return Names(tuple(fitting), tuple(unfinished))


def _clear(text: str, known: Sequence[str], preset: Callable[[str], str] | None) -> tuple[str, ...]:
    """The names of which `text` is a part; where all are of one preset, the newest alone."""
    fitting = [name for name in known if text and text in name]
    if preset is not None and len({preset(name) for name in fitting}) == 1 and preset(fitting[0]):
        return (fitting[0],)
    return tuple(fitting)


class _Runs:
    """What the runs say of themselves, each read once."""

    def __init__(self, places: Places) -> None:
        self._places, self._read = places, dict[str, tuple[str, str, str]]()

    def _of(self, name: str) -> tuple[str, str, str]:
        run = name.partition("/")[0]
        if run not in self._read:
            folder = RunFolder(self._places.runs / run)
            job = folder.job()
            spec = job.get("spec")
            data = spec.get("data") if isinstance(spec, dict) else None
            state = str(folder.state().get("state") or "unknown")
            self._read[run] = str(job.get("preset") or ""), state, data if isinstance(data, str) else ""
        return self._read[run]

    def preset(self, name: str) -> str:
        return self._of(name)[0]

    def state(self, name: str) -> str:
        return self._of(name)[1]

    def data(self, name: str) -> str:
        return self._of(name)[2]

    def done(self, name: str) -> bool:
        return self.state(name) == "done"
