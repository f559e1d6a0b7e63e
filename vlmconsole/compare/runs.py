"""Whether two measurements may be compared, and, if not, which conditions differ.

A difference between two figures means something only when one thing changed. So a comparison is refused
unless every condition agrees, or the one that is named as the experiment's own (`only`) alone differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from vlmconsole.compare.resampling import NO_VALUES, TOO_FEW, Values, noise, request_values, whole
from vlmconsole.engines.adapter_choice import UNKNOWN
from vlmconsole.errors import LabError
from vlmconsole.measure.machine_load import busy
from vlmconsole.measure.views import cells
from vlmconsole.runs.conditions import Conditions, prompt_of, same_prompt
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.titles import title

#: condition → how people call it, in the order of showing; what is not here (n, notes, client_error) may differ
COMPARED_KEYS = (
    "hardware",
    "engine",
    "engine_version",
    "model",
    "asked_model",
    "model_sha256",
    "precision",
    "adapter",
    "image",
    "image_formats",
    "data_sha256",
    "repeats",
    "input_tokens",
    "output_tokens",
    "client_concurrency",
    "running_limit",
    "rate",
    "arrivals",
    "cache",
    "temperature",
    "top_p",
    "system_sha256",
    "prompt_sha256",
    "warm_up",
    "clock",
    "client",
    "route",
)
COMPARED = {key: title(key).partition(", ")[0] for key in COMPARED_KEYS}
#: absent means "none", which is a value like any other
NONE_IS_KNOWN = frozenset(
    {
        "asked_model",
        "adapter",
        "image",
        "image_formats",
        "data_sha256",
        "repeats",
        "rate",
        "arrivals",
        "top_p",
        "system_sha256",
    }
)
#: a length is given in tokens
TOKENS = frozenset({"input_tokens", "output_tokens"})
#: server settings that say where it runs or were compared already
UNCOMPARED_SETTINGS = frozenset(
    {"host", "port", "api-key", "log-level", "served-model-name", "nccl-port", "dist-init-addr"}
)
#: figures of a summary that are set side by side: key → (name, unit, which way is better)
FIGURES: dict[str, tuple[str, str, Literal["lower", "higher"]]] = {
    "ttft_s": ("TTFT", "s", "lower"),
    "tpot_s": ("TPOT", "s", "lower"),
    "itl_s": ("ITL", "s", "lower"),
    "e2e_s": ("E2E", "s", "lower"),
    "throughput_tok_s": ("throughput", "tok/s", "higher"),
    "requests_per_s": ("requests", "1/s", "higher"),
}


#: what is said beside a verdict
COMPARABLE_MEANS = "Comparable means the conditions agree, not that a change is good or real."


@dataclass(frozen=True)
class Difference:
    """One condition that is not the same in both. None: unknown, which equals nothing that is known."""

    key: str
    label: str
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.label} ({shown(self.key, self.a)} against {shown(self.key, self.b)})"


@dataclass(frozen=True)
class Comparison:
    """What differs, what agrees, what neither tells; `allowed` is the difference that `only` asked for."""

    differs: list[Difference]
    same: dict[str, Any]
    unknown: list[str]
    allowed: Difference | None = None
    invalid: list[str] = field(default_factory=list)
    one_sided: list[str] = field(default_factory=list)  # server settings that only one of both tells: not compared

    @property
    def comparable(self) -> bool:
        return not self.differs and not self.invalid

    def sentence(self) -> str:
        """Return the verdict in one sentence, every condition that stands against it named."""
        if self.invalid:
            return "Not comparable: " + " ".join(self.invalid)
        if self.differs:
            count = len(self.differs)
            names = "; ".join(str(difference) for difference in self.differs)
            return f"Not comparable: {count} condition{'s differ' if count > 1 else ' differs'}: {names}."
        return f"Comparable; only {self.allowed} differs." if self.allowed else "Comparable: no condition differs."

    def to_json(self) -> dict[str, Any]:
        return {
            "comparable": self.comparable,
            "differs": [vars(difference) for difference in self.differs],
            "only": vars(self.allowed) if self.allowed else None,
            "same": self.same,
            "unknown": self.unknown,
            "told_by_one": self.one_sided,
            "invalid": self.invalid,
        }


def compare(a: Conditions, b: Conditions, only: str | None = None) -> Comparison:
    """Return every condition of `a` against `b`. `only` names the one that may differ (`settings.NAME` for one
    of the server's settings). Raises LabError for a name that is none.
    """
    if only is not None and only not in COMPARED and not only.startswith("settings."):
        raise LabError(
            f"There is no condition “{only}”.",
            f"Conditions: {', '.join(COMPARED)}, settings.NAME.",
            code="condition-unknown",
        )
    left, right = a.model_dump(mode="json"), b.model_dump(mode="json")
    differs: list[Difference] = []
    same: dict[str, Any] = {}
    unknown: list[str] = []
    for key, label in COMPARED.items():
        if key == "prompt_sha256":
            if not same_prompt(left, right):
                differs.append(Difference(key, label, prompt_of(left), prompt_of(right)))
            elif left[key] is not None and right[key] is not None:
                same[key] = left[key]
        elif same_condition(key, left.get(key), right.get(key)):
            if left.get(key) == UNKNOWN:
                unknown.append(label)
            elif left.get(key) is not None:
                same[key] = left[key]
            elif key not in NONE_IS_KNOWN:
                unknown.append(label)
        else:
            differs.append(Difference(key, label, left.get(key), right.get(key)))
    settings = (left.get("settings") or {}, right.get("settings") or {})
    differs += _settings(*settings, {difference.key for difference in differs})
    one_sided = sorted((settings[0].keys() ^ settings[1].keys()) - UNCOMPARED_SETTINGS)
    allowed = next((difference for difference in differs if difference.key == only), None)
    return Comparison(
        [difference for difference in differs if difference is not allowed], same, unknown, allowed, one_sided=one_sided
    )


def told_by_one(names: list[str]) -> str:
    """Return what is to be said of settings that only one side tells; "" for none."""
    if not names:
        return ""
    some = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"not compared, reported by one side only: server settings {some}"


def same_condition(key: str, a: Any, b: Any) -> bool:
    """Return whether two values of one condition mean the same. Of warm-ups only counts whether there were any."""
    if key == "warm_up" and a is not None and b is not None:
        return bool(a.startswith(("0 ", "none"))) == bool(b.startswith(("0 ", "none")))
    return bool(a == b)


#: settings that are conditions of their own under another name
_SAME_AS = {
    "max-running-requests": "running_limit",
    "max-num-seqs": "running_limit",
    "disable-radix-cache": "cache",
    "apc-enabled": "cache",
    "enable-prefix-caching": "cache",
    "dtype": "precision",
    "model-path": "model",
    "model": "model",
}


def _settings(a: dict[str, Any], b: dict[str, Any], already: set[str]) -> list[Difference]:
    """Server settings that differ, each under its flag's name; one that only one server tells is not compared."""
    differences = []
    for name in sorted(set(a) & set(b) - UNCOMPARED_SETTINGS):
        if a[name] != b[name] and _SAME_AS.get(name) not in already:
            differences.append(Difference(f"settings.{name}", f"server setting {name}", a[name], b[name]))
    return differences


def shown(key: str, value: Any) -> str:
    """Return a condition as people read it."""
    if value is None:
        return "not set" if key == "top_p" else "none" if key in NONE_IS_KNOWN else "not known"
    if key in ("system_sha256", "prompt_sha256", "template_sha256"):
        return str(value)[:12]  # enough to tell two prompts apart in a sentence
    return f"{value} tokens" if key in TOKENS else str(value)


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of both, in the figure's unit. `change` is b / a − 1; None where either is unknown."""

    key: str
    name: str
    unit: str
    better: str
    a: float | None
    b: float | None
    n_a: int | None
    n_b: int | None
    interval: tuple[float, float] | None = None  # of the change, where requests can tell
    noise: str = ""  # the same in words, as shares of a; "" where nothing can be said

    @property
    def undecided(self) -> bool:
        """Whether the requests are too few to tell the change from chance."""
        return TOO_FEW in self.noise

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None or not self.a else self.b / self.a - 1


def _number(value: Any) -> Any:
    """A figure as it stands in a file; what is no number there is unknown."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if good else None


def figures(a: dict[str, Any], b: dict[str, Any], values: tuple[Values, Values] = NO_VALUES) -> list[ComparedFigure]:
    """Return the figures of two summaries side by side: p50 and p95 of distributions, plain figures as they are.

    `values`: what the requests of each side took; with them a p50's change has its interval.
    """
    rows = []
    for key, (name, unit, better) in FIGURES.items():
        left, right = a.get(key), b.get(key)
        if isinstance(left, dict) or isinstance(right, dict):
            for share in ("p50", "p95"):
                first, second = (value if isinstance(value, dict) else {} for value in (left, right))
                rows.append(
                    ComparedFigure(
                        f"{key}.{share}",
                        f"{name} {share}",
                        unit,
                        better,
                        *(_number(side.get(what)) for what in (share, "n") for side in (first, second)),
                        *(noise(*(side.get(key, ()) for side in values)) if share == "p50" else ()),
                    )
                )
        elif left is not None or right is not None:
            known = [_number(value) for value in (left, right, a.get("n"), b.get("n"))]
            rows.append(ComparedFigure(key, name, unit, better, *known))
    kept = [value if isinstance(value := summary.get("goodput"), dict) else {} for summary in (a, b)]
    if kept[0] and kept[0].get("slo") == kept[1].get("slo"):  # of another objective it is another figure
        known = [_number(side.get(what)) for what in ("requests_per_s", "n") for side in kept]
        rows.append(ComparedFigure("goodput", "goodput", "1/s", "higher", *known))
    return rows


@dataclass(frozen=True)
class ComparedSide:
    """One measurement to compare: a run that has one, or a cell of a run that has several."""

    name: str
    conditions: Conditions
    summary: dict[str, Any]
    invalid: str = ""  # why it may not be compared with anything
    values: Values = field(default_factory=dict)  # of its counted requests

    @property
    def remark(self) -> str:
        """What is worth knowing of it and refuses nothing, "" for nothing."""
        return busy(self.summary)


def sides(run: RunFolder, faults: list[str] | None = None) -> list[ComparedSide]:
    """Return the measurements of a run, each with figures and conditions. Raises LabError when it has none.

    One without readable conditions is an error as well; with `faults` it is left out, and its sentence put there.
    """
    measured = [cell for cell in cells(run) if cell.summary]
    if not measured:
        state = run.state().get("state", "unknown")
        raise LabError(
            f"{run.name} has no figures to compare (state: {state}).",
            "Runs of `vlmconsole bench` and of measuring presets have.",
            code="figures-missing",
        )
    made, values = [], request_values(run)
    for cell in measured:
        name = f"{run.name}:{cell.name}" if cell.name else run.name
        fault = "" if cell.conditions else f"{name} has no conditions, so nothing can be compared with it."
        try:
            conditions = Conditions.model_validate(cell.conditions)
        except ValidationError:
            fault = fault or f"{name}: its conditions are not of one measurement, or damaged."
        if fault:
            if faults is None:
                raise LabError(fault)
            faults.append(fault)
            continue
        why = "" if cell.state == "valid" else (cell.why or "it was set aside").rstrip(".")
        made.append(ComparedSide(name, conditions, cell.summary, why, whole(values.get(cell.name, {}), cell.summary)))
    return made


def side(run: RunFolder, cell: str = "") -> ComparedSide:
    """Return the measurement `cell` of a run, or its only one. Raises LabError, which names the cells there are."""
    known = sides(run)
    if not cell and len(known) == 1:
        return known[0]
    chosen = next((candidate for candidate in known if cell and candidate.name == f"{run.name}:{cell}"), None)
    if chosen is None:
        names = ", ".join(candidate.name.rpartition(":")[2] for candidate in known)
        what = f"no cell “{cell}”" if cell else f"{len(known)} cells"
        raise LabError(f"{run.name} has {what}: name one as RUN:CELL.", f"Cells: {names}.")
    return chosen


def compare_sides(a: ComparedSide, b: ComparedSide, only: str | None = None) -> tuple[Comparison, list[ComparedFigure]]:
    """Return whether two measurements may be compared, and their figures side by side."""
    invalid = [f"{measured.name} is INVALID: {measured.invalid}." for measured in (a, b) if measured.invalid]
    rows = figures(a.summary, b.summary, (a.values, b.values))
    return replace(compare(a.conditions, b.conditions, only), invalid=invalid), rows


def compare_runs(a: RunFolder, b: RunFolder, only: str | None = None) -> tuple[Comparison, list[ComparedFigure]]:
    """Return two runs of one measurement each. Raises LabError when one has none, or several."""
    return compare_sides(side(a), side(b), only)
