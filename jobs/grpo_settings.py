"""Settings of a GRPO run, of both engines, and what they take: time with the bundled model, memory on any."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from vlmconsole.data.example import Example
from vlmconsole.data.scored import check_scorable
from vlmconsole.jobs.contract import Spec
from vlmconsole.jobs.data import counted, planned_lengths
from vlmconsole.runs.places import Places
from vlmconsole.scoring.python_scorer import names_function
from vlmconsole.scoring.rewards import RewardPart, RewardParts
from vlmconsole.scoring.scorers import known_scorer
from vlmconsole.system.typed_paths import FunctionOrName, PathOrName

if TYPE_CHECKING:
    from vlmconsole.training.memory import Work

LEARNING = "training"  # the phase after the data
AT_ONCE = 16  # greedy questions at once, in validation and in the check of the export
BUNDLED_STEP = 0.35  # seconds a step of 16 answers of the bundled model, one busy core


class VerlSpec(Spec):
    """What only verl needs to know. Everything else comes from the settings that both engines share."""

    gpu_memory_utilization: float = Field(0.4, gt=0, lt=1, description="Share of the card for SGLang's rollouts")
    offload: bool = Field(True, description="Keep parameters and optimizer in host memory between uses")
    max_prompt_length: int = Field(2048, ge=64, description="Max tokens of a question; verl leaves out longer ones")
    gpus: int = Field(1, ge=1, description="GPUs of this machine")
    overrides: list[str] = Field([], description="Further key=value for verl, checked like the others")


class GrpoSpec(Spec):
    """Settings of a GRPO run. The defaults are the lab's; rates fit the 3B."""

    engine: Literal["in-process", "verl"] = Field("in-process", description="Training engine")
    base: PathOrName = Field("", description="Model folder or downloaded name; empty: the bundled model")
    data: PathOrName = Field("grpo-tiny", description="Dataset or recipe")
    train_split: str = Field("train", description="Training split, read in its own order")
    validation_split: str = Field("heldout", description="Split of the in-training validation and the reload check")
    steps: int = Field(3, ge=1, description="Batches of questions to learn from")
    questions: int = Field(4, ge=1, description="Questions in one step")
    answers: int = Field(4, ge=2, description="Answers sampled per question (a group)")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature; top-k and top-p stay off")
    max_new_tokens: int = Field(64, ge=1, description="Max tokens of an answer")
    lr: float = Field(1e-6, gt=0, description="AdamW learning rate, constant")
    weight_decay: float = Field(0.01, ge=0, description="AdamW weight decay")
    clip: float = Field(0.2, gt=0, lt=1, description="PPO clip: the probability ratio stays within 1 ± clip")
    max_norm: float = Field(1.0, gt=0, description="Largest gradient norm; above it the gradient is scaled down")
    passes: int = Field(1, ge=1, description="Optimizer steps on each batch of answers")
    micro: int = Field(4, ge=1, description="Questions in one forward pass; fewer need less memory")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of the sampled answers")
    scorer: Annotated[FunctionOrName, AfterValidator(known_scorer)] = Field(
        "", description="What rewards an answer; empty: the data's own scorer"
    )
    reward: RewardParts = Field(
        [], description="In its place: FILE.py:FUNCTION, or several as [{scorer, options, weight}, …]"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU")
    float32_masters: bool = Field(
        True, description="bfloat16, in-process: step float32 copies of the weights, so that small steps count"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Device of the in-process engine")
    threads: int = Field(1, ge=1, le=64, description="CPU threads; results depend on it in the last digits")
    checkpoint_every: int = Field(5, ge=1, description="Steps between checkpoints")
    validate_every: int = Field(0, ge=0, description="Steps between in-training validations, 0: none")
    validation: int = Field(32, ge=1, description="Images in each in-training validation")
    reload_check: int = Field(8, ge=1, description="Questions that the reloaded model must answer identically")
    score_start: bool = Field(
        False, description="Validate before the first step and after the last too, to say what was learned; in-process"
    )
    verl: VerlSpec = Field(default_factory=VerlSpec, description="Settings for verl alone")

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = handler(self)
        if not value.get("score_start"):
            value.pop("score_start", None)  # jobs and checkpoints from before there was such a field stay the same
        if not value.get("reward"):
            value.pop("reward", None)  # likewise
        return value


def reward_parts(spec: GrpoSpec) -> list[RewardPart]:
    """Return the parts of the reward; none where the scorer alone rewards. A scorer that is a function is the one
    part.
    """
    if not spec.reward and names_function(spec.scorer):
        return [RewardPart(scorer=spec.scorer)]
    return spec.reward


def check_rewardable(example: Example, spec: GrpoSpec) -> None:
    """Raise DataError, naming the example, unless each part of the reward can judge an answer to it."""
    for part in reward_parts(spec) or [RewardPart.model_construct(scorer=spec.scorer)]:
        check_scorable(example, part.scorer, part.options)


def learning(spec: GrpoSpec) -> float:
    """Seconds of the training itself with the bundled model."""
    return spec.steps * spec.questions * spec.answers / 16 * (1 + 0.5 * (spec.passes - 1)) * BUNDLED_STEP


def has_masters(spec: GrpoSpec, precision: str) -> bool:
    """Return whether float32 copies of the trained weights are stepped instead of the model's own."""
    return spec.engine == "in-process" and precision != "float32" and spec.float32_masters


def planned_work(spec: GrpoSpec, gpu: bool, places: Places | None = None) -> "Work":
    """Return what the memory plan is made for: the whole language half trained, all answers of a step sampled at once.

    The largest examples count where the lab (`places`) has the data.
    """
    from vlmconsole.training import bases, memory

    verl = spec.engine == "verl"
    precision = "bfloat16" if verl else bases.precision_for(spec.precision, "cuda" if gpu else "cpu")
    # Where nothing is known of a model's answers they are planned as long as they may be.
    short = bases.is_bundled(spec.base) and spec.temperature <= 1
    longest = min(spec.max_new_tokens, memory.SPOKEN) if short else spec.max_new_tokens
    return memory.Work(
        base=spec.base,
        precision=precision,
        masters=has_masters(spec, precision),
        trained="language",
        rows=1 if verl else min(spec.micro, spec.questions) * spec.answers,
        answer_tokens=longest,
        scored=longest,
        group=1 if verl else spec.answers,
        checked=0 if verl else min(AT_ONCE, max(spec.reload_check, spec.validation if spec.validate_every else 0)),
        rollouts=spec.questions * spec.answers,
        checkpointing=verl,
        offload=verl and spec.verl.offload,
        pictures=counted(spec.data),
        **{key: value for key, value in planned_lengths(spec.data, places).items() if key != "answer_tokens"},
    )
