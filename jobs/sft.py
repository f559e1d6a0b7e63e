"""Supervised LoRA training, the lab's first round and its repair rounds: `vlmconsole run sft-expand-tiny`."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from vlmconsole.errors import LabError
from vlmconsole.gauges import nvidia
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobKind, Spec, not_installed
from vlmconsole.jobs.data import DRAWN, EXAMINED, counted, files_note, sizes
from vlmconsole.jobs.memory_plan import memory_plan
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import PathOrName

if TYPE_CHECKING:
    from vlmconsole.training.memory import Work


class SftSpec(Spec):
    """What to train, from which data, starting where; every length in steps, epochs or tokens."""

    base: PathOrName = Field("", description="model folder or downloaded Hugging Face name; empty: the bundled model")
    data: PathOrName = Field(
        "sft-expand-tiny", description="dataset recipe: its training split is taught, its dev split chooses"
    )
    adapter: PathOrName = Field(
        "",
        description="to go on from: path, name, or preset (its newest finished run); empty: a fresh adapter",
    )
    rank: int = Field(8, ge=1, le=256, description="LoRA rank")
    alpha: int = Field(16, ge=1, description="LoRA alpha; alpha / rank scales the adapter")
    lr: float = Field(2e-3, gt=0, lt=1, description="AdamW learning rate at its highest")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the rate falls (to 5 %)")
    warm_up: int = Field(30, ge=0, description="steps of rising learning rate")
    epochs: int = Field(6, ge=1, le=1000, description="how often each picture is seen")
    batch: int = Field(4, ge=1, le=1024, description="pictures at once")
    accumulation: int = Field(1, ge=1, le=1024, description="batches a step, so batch × accumulation pictures")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    seed: int = Field(1, ge=0, le=2**32 - 1, description="of the fresh adapter and of the order of the pictures")
    dev_epochs: list[int] = Field([2, 4, 6], min_length=1, description="epochs that development chooses among")
    scorer: Literal["counting", "naming"] = Field("counting", description="how development answers are scored")
    max_new_tokens: int = Field(64, ge=1, le=4096, description="ceiling of a development answer, tokens")
    dev_batch: int = Field(32, ge=1, le=1024, description="development questions answered at once")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of the base: bfloat16 on a GPU, float32 on a CPU; the adapter is always float32"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: the GPU where there is one")
    gradient_checkpointing: bool = Field(False, description="less memory for more time")
    other_base: bool = Field(False, description="go on from an adapter of another base or precision all the same")
    threads: int = Field(1, ge=1, le=64, description="CPU threads; another number gives other last digits")
    checkpoint_every: int = Field(50, ge=1, description="steps between checkpoints that can be taken up exactly")
    shown: int = Field(8, ge=0, le=64, description="development pictures shown live with their answers")

    @model_validator(mode="after")
    def _candidates(self) -> "SftSpec":
        if len(set(self.dev_epochs)) != len(self.dev_epochs) or not all(1 <= e <= self.epochs for e in self.dev_epochs):
            raise ValueError(f"“dev_epochs” is {self.dev_epochs}: write epochs from 1 to {self.epochs}, each once")
        return self


def run(context: Context, spec: SftSpec) -> dict[str, Any]:
    """Train, choose an epoch on development pictures, and leave `adapter/` with its evidence."""
    try:
        from vlmconsole.jobs.sft_run import Teacher
    except ImportError as error:
        raise not_installed(error, "training", "train") from None
    return Teacher(context, spec).run()


# Seconds with the bundled model on one thread of a shared AMD EPYC 7B13: a picture taught (forward and backward: 0.17 s
# a step of 4 at the fastest tenth of 1152 steps, 0.35 at the median) and a development picture answered in batches of
# 32.
TAUGHT, ANSWERED = 0.065, 0.06
LEARNING = "training"  # the phase after the data, development passes among it


def _estimate(spec: SftSpec) -> Estimate:
    try:
        count = sizes(spec.data)
    except LabError as error:
        return Estimate(note=f"nothing can be said: {error.message}")
    if count is None:
        return Estimate(note="nothing can be said before the pictures of the dataset are counted, when it starts")
    train, dev = count.get("train", 0), count.get("dev", 0)
    steps = spec.epochs * -(-train // (spec.batch * spec.accumulation))
    note = f"{train} pictures × {spec.epochs} epochs = {steps} steps of {spec.batch * spec.accumulation}"
    note += f", {dev} development pictures × {len(spec.dev_epochs)}"
    if files := files_note(spec.data):
        note += f" ({files})"
    memory, fits = _memory(spec)
    every = sum(count.values())
    if spec.base:
        note += f". {fits}. How long a step takes was never measured for this base: the run says it after a few"
        return Estimate(memory_bytes=memory, note=note)
    seconds = learning(spec, train, dev) + every * (DRAWN + EXAMINED)
    return Estimate(
        seconds=seconds + 15,  # imports, the mask audit
        memory_bytes=memory,
        disk_bytes=every * 12_000 + (spec.epochs + 3) * 400_000 + 2_000_000,
        note=f"{note}. {fits}. Time: 0.17 to 0.35 s a step of 4 were measured on a shared AMD EPYC 7B13, one thread",
    )


def learning(spec: SftSpec, train: int, dev: int) -> float:
    """Seconds of the training itself over so many pictures, with the bundled model."""
    return train * spec.epochs * TAUGHT + dev * len(spec.dev_epochs) * ANSWERED


def _memory(spec: SftSpec) -> tuple[int | None, str]:
    """(planned peak in bytes, the plan in a sentence); the number is None where the base's sizes are not known."""
    try:
        plan = memory_plan(planned_work(spec, _cuda(spec)), "cuda" if _cuda(spec) else "cpu")
    except LabError as error:
        return None, f"Memory is not planned: {error.message}"
    return plan.peak, f"Memory: {plan}"


def planned_work(spec: SftSpec, gpu: bool) -> "Work":
    """What the memory plan is made for: the larger of a training step and a development batch."""
    from vlmconsole.training import bases, memory

    return memory.Work(
        base=spec.base,
        precision=bases.precision_for(spec.precision, "cuda" if gpu else "cpu"),
        rank=spec.rank,
        rows=spec.batch,
        rollouts=spec.dev_batch,
        checkpointing=spec.gradient_checkpointing,
        pictures=counted(spec.data),
    )


def _cuda(spec: SftSpec) -> bool:
    return spec.device == "cuda" or (spec.device == "auto" and bool(nvidia.read().cards))


def _devices(spec: SftSpec, places: Places) -> list[str]:
    return ["gpu"] if _cuda(spec) else [f"cpu:{spec.threads}"]


def _problems(spec: SftSpec, places: Places, alone: bool) -> list[str]:
    return [
        *preflight.loadable(spec.base),
        *preflight.data([spec.data], places, alone),
        *preflight.role(spec.data, ("train", "dev"), places),
        *preflight.scorer(spec.data, spec.scorer, places, roles=["dev"]),
        *preflight.adapter(spec.adapter, places, alone),
    ]


KIND = JobKind(
    "sft",
    "Supervised LoRA training",
    SftSpec,
    run,
    estimate=_estimate,
    devices=_devices,
    needs=("torch", "transformers", "peft"),
    problems=_problems,
)
