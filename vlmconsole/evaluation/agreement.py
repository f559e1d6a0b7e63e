"""Whether two backends say the same: answers of one model over the same pictures, compared word for word.

Agreement is a check of the backends. It is no paired comparison: their conditions differ, so `unlike` still names what
keeps their scores apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.gates.evidence import CONDITIONS, first_few, unlike
from vlmconsole.gates.samples import Sample, read_side
from vlmconsole.ledger.chain import Ledger
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.numbers import percent


@dataclass(frozen=True)
class Agreement:
    """`n` questions that both answered; `differing` are the ids of unlike answers; `unlike` are sentences."""

    runs: tuple[str, str]
    side: str
    n: int
    differing: tuple[str, ...]
    unlike: tuple[str, ...]
    changed: tuple[str, ...] = ()  # runs that are not as they were sealed, a sentence each

    @property
    def share(self) -> float:
        """Of like answers, from 0 to 1."""
        return (self.n - len(self.differing)) / self.n

    def sentence(self) -> str:
        """Both findings for people: the answers, and whether the runs may be paired."""
        text = f"{self.n - len(self.differing)} of {self.n} answers are the same ({percent(self.share)})"
        if self.differing:
            text += f"; they differ on {first_few(self.differing)}"
        pairing = f"Not to be paired: {'; '.join(self.unlike)}" if self.unlike else "The conditions are alike"
        warnings = "".join(f"\nWarning: {change}." for change in self.changed)
        return f"{text}.\n{pairing}.{warnings}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "runs": list(self.runs),
            "side": self.side,
            "n": self.n,
            "same": self.n - len(self.differing),
            "share": self.share,
            "differing": list(self.differing),
            "pairable": not self.unlike,
            "unlike": list(self.unlike),
            "changed": list(self.changed),
        }


def agreement(first: RunFolder, second: RunFolder, side: str = "before", ledger: Ledger | None = None) -> Agreement:
    """Compare one side of two evaluations. Raises LabError when they share no answered question.

    With the lab's `ledger`, a run whose files are not as they were sealed is named.
    """
    samples = [_answered(run, side) for run in (first, second)]
    both = [i for i in samples[0] if i in samples[1] and _same_question(samples[0][i], samples[1][i])]
    if not both:
        raise LabError(f"{first.name} and {second.name} have no answered question of {side} in common.")
    differing = tuple(i for i in both if samples[0][i].answer != samples[1][i].answer)
    conditions = [_conditions(run, side) for run in (first, second)]
    # Their own adapters and models may differ before and after; between two backends the same one is asked for.
    differences = unlike(*conditions)
    for key in ("model_sha256", "adapter"):
        if conditions[0].get(key) != conditions[1].get(key):
            differences.append(f"{key} is {conditions[0].get(key)!r} and {conditions[1].get(key)!r}")
    messages = [text.replace(" before and ", " and ").replace(" after", "") for text in differences]
    # Two runs that both lack them would look alike.
    pairs = zip((first, second), conditions, strict=True)
    messages += dict.fromkeys(f"{run.name} tells no conditions of {side}" for run, stated in pairs if not stated)
    changed = _changed((first, second), ledger) if ledger is not None else ()
    return Agreement((first.name, second.name), side, len(both), differing, tuple(messages), changed)


def _changed(runs: tuple[RunFolder, RunFolder], ledger: Ledger) -> tuple[str, ...]:
    chain = ledger.read()
    seals = [ledger.verify(run, chain) for run in runs]
    return tuple(
        f"{seal.run} is not as it was sealed ({seal.why})"
        for seal in seals
        if seal.status in ("changed", "missing", "ledger broken")
    )


def _conditions(run: RunFolder, side: str) -> dict[str, Any]:
    value = run.read_json(CONDITIONS)
    stored = value.get(side) if isinstance(value, dict) else None
    return stored if isinstance(stored, dict) else {}


def _answered(run: RunFolder, side: str) -> dict[str, Sample]:
    read = read_side(run.file(f"{side}.jsonl"))
    return {i: sample for i, sample in read.samples.items() if sample.http_ok and sample.answer is not None}


def _same_question(first: Sample, second: Sample) -> bool:
    return (first.picture_sha256, first.prompt_sha) == (second.picture_sha256, second.prompt_sha)
