"""Gate plans: what is judged, by which limits, under which conditions, all of it inside one hash.

A plan is TOML (shipped ones in `presets/gates/`). Limits are on point estimates and inclusive; the one
exception is a gate on an interval's lower bound, which must lie above its limit. A plan may be *bound* to a
made dataset before the run: then it also names every picture, question and truth by hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from vlmconsole.errors import LabError
from vlmconsole.gates.metrics import METRICS, Metric
from vlmconsole.ledger.freezing import digest
from vlmconsole.presets import preset_names, read_preset
from vlmconsole.scoring.intervals import CONFIDENCE, RESAMPLES
from vlmconsole.scoring.registry import unknown
from vlmconsole.text.settings_errors import explain_all

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Sign = Literal[">=", "<=", ">"]
_ROUNDING = Fraction(1, 10**12)  # scores that are no small fractions are binary numbers: a sum of them is that exact
SIGNS: dict[str, tuple[Sign, str]] = {"at_least": (">=", "≥"), "at_most": ("<=", "≤"), "above": (">", ">")}


class PlanError(LabError):
    """A plan cannot be used; the message names the key and what is allowed."""

    exit_status = 2


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _without(value: dict[str, Any], *empty: str) -> dict[str, Any]:
    """The value less those of its keys that hold nothing: plans frozen before there were such keys keep their hash."""
    return {key: held for key, held in value.items() if key not in empty or held not in (None, "", {})}


class Group(_Model):
    """One group of images. A guard (`base_at_least`) counts only where `before` reaches that mean score.

    `options` are the scorer's, where they are not its defaults.
    """

    name: str
    split: str  # of the dataset
    n: int = Field(ge=2)
    scorer: str
    options: dict[str, Any] = {}
    base_at_least: Share | None = None
    about: str = ""

    @model_validator(mode="after")
    def _known(self) -> Group:
        if reason := unknown(self.scorer):
            raise ValueError(reason)
        if self.scorer == "judge":
            raise ValueError(f"the group {self.name}: a model that judges decides no gate; it is a figure beside one")
        return self


def scored_options(group: Group, scorer: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by which a group scores an example with its own scorer and options: the group's go first."""
    return {**(options if scorer == group.scorer else {}), **group.options}


def _known_metric(value: object) -> object:
    if not isinstance(value, str) or value not in METRICS:
        *names, last = map(repr, METRICS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return value


class Gate(_Model):
    """One condition: exactly one of `at_least`, `at_most` (both inclusive) and `above` (exclusive)."""

    group: str
    metric: Annotated[str, BeforeValidator(_known_metric)]
    at_least: float | None = None  # shares from 0 to 1
    at_most: float | None = None  # points (hundredths) for a drop
    above: float | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> Gate:
        needed = self.definition.limit
        given = [key for key in SIGNS if getattr(self, key) is not None]
        if given != [needed]:
            raise ValueError(f"a gate on {self.metric} needs exactly the limit {needed}")
        return self

    @property
    def definition(self) -> Metric:
        """The metric itself."""
        return METRICS[self.metric]

    @property
    def name(self) -> str:
        """`hollow: all correct`."""
        return f"{self.group}: {self.definition.title}"

    @property
    def limit(self) -> float:
        """The limit as written: a share, or points for a drop."""
        return float(getattr(self, self.definition.limit))

    @property
    def exact_limit(self) -> Fraction:
        """The limit as the decimal number that was written, without binary rounding."""
        return Fraction(Decimal(str(self.limit)))

    @property
    def sign(self) -> Sign:
        """How the measured value must stand to the limit."""
        return SIGNS[self.definition.limit][0]

    @property
    def limit_text(self) -> str:
        """The limit for people: `≥ 80 %`, `≤ 5 points`, `> 0`."""
        return f"{SIGNS[self.definition.limit][1]} {self.definition.limit_text(self.limit)}"

    def passes(self, value: Fraction) -> bool:
        """Return whether the value holds the limit: inclusive, except a lower bound, which must lie above."""
        margin = self.margin(value)
        return margin > 0 if self.sign == ">" else margin >= 0

    def margin(self, value: Fraction) -> Fraction:
        """Return how far on the right side of the limit (negative: on the wrong side), in the metric's unit."""
        margin = self.exact_limit - value if self.sign == "<=" else value - self.exact_limit
        return margin if abs(margin) > _ROUNDING else Fraction(0)


class Bound(_Model):
    """One picture of a bound plan: hashes (hex) of file, RGB pixels, question and truth."""

    id: str
    picture_sha256: str
    pixel_sha256: str
    prompt_sha: str
    truth_sha: str
    options_sha: str = ""  # of its scorer's options, where it has any


class Data(_Model):
    """Which recipes' pictures may be judged; digests (by dataset) and pictures are filled in on binding."""

    recipes: tuple[str, ...] = Field(min_length=1)
    digests: dict[str, str] = {}
    pictures: dict[str, tuple[Bound, ...]] = {}  # by group


class Selection(_Model):
    """How the judged adapter was chosen: on the development split only."""

    split: str = "dev"
    metric: Literal["mean reward"] = "mean reward"
    scorer: str = ""  # that the rewards are of; "": the training's own
    options: dict[str, Any] = {}
    tie: Literal["the earlier epoch"] = "the earlier epoch"
    epochs: dict[str, tuple[int, ...]]  # by recipe: the candidates of that round


class Generations(_Model):
    """How many answers were promised. `evaluation` counts before and after together, `blind` those without images."""

    evaluation: int = Field(ge=0)
    blind: int = Field(0, ge=0)
    development: int = Field(0, ge=0)
    training_diagnostic: int = Field(0, ge=0)

    @property
    def total(self) -> int:
        """All of them."""
        return self.evaluation + self.blind + self.development + self.training_diagnostic


class Seeds(_Model):
    """Seeds of the training (one each), of the bootstrap, and of the generation."""

    training: tuple[int, ...]
    bootstrap: int = 0
    evaluation: int = 42


class Plan(_Model):
    """A whole plan. `before` says in words what the comparison starts from; `trained` is the range trained on."""

    name: str
    title: str
    whose: str  # whose list it is: the lab's own, or ours
    about: str = ""
    before: str
    before_adapter: str | None = None  # identity that `before` must have, where it is known
    base_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")  # weights that `before` must be, or stand on
    trained: tuple[int, int] | None = None  # the range of counts, of counting plans
    pictures: str  # what kind of images, for the claims
    data: Data
    selection: Selection | None = None
    generations: Generations
    seeds: Seeds
    resamples: int = RESAMPLES
    confidence: float = Field(CONFIDENCE, gt=0.5, lt=1.0)
    intervals: Literal["percentile", "bounded"] = "percentile"  # bootstrap; or Gaffke's bounds, which hold at any n
    blind: Literal["grey", "swap", "none"] | None = None  # how the images are taken away for the blind answers
    conditions: dict[str, str | int | float | bool] = {}  # that both sides must have been measured under
    groups: tuple[Group, ...] = Field(min_length=1)
    gates: tuple[Gate, ...] = Field(min_length=1)
    template_sha256: str = ""  # of the plan before it was bound
    frozen_late: Literal["counts", "cannot judge"] = "counts"  # a freezing after the training's first step

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        names = [group.name for group in self.groups]
        if len(set(names)) != len(names):
            raise ValueError("two groups have the same name")
        unknown = [gate.group for gate in self.gates if gate.group not in names]
        if unknown:
            raise ValueError(f"a gate names the group {unknown[0]!r}, which the plan does not have")
        doubled = [gate.name for gate in self.gates]
        if len(set(doubled)) != len(doubled):
            raise ValueError("two gates judge the same measure of the same group")
        expected = 2 * sum(group.n for group in self.groups)
        if self.selection is not None and set(self.selection.epochs) != set(self.data.recipes):
            raise ValueError("selection.epochs must name each of data.recipes")
        if self.generations.evaluation != expected:
            raise ValueError(f"generations.evaluation is {self.generations.evaluation}, the groups make {expected}")
        blind = expected // 2 if self.blind else 0
        if self.generations.blind != blind:
            raise ValueError(f"generations.blind is {self.generations.blind}, the groups make {blind}")
        unseen = [gate.name for gate in self.gates if gate.definition.blind and not self.blind]
        if unseen:
            raise ValueError(f"the gate {unseen[0]!r} needs blind answers: set blind to grey, swap or none")
        return self

    @property
    def sha256(self) -> str:
        """The hash under which this plan is frozen."""
        return digest(self.value())

    def value(self) -> dict[str, Any]:
        """Return the plan as plain JSON values: what is hashed and written."""
        value = _without(self.model_dump(mode="json"), "base_sha256", "trained", "blind")
        if self.frozen_late == "counts":
            del value["frozen_late"]  # plans frozen before there was such a field keep their hash
        if self.intervals == "percentile":
            del value["intervals"]  # likewise
        if not self.generations.blind:
            del value["generations"]["blind"]
        value["groups"] = [_without(group, "options") for group in value["groups"]]
        pictures = value["data"]["pictures"]
        value["data"]["pictures"] = {
            name: [_without(row, "options_sha") for row in pictures[name]] for name in pictures
        }
        if value["selection"] is not None:
            value["selection"] = _without(value["selection"], "scorer", "options")
        return value

    def group(self, name: str) -> Group:
        """Return the group called `name`. Raises KeyError."""
        return next(group for group in self.groups if group.name == name)

    def template(self) -> Plan:
        """Return the plan without its binding: the limits as first frozen."""
        data = Data(recipes=self.data.recipes)
        unbound = {"data": data, "template_sha256": "", "before_adapter": None, "base_sha256": None}
        return self.model_copy(update=unbound)


def plan_names() -> list[str]:
    """Return the shipped plans."""
    return preset_names("gates")


def load_plan(name: str) -> Plan:
    """Return the shipped plan called `name`, or the TOML file at that path. Raises PlanError naming key or nearest
    name.
    """
    table = read_preset("gates", name, "gate plan", PlanError)
    return parse_plan(table, name)


def parse_plan(value: Any, where: str) -> Plan:
    """Return a plan from plain values. Raises PlanError naming up to three wrong keys."""
    try:
        return Plan.model_validate(value)
    except ValidationError as error:
        raise PlanError(f"The plan {where} cannot be used: {explain_all(error.errors())}.") from None
