"""Whether a training fits a device, before it is launched: weights, gradients, optimizer, activations, KV and vision.

What autograd keeps was read off real runs with `saved_tensors_hooks` and is exact for Qwen2.5-VL in transformers 5 with
PEFT (a test repeats it); working space and the process itself are estimates, so a plan is compared afterwards with the
measured peak (`Plan.against`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlmconsole.system.machine import peak_rss_bytes
from vlmconsole.text.sizes import GIB, size
from vlmconsole.training.bases import BaseError, base_folder
from vlmconsole.training.shape import QWEN2_5_VL_3B, Shape, shape_of
from vlmconsole.vision.tokens import QWEN2_5_VL, ProcessorSettings, visual_tokens

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAM = 2  # moments a trained number has
TIGHT = 0.85
"""Above this share of the device a plan is "tight": allocators split memory, and a formula misses short peaks."""
PROCESS = {"cpu": int(0.48 * GIB), "gpu": int(0.6 * GIB)}
"""Python with torch, transformers, peft and pyarrow in a worker that has trained (433 MiB resident after loading, about
490 with the libraries that a backward pass and the optimizer touch; measured); on a GPU its CUDA context (assumed)."""

KERNELS = 48 << 20
"""What a CPU's bfloat16 kernels keep: weights in their own order and scratch space (measured: 47 MiB)."""

PIXELS = 3
"""How often a batch's pixels are there at once: question by question, put together, and as the tower reads them."""

SPOKEN = 32
"""Tokens of the bundled model's longest answers at temperature 1 or below; a ceiling above that is not reached."""

KEPT = 100 * 1024
"""What making and examining one picture of a dataset leaves in the same process (measured: 1,184 to 3,136 pictures)."""

Verdict = Literal["fits", "tight", "does not fit", "not known"]


@dataclass(frozen=True)
class Work:
    """What is trained on what. `rows` are the sequences that go forward and backward at once.

    `base` is a job's `base` ("" for the bundled model); the 3B's sizes are known without its files. `trained` is the
    LoRA of `rank` or the whole language half. `rollouts` are sequences answered at once (0: none). `offload`: weights'
    optimizer state is on the CPU except in the optimizer's own step. `foreach` is AdamW's switch. `scored` is how many
    of a row's tokens get logits in training (None: all). `pictures` are those that the job makes and examines first.
    `masters`: the optimizer steps float32 copies of coarser weights, which get the gradients, too. `group` are the
    rows that share a question: in-process, its prompt is run once for them and its pictures are looked at once a step.
    `images`: sizes of all that a row shows, where it is not one `picture`. `held`: bytes of data in the job's memory.
    `checked` are questions that a copy of the model, loaded anew beside it, answers at once in the end (0: none).
    """

    base: str = ""
    precision: str = "float32"
    trained: Literal["adapter", "language"] = "adapter"
    rank: int = 8
    rows: int = 4
    picture: tuple[int, int] = (448, 448)
    images: tuple[tuple[int, int], ...] | None = None
    text_tokens: int = 48
    answer_tokens: int = 24
    scored: int | None = None
    rollouts: int = 0
    checkpointing: bool = False
    offload: bool = False
    foreach: bool = False
    pictures: int = 0
    masters: bool = False
    group: int = 1
    checked: int = 0
    held: int = 0


@dataclass(frozen=True)
class MemoryPart:
    """One line of a plan, in bytes; `phase` "" is there all the time, others are not there at once. `how` explains."""

    name: str
    bytes: int
    phase: str = ""
    how: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """A plan's lines and its verdict. `peak` is what is always there and the largest phase, named `peak_phase`."""

    device: str
    available: int | None
    parts: tuple[MemoryPart, ...]
    peak: int
    peak_phase: str
    verdict: Verdict
    why: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}"

    def against(self, measured: int) -> str:
        """Return the plan beside the measured peak, one sentence."""
        off = 100 * (measured - self.peak) / self.peak
        return f"measured peak {size(measured)}, planned {size(self.peak)} ({off:+.0f} %)"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, bytes."""
        return {
            "device": self.device,
            "available": self.available,
            "peak": self.peak,
            "peak_phase": self.peak_phase,
            "verdict": self.verdict,
            "why": self.why,
            "parts": [
                {"name": p.name, "bytes": p.bytes, "phase": p.phase or "always", "how": p.how} for p in self.parts
            ],
        }


def plan(work: Work, device: str = "cpu", available: int | None = None) -> MemoryPlan:
    """Return the plan for `work` on a device with `available` bytes (None: not known; for "cpu" the machine's memory
    is read).

    Raises ShapeError or BaseError for a base whose sizes cannot be known.
    """
    if available is None and device.startswith("cpu"):
        available = host_memory()
    shape, settings = _base(work.base)
    parts = tuple(p for p in _parts(work, shape, settings, "cpu" if device.startswith("cpu") else "gpu") if p.bytes)
    always = sum(p.bytes for p in parts if not p.phase)
    phases: dict[str, int] = {}
    for part in parts:
        if part.phase:
            phases[part.phase] = phases.get(part.phase, 0) + part.bytes
    phase = max(phases, key=lambda name: phases[name])
    peak = always + phases[phase]
    verdict, why = _verdict(peak, phase, device, available)
    return MemoryPlan(device, available, parts, peak, phase, verdict, why)


def host_memory() -> int:
    """Return this machine's memory in bytes, or what a container may have of it."""
    import psutil

    limits = [int(psutil.virtual_memory().total)]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, second and first version
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text("ascii")))
    return min(limits)


def measured_peak(device: str = "cpu") -> int:
    """Return this process's peak so far, in bytes: torch's own on a GPU, resident memory on a CPU."""
    if not device.startswith("cpu"):
        import torch

        return int(torch.cuda.max_memory_allocated())
    return peak_rss_bytes()


def _base(name: str) -> tuple[Shape, ProcessorSettings]:
    try:
        folder = base_folder(name)
    except BaseError:
        if "qwen2.5-vl-3b" not in Path(name).name.lower():
            raise
        return QWEN2_5_VL_3B, QWEN2_5_VL
    return shape_of(folder), ProcessorSettings.from_model_dir(folder)


def _verdict(peak: int, phase: str, device: str, available: int | None) -> tuple[Verdict, str]:
    where = f"about {size(peak)} at its peak ({phase})"
    if available is None:
        return "not known", f"{where}; the memory of {device} is not known"
    of = f"{where}, {device} has {size(available)}"
    if peak > available:
        return "does not fit", of
    return ("tight", of) if peak > TIGHT * available else ("fits", of)


def _parts(work: Work, shape: Shape, settings: ProcessorSettings, kind: Literal["cpu", "gpu"]) -> list[MemoryPart]:
    width = WIDTH[work.precision]
    images = (work.picture,) if work.images is None else work.images
    visual = sum(visual_tokens(*size, settings).visual_tokens for size in images)
    tokens = visual + work.text_tokens + work.answer_tokens
    adapter = work.trained == "adapter"
    trained = shape.adapter(work.rank) if adapter else shape.language
    own = 4 if adapter or work.masters else width  # the adapter is float32 whatever its base is
    where = "on the CPU except in its step" if work.offload else ""
    step = "optimizer step" if work.offload else ""
    parts = [
        MemoryPart("process", PROCESS[kind], how="measured on a CPU" if kind == "cpu" else "CUDA context, assumed"),
        MemoryPart(
            "data",
            work.pictures * KEPT + work.held if kind == "cpu" else 0,
            how="own examples, held" if work.held else f"{work.pictures} images made and examined",
        ),
        MemoryPart("kernels", KERNELS if kind == "cpu" and width < 4 else 0, how="bfloat16 on a CPU"),
        MemoryPart("weights", shape.parameters * width, how=f"{shape.parameters:,} × {width} bytes"),
        MemoryPart("adapter", trained * own if adapter else 0, how=f"rank {work.rank}, {trained:,} × 4 bytes"),
        MemoryPart("float32 copies", trained * 4 if work.masters else 0, how=f"{trained:,} × 4 bytes"),
        MemoryPart("gradients", trained * own, how=f"{trained:,} × {own} bytes"),
        MemoryPart(
            "optimizer", ADAM * trained * own, step, f"two moments of {trained:,}{', ' + where if where else ''}"
        ),
        MemoryPart(
            "optimizer's work", _step(work, shape, trained) * own, "optimizer step", "foreach" if work.foreach else ""
        ),
    ]
    each = per_token(shape, width, work.rank if adapter else None, work.checkpointing)
    # A shared prompt is run once; its keys and values are repeated for the rows, and once more as attention takes them.
    shared, checking = work.group > 1, "checking the export"
    run = work.rows // work.group * (tokens - work.answer_tokens) + work.rows * (work.answer_tokens - 1)
    run = run if shared else work.rows * tokens
    scored = work.rows * (tokens if work.scored is None else work.scored)
    learning = "forward and backward"
    parts += [
        MemoryPart("activations", run * each, learning, f"{run:,} tokens of {work.rows} rows"),
        MemoryPart(
            "shared prompts", 2 * shape.kv(tokens - 1, work.rows, width) if shared else 0, learning, "keys and values"
        ),
        MemoryPart("logits", scored * shape.vocabulary * (width + 12), learning, f"{scored} × {shape.vocabulary:,}"),
    ]
    looks = {learning: 0 if shared else work.rows, "answering": work.rollouts // work.group, checking: work.checked}
    for phase, rows in looks.items():
        patches = rows * visual * settings.merge_size**2
        wide = 5 * shape.vision_hidden + 3 * shape.vision_inner
        pixels = (1 if phase == learning else PIXELS) * 4 * 3 * shape.temporal * shape.patch**2
        parts.append(MemoryPart("vision", patches * (wide * width + pixels), phase, f"{patches} patches, no gradient"))
    parts.append(MemoryPart("a second copy", shape.parameters * width if work.checked else 0, checking, "loaded anew"))
    for phase, rows in (("answering", work.rollouts), (checking, work.checked)):
        parts.append(MemoryPart("KV cache", shape.kv(tokens, rows, width), phase, f"{rows} × {tokens}"))
        # Every row's own logits, and the float32 copy that sampling works on.
        parts.append(MemoryPart("logits", rows * shape.vocabulary * (width + 8), phase))
    return parts


def _step(work: Work, shape: Shape, trained: int) -> int:
    """Numbers that AdamW holds besides in its step: a copy of everything with `foreach`, else of the largest tensor."""
    if work.foreach:
        return trained
    if work.trained == "adapter":
        return work.rank * max(shape.inner, shape.hidden)
    return max(shape.vocabulary, shape.inner) * shape.hidden


def per_token(shape: Shape, width: int, rank: int | None, checkpointing: bool = False) -> int:
    """Bytes that autograd keeps per token, without the log-probabilities; `rank` None: the whole language half learns.

    Where a LoRA's base is not float32, PEFT casts the input of every adapted layer to float32 and keeps that.
    """
    h, i, q, k = shape.hidden, shape.inner, shape.query, shape.keys
    values = width * (3 * i + 2 * q + 2 * k)  # gate, its silu, up; queries and attention's result; keys and values
    small = 4 * (shape.heads + 2)  # attention's normalisers and those of two norms
    if rank is None:
        layer = values + small + 2 * h * 4 + width * (2 * h + 2 * h + i)
        once = 4 * h + 2 * width * h
    else:
        inputs = 4 * (2 * h + i) if width == 4 else 4 * (5 * h + q + i)
        layer = values + small + 2 * h * 4 + inputs + 4 * 7 * rank
        once = 0
    once += 2 * width * shape.head_dim
    if checkpointing:  # only each layer's input, and one layer at a time again in the backward pass
        return shape.layers * h * width + layer + once
    return shape.layers * layer + once
