"""Supervised LoRA training, the lab's first round and its repair rounds: `vlmconsole run sft-expand-tiny`."""

from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.gauges import nvidia
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobKind, not_installed
from vlmconsole.jobs.data import DRAWN, EXAMINED, files_note, sizes
from vlmconsole.jobs.memory_plan import memory_plan
from vlmconsole.jobs.proposals import propose_sft
from vlmconsole.jobs.sft_settings import SftSpec, learning, planned_work
from vlmconsole.runs.places import Places


def run(context: Context, spec: SftSpec) -> dict[str, Any]:
    """Train, choose an epoch on development pictures, and leave `adapter/` with its evidence."""
    try:
        from vlmconsole.jobs.sft_run import Teacher
    except ImportError as error:
        raise not_installed(error, "training", "train") from None
    return Teacher(context, spec).run()


def _estimate(spec: SftSpec, places: Places) -> Estimate:
    try:
        count = sizes(spec.data, places)
    except LabError as error:
        return Estimate(note=f"nothing can be said: {error.phrase}")
    if count is None:
        return Estimate(note="nothing can be said before the images of the dataset are counted, when it starts")
    train, dev = count.get("train", 0), count.get("dev", 0)
    steps = spec.epochs * -(-train // (spec.batch * spec.accumulation))
    note = f"{train} images × {spec.epochs} epochs = {steps} steps of {spec.batch * spec.accumulation}"
    note += f", {dev} development images × {len(spec.dev_epochs)}"
    if files := files_note(spec.data):
        note += f" ({files})"
    memory, fits = _memory(spec, places)
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


def _memory(spec: SftSpec, places: Places) -> tuple[int | None, str]:
    """(planned peak in bytes, the plan in a sentence); the number is None where the base's sizes are not known."""
    try:
        plan = memory_plan(planned_work(spec, _cuda(spec), places), "cuda" if _cuda(spec) else "cpu")
    except LabError as error:
        return None, f"Memory is not planned: {error.phrase}"
    return plan.peak, f"Memory: {plan}"


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
    estimate_here=_estimate,
    devices=_devices,
    needs=("torch", "transformers", "peft"),
    problems=_problems,
    propose=propose_sft,
)
