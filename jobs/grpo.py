"""GRPO on pictures: in this process on any device, or through verl on a GPU box, from the same preset."""

from pathlib import Path
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.gauges import nvidia
from vlmconsole.jobs import preflight
from vlmconsole.jobs.contract import Context, Estimate, JobKind, not_installed
from vlmconsole.jobs.grpo_settings import GrpoSpec, has_masters, learning, planned_work, reward_parts
from vlmconsole.jobs.kinds import trusted
from vlmconsole.jobs.memory_plan import memory_plan
from vlmconsole.jobs.proposals import propose_grpo
from vlmconsole.jobs.unused_settings import unused
from vlmconsole.runs.places import Places
from vlmconsole.scoring.rewards import RewardPart


def devices(spec: GrpoSpec, places: Places) -> list[str]:
    """Return a GPU for verl and for CUDA; the CPU otherwise."""
    if spec.engine == "verl" or spec.device == "cuda":
        return ["gpu"]
    return ["gpu"] if spec.device == "auto" and nvidia.read().cards else ["cpu"]


def coarse_steps(spec: GrpoSpec, precision: str) -> str:
    """Return what a bfloat16 training without float32 copies loses, for the plan; "" where nothing."""
    from vlmconsole.training.masters import lost_above

    set_here = [
        override.partition("=")[2] for override in spec.verl.overrides if "fsdp_config.model_dtype=" in override
    ]
    inside = bool(set_here) and set_here[-1].strip("'\"") in ("fp32", "float32")
    if precision == "float32" or has_masters(spec, precision) or (spec.engine == "verl" and inside):
        return ""
    return (
        f". {precision} without float32 copies: a step of about lr ({spec.lr:g}) is rounded away on every number above"
        f" {lost_above(spec.lr, precision):.1g}"
    )


def estimate(spec: GrpoSpec, places: Places | None = None) -> Estimate:
    """Seconds for the bundled model only: of others nothing was measured. Memory from its parts."""
    gpu = devices(spec, Places(Path())) == ["gpu"]
    try:
        plan = memory_plan(planned_work(spec, gpu, places), "cuda" if gpu else "cpu")
        memory, note = plan.peak, f"Memory: {plan}"
    except LabError as error:
        memory, note = None, f"Memory is not planned: {error.phrase}"
    from vlmconsole.training import bases

    verl = spec.engine == "verl"
    note += coarse_steps(spec, "bfloat16" if verl else bases.precision_for(spec.precision, "cuda" if gpu else "cpu"))
    if verl:
        return Estimate(None, memory, None, f"{note}. verl's trainer itself has not been run by this project.")
    if spec.base:
        return Estimate(None, memory, None, f"{note}. Time was measured for the bundled model only.")
    return Estimate(
        seconds=20 + learning(spec),
        memory_bytes=memory,
        disk_bytes=30_000_000 + spec.steps * 40_000,
        note=f"{note}. Time: as measured for the bundled model on one busy core of an AMD EPYC",
    )


def run(context: Context, spec: GrpoSpec) -> dict[str, Any]:
    """Train with the engine that the preset names; leaves `model/` and the evidence."""
    if spec.engine == "verl":
        from vlmconsole.jobs.grpo_verl import train

        return train(context, spec)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise not_installed(error, "training", "train") from None
    from vlmconsole.jobs.grpo_local import train as train_here

    context.log(f"torch {torch.__version__}, transformers {transformers.__version__}")
    return train_here(context, spec)


#: What verl's trainer takes of the shared settings; the rest is said to be unused (`jobs.unused`).
USED_BY_VERL = frozenset(
    ("engine", "base", "data", "train_split", "validation_split", "steps", "questions", "answers", "temperature")
) | frozenset(("max_new_tokens", "lr", "weight_decay", "clip", "max_norm", "passes", "scorer", "reward", "precision"))
USED_BY_VERL |= {"device", "verl"}


def unused_settings(spec: GrpoSpec) -> list[str]:
    """Settings of the other engine that are set."""
    if spec.engine == "verl":
        return unused(spec, USED_BY_VERL, "verl")
    return unused(spec, GrpoSpec.model_fields.keys() - {"verl"}, "the in-process engine")


def _impossible(spec: GrpoSpec) -> list[str]:
    """Settings that the chosen engine would have to contradict: verl's weights are bfloat16, on cards alone."""
    if spec.engine != "verl":
        return []
    refused = {"precision": spec.precision == "float32", "device": spec.device == "cpu"}
    return [
        f"{key} = {getattr(spec, key)} is not possible with engine = verl; with engine = in-process it is"
        for key, wrong in refused.items()
        if wrong
    ]


def problems(spec: GrpoSpec, places: Places, alone: bool) -> list[str]:
    """Return what it names and is not there, or may not be named by a preset, or cannot be done by its engine."""
    from vlmconsole.jobs.grpo_verl import refuse_video
    from vlmconsole.training.verl import settings as verl

    splits = [spec.train_split, spec.validation_split]
    programs = [
        f"verl.overrides: {item} names a program; if you trust it, name it in trusted_programs of config.toml"
        for item in spec.verl.overrides
        if verl.names_program(item) and item.partition("=")[2].strip("'\"") not in trusted(places)
    ]
    return [
        *programs,
        *_impossible(spec),
        *preflight.loadable(spec.base),
        *preflight.data([spec.data], places, alone, splits),
        *(
            list(preflight.refused_questions(spec.data, places, refuse_video, splits=[spec.train_split]))[:1]
            if spec.engine == "verl"
            else []
        ),
        *preflight.rewards(spec.data, reward_parts(spec) or [RewardPart(scorer=spec.scorer)], places, splits=splits),
    ]


KIND = JobKind(
    "grpo",
    "Reinforcement learning (GRPO)",
    GrpoSpec,
    run,
    estimate_here=estimate,
    devices=devices,
    needs=("torch", "transformers"),
    problems=problems,
    unused=unused_settings,
    propose=propose_grpo,
)
