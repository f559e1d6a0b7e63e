"""Settings of a supervised LoRA training, and what they take: time with the bundled model, memory on any."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from vlmconsole.jobs.contract import Spec
from vlmconsole.jobs.data import counted, planned_lengths
from vlmconsole.runs.places import Places
from vlmconsole.scoring.scorers import known_scorer
from vlmconsole.system.typed_paths import FunctionOrName, PathOrName

if TYPE_CHECKING:
    from vlmconsole.training.memory import Work

# Seconds with the bundled model on one thread of a shared AMD EPYC 7B13: a picture taught (forward and backward: 0.17 s
# a step of 4 at the fastest tenth of 1152 steps, 0.35 at the median) and a development picture answered in batches of
# 32.
TAUGHT, ANSWERED = 0.065, 0.06
LEARNING = "training"  # the phase after the data, development passes among it


class SftSpec(Spec):
    """What to train, from which data, starting where; every length in steps, epochs or tokens."""

    base: PathOrName = Field("", description="Model folder or downloaded Hugging Face name; empty: the bundled model")
    data: PathOrName = Field(
        "sft-expand-tiny", description="Dataset recipe: its training split is taught, its dev split chooses"
    )
    adapter: PathOrName = Field(
        "",
        description="Adapter to continue: path, name, or preset (its newest finished run); empty: a fresh adapter",
    )
    rank: int = Field(8, ge=1, le=256, description="LoRA rank")
    alpha: int = Field(16, ge=1, description="LoRA alpha; alpha / rank scales the adapter")
    lr: float = Field(2e-3, gt=0, lt=1, description="Peak AdamW learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls (to 5 %)"
    )
    warm_up: int = Field(30, ge=0, description="Steps of rising learning rate")
    epochs: int = Field(6, ge=1, le=1000, description="Epochs: how often each image is seen")
    batch: int = Field(4, ge=1, le=1024, description="Images in one forward and backward pass")
    accumulation: int = Field(
        1, ge=1, le=1024, description="Batches in one optimizer step: batch × accumulation images"
    )
    clip: float = Field(1.0, gt=0, description="Largest gradient norm")
    seed: int = Field(1, ge=0, le=2**32 - 1, description="Seed of a fresh adapter and of the image order")
    dev_epochs: list[int] = Field(
        [2, 4, 6], min_length=1, description="Epochs scored on the dev set; the best is chosen"
    )
    scorer: Annotated[FunctionOrName, AfterValidator(known_scorer)] = Field(
        "", description="How dev answers are scored; empty: by the data's own scorer"
    )
    max_new_tokens: int = Field(64, ge=1, le=4096, description="Max tokens of a dev answer")
    dev_batch: int = Field(32, ge=1, le=1024, description="Development questions answered at once")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of the base model: bfloat16 on a GPU, float32 on a CPU; the adapter is always float32",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: the GPU where there is one")
    gradient_checkpointing: bool = Field(False, description="Less memory for more time")
    other_base: bool = Field(False, description="Resume from an adapter of another base or precision anyway")
    threads: int = Field(1, ge=1, le=64, description="CPU threads; results depend on it in the last digits")
    checkpoint_every: int = Field(
        50, ge=1, description="Steps between checkpoints; a resumed run gives the same weights"
    )
    shown: int = Field(8, ge=0, le=64, description="Development images shown live, with their answers")
    score_start: bool = Field(False, description="Score the dev set before the first step too, to say what was learned")

    @model_validator(mode="after")
    def _candidates(self) -> "SftSpec":
        if len(set(self.dev_epochs)) != len(self.dev_epochs) or not all(1 <= e <= self.epochs for e in self.dev_epochs):
            raise ValueError(f"“dev_epochs” is {self.dev_epochs}: write epochs from 1 to {self.epochs}, each once")
        return self

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = handler(self)
        if not value.get("score_start"):
            value.pop("score_start", None)  # jobs and checkpoints from before there was such a field stay the same
        return value


def learning(spec: SftSpec, train: int, dev: int) -> float:
    """Seconds of the training itself over so many pictures, with the bundled model."""
    return train * spec.epochs * TAUGHT + dev * (len(spec.dev_epochs) + spec.score_start) * ANSWERED


def planned_work(spec: SftSpec, gpu: bool, places: Places | None = None) -> "Work":
    """Return what the memory plan is made for: the larger of a training step and a development batch, of the largest
    examples where the lab (`places`) has the data.
    """
    from vlmconsole.training import bases, memory

    return memory.Work(
        base=spec.base,
        precision=bases.precision_for(spec.precision, "cuda" if gpu else "cpu"),
        rank=spec.rank,
        rows=spec.batch,
        rollouts=spec.dev_batch,
        checkpointing=spec.gradient_checkpointing,
        pictures=counted(spec.data),
        **planned_lengths(spec.data, places),
    )
