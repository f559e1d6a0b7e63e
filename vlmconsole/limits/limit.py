"""The least time that a device needs for a model's first token and for each further one, and what bounds it.

A phase takes at least its operations over the device's peak, and at least its bytes over the device's bandwidth:
whichever is more. A measured figure stands beside its limit as a multiple of it; one that beats its limit by more than
its own error is an alarm: the formula, the device's figures or the measurement is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlmconsole.limits.devices import DevicePeak
from vlmconsole.limits.work import ModelWork, Phase

COMPUTE, BANDWIDTH = "compute", "bandwidth"


@dataclass(frozen=True)
class PhaseLimit:
    """The least time of one phase, seconds, and what bounds it."""

    phase: Phase
    seconds: float
    bound_by: str


@dataclass(frozen=True)
class Limit:
    """Least TTFT and least time per token, seconds, of one request and one batch on one kind of device.

    `alone`: a step of one sequence, which no batch can be below, whatever its size was meanwhile.
    """

    first: tuple[PhaseLimit, ...]
    each: PhaseLimit
    alone: PhaseLimit
    device: DevicePeak
    devices: int
    notes: tuple[str, ...] = ()

    @property
    def ttft_s(self) -> float:
        """Vision and prefill, one after the other."""
        return sum(phase.seconds for phase in self.first)

    @property
    def tpot_s(self) -> float:
        """One step of decoding."""
        return self.each.seconds

    @property
    def ttft_bound_by(self) -> str:
        """What bounds the longest phase before the first token."""
        return max(self.first, key=lambda phase: phase.seconds).bound_by

    def beside(self, ttft_s: float | None, tpot_s: float | None, error_s: float = 0.0) -> dict[str, Any]:
        """Plain JSON: the limit, and measured figures as multiples of it.

        `alarm` names a figure that beats its limit by more than `error_s`, the measurement's own error.
        """
        measured = {"ttft": (ttft_s, self.ttft_s), "tpot": (tpot_s, self.tpot_s)}
        times = {name: figure / least for name, (figure, least) in measured.items() if figure is not None and least > 0}
        sure = {"ttft": (ttft_s, self.ttft_s), "tpot": (tpot_s, self.alone.seconds)}
        beaten = [name for name, (figure, least) in sure.items() if figure is not None and figure + error_s < least]
        return {
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "bound_by": {"ttft": self.ttft_bound_by, "tpot": self.each.bound_by},
            "times_of_limit": times,
            "phases": {phase.phase.name: phase.seconds for phase in (*self.first, self.each)},
            "device": f"{self.devices} × {self.device.name}" if self.devices > 1 else self.device.name,
            "source": self.device.source,
            **({"notes": list(self.notes)} if self.notes else {}),
            **({"alarm": beaten} if beaten else {}),
        }


def limit(
    work: ModelWork,
    device: DevicePeak,
    *,
    precision: str,
    prompt_tokens: int,
    visual_tokens: int = 0,
    batch: float = 1,
    context: float | None = None,
    devices: int = 1,
) -> Limit:
    """Return the limit of one request on `devices` of a kind that share its work, in a batch of `batch` sequences.

    `prompt_tokens` are those that no cache had, the visual ones among them; `context` is the length of a sequence in
    the middle of its answer (default: the prompt). Arithmetic counts as done in `precision`.
    """
    notes = () if device.flops_of(precision) else (f"no arithmetic peak is known for {device.name}: bandwidth alone",)

    def least(phase: Phase) -> PhaseLimit:
        return _least(phase, device, precision, devices)

    first = [least(work.prefill(prompt_tokens))]
    if visual_tokens:
        first.insert(0, least(work.vision_phase(visual_tokens)))
    length = prompt_tokens if context is None else context
    return Limit(tuple(first), least(work.decode(batch, length)), least(work.decode(1, length)), device, devices, notes)


def _least(phase: Phase, device: DevicePeak, precision: str, devices: int) -> PhaseLimit:
    peak = device.flops_of(precision)
    compute = phase.flops / (peak * devices) if peak else 0.0
    read = phase.bytes / (device.bandwidth_of(phase.bytes / devices) * devices)
    return PhaseLimit(phase, max(compute, read), COMPUTE if compute > read else BANDWIDTH)
