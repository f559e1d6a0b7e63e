"""A training job's memory plan on the device that it will get: for `--plan`, and beside the peak measured then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlmconsole.gauges import nvidia

if TYPE_CHECKING:
    from vlmconsole.jobs.contract import Context
    from vlmconsole.training.memory import MemoryPlan, Work


def memory_plan(work: Work, device: str = "auto") -> MemoryPlan:
    """Return the plan on "cpu", "cuda", "gpu0" … or "auto" (the first card, where there is one). Raises LabError."""
    from vlmconsole.training import memory

    cards = nvidia.read().cards
    if device.startswith("cpu") or (device == "auto" and not cards):
        return memory.plan(work, "cpu")
    named = next((card for card in cards if card.name == device), cards[0] if cards else None)
    if named is None:
        return memory.plan(work, device, None)
    return memory.plan(work, f"{named.name} ({named.product})" if named.product else named.name, named.memory_total)


def say_peak(context: Context, plan: MemoryPlan) -> dict[str, Any]:
    """At a job's end: the measured peak beside the plan, as a note of the run; returns both for the summary."""
    from vlmconsole.training import memory

    peak = memory.measured_peak("cpu" if plan.device.startswith("cpu") else "gpu")
    context.events.note(f"memory: {plan.against(peak)}")
    return {"planned_bytes": plan.peak, "peak_bytes": peak, "verdict": plan.verdict}
