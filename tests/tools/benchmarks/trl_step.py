"""The same training step here and in TRL, one arm a process: seconds and memory. `trl_table.py` runs them in turns.

    python tests/tools/benchmarks/trl_step.py ARM STEPS WARM_UP        ARM: grpo, sft (ours), trl-grpo, trl-sft

Both take the bundled model, the same counting scenes in the same order, the same questions, float32, one thread.
GRPO: 4 questions × 4 answers of up to 64 tokens, the whole language half trained, vision frozen. SFT: 4 pictures a
step, a rank-8 language LoRA, the answer's tokens supervised. A step lasts from the end of the step before to its own
end, so that reading, drawing up, sampling and scoring are in it on both sides; writing down is off on both sides.

One JSON line comes out: every step's seconds (of the clock and of CPU), the median of those after the warm-up, bytes
that were resident when all was ready and at the peak, and what tells that the work was the same (the first losses of
SFT, the answers' lengths).
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "assets" / "tiny-qwen2.5-vl"
QUESTIONS, ANSWERS, ANSWER_TOKENS = 4, 4, 64
GRPO_RATE, SFT_RATE, RANK, ALPHA = 1e-5, 2e-3, 8, 16


def samples(count: int) -> Iterator[tuple[str, bytes, str]]:
    """(name, PNG bytes, truth) of regular scenes of 0–7, the same for every arm."""
    from vlmconsole.counting.scene import label_json, make_scene

    for i in range(count):
        scene = make_scene(f"benchmark:{i}", red=i % 8, blue=(3 * i) % 8)
        buffer = io.BytesIO()
        scene.draw().save(buffer, "PNG")
        yield str(i), buffer.getvalue(), label_json(scene.label)


def resident(line: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the most so far) of this process, in bytes."""
    for read in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if read.startswith(f"{line}:"):
            return int(read.split()[1]) * 1024
    raise OSError(f"{line} is not told by this system")


class Watch:
    """Seconds from the end of each step to the end of the next, of the clock and of this process's CPU."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []  # other work on the machine hardly changes these
        self.last, self.last_cpu, self.ready_bytes = 0.0, 0.0, 0

    def start(self) -> None:
        self.ready_bytes = resident("VmRSS")
        self.last, self.last_cpu = time.perf_counter(), time.process_time()

    def step(self) -> None:
        now, cpu = time.perf_counter(), time.process_time()
        self.seconds.append(now - self.last)
        self.cpu.append(cpu - self.last_cpu)
        self.last, self.last_cpu = now, cpu

    def tell(self, arm: str, warm_up: int, **more: Any) -> None:
        counted = sorted(self.seconds[warm_up:])
        record = {
            "arm": arm,
            "n": len(counted),
            "median_s": round(statistics.median(counted), 4),
            "fastest_s": round(counted[0], 4),
            "slowest_s": round(counted[-1], 4),
            "ready_bytes": self.ready_bytes,
            "peak_bytes": resident("VmHWM"),
            "steps_s": [round(value, 4) for value in self.seconds],
            "steps_cpu_s": [round(value, 4) for value in self.cpu],
            **more,
        }
        print(json.dumps(record))


def rows(count: int) -> list[Any]:
    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.data.example import from_columns
    from vlmconsole.data.rows import Row

    return [
        from_columns(Row(name, png, COUNT_PROMPT, truth, "vlmconsole/counting", "", "train", i).verl(), name)
        for i, (name, png, truth) in enumerate(samples(count))
    ]


def ours_grpo(steps: int, warm_up: int) -> None:
    from vlmconsole.training.grpo_train import GrpoTraining, Trainer
    from vlmconsole.training.model import load

    data = rows(QUESTIONS * steps)
    settings = GrpoTraining(QUESTIONS, ANSWERS, max_new_tokens=ANSWER_TOKENS, rate=GRPO_RATE, weight_decay=0.0)
    trainer, watch, lengths = Trainer(load(MODEL), data, settings), Watch(), []
    watch.start()
    for _ in range(steps):
        taken = trainer.take()
        watch.step()
        lengths.append([len(one.tokens) for one in taken.rollouts])
    watch.tell("grpo", warm_up, **told_lengths(lengths))


def told_lengths(lengths: list[list[int]]) -> dict[str, float]:
    """Answer tokens: the mean, and the mean of each step's longest, which is how often the model was asked."""
    return {
        "answer_tokens": round(statistics.fmean(n for step in lengths for n in step), 1),
        "longest_answer_tokens": round(statistics.fmean(max(step) for step in lengths), 1),
    }


def ours_sft(steps: int, warm_up: int) -> None:
    from vlmconsole.training.curriculum import Curriculum
    from vlmconsole.training.model import load
    from vlmconsole.training.sft import Course, SftTraining, adapted

    class InOrder(Curriculum):
        def order(self, epoch: int) -> list[int]:
            return list(range(self.rows))

    loaded = load(MODEL)
    settings = SftTraining(RANK, ALPHA, rate=SFT_RATE, warm_up=0, schedule="constant")
    plan = InOrder(rows=QUESTIONS * steps, epochs=1, batch=QUESTIONS, accumulation=1, seed=0)
    course, watch, losses = Course(loaded, adapted(loaded, settings), rows(plan.rows), plan, settings), Watch(), []
    watch.start()
    for taken in course.steps(steps):
        watch.step()
        losses.append(taken.loss)
    watch.tell("sft", warm_up, losses=[round(loss, 5) for loss in losses[:3]])


def trl() -> Any:
    """TRL, whose processor for this model wants torchvision.

    The registry's torchvision is built for CUDA: beside a CPU build of torch its compiled half is left out, and its
    import then stumbles over two operators of detectors, which nothing here uses. Declared without a body they let it
    pass; what the processor calls (resizing, normalising) is torch alone.
    """
    import torch

    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import trl as package

    return package


def callback(watch: Watch) -> Any:
    """A Trainer callback that stamps the end of each optimizer step."""
    from transformers import TrainerCallback

    class Stamps(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.step()

    return Stamps()


def common(steps: int) -> dict[str, Any]:
    """Settings of both TRL trainers: as ours, and nothing written or told between steps."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="trl-step-"),
        "max_steps": steps,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def trl_model() -> tuple[Any, Any]:
    import torch
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    kind: Any = Qwen2_5_VLForConditionalGeneration
    processor = AutoProcessor.from_pretrained(MODEL)
    # Ours teaches the end mark and not the line's end behind it; TRL teaches all that the template writes.
    ended = "<|im_end|>\n{% endfor -%}"
    assert ended in processor.chat_template
    shorter = "<|im_end|>{% if not loop.last or message['role'] != 'assistant' %}{{ '\\n' }}{% endif %}{% endfor -%}"
    processor.chat_template = processor.chat_template.replace(ended, shorter)
    return kind.from_pretrained(MODEL, dtype=torch.float32), processor


def trl_grpo(steps: int, warm_up: int) -> None:
    package = trl()
    from datasets import Dataset, Features, Image, Value

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.scoring.reward import read_truth, score_counts

    lengths: list[list[int]] = []

    def reward(completions: list[Any], truth: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        lengths.append([len(ids) for ids in completion_ids])
        texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
        return [score_counts(text, read_truth(t)).reward for text, t in zip(texts, truth, strict=True)]

    turn = {"role": Value("string"), "content": Value("string")}
    data = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": COUNT_PROMPT}],
                "image": {"bytes": png, "path": None},
                "truth": told,
            }
            for _, png, told in samples(QUESTIONS * steps)
        ],
        features=Features({"prompt": [turn], "image": Image(), "truth": Value("string")}),
    )
    model, processor = trl_model()
    model.model.visual.requires_grad_(False)
    config = package.GRPOConfig(
        **common(steps),
        per_device_train_batch_size=QUESTIONS * ANSWERS,
        num_generations=ANSWERS,
        max_completion_length=ANSWER_TOKENS,
        learning_rate=GRPO_RATE,
        beta=0.0,
        temperature=1.0,
        top_k=0,
        shuffle_dataset=False,
        logging_strategy="no",
    )
    watch = Watch()
    trainer = package.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        processing_class=processor,
        callbacks=[callback(watch)],
    )
    trainer.train()
    watch.tell("trl-grpo", warm_up, trl=package.__version__, **told_lengths(lengths))


def trl_sft(steps: int, warm_up: int) -> None:
    package = trl()
    from datasets import Dataset, Features, Image, Value
    from peft import LoraConfig

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.training.lora import LANGUAGE_ONLY

    turn = {"role": Value("string"), "content": Value("string")}
    data = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": COUNT_PROMPT}],
                "completion": [{"role": "assistant", "content": told}],
                "images": [{"bytes": png, "path": None}],
            }
            for _, png, told in samples(QUESTIONS * steps)
        ],
        features=Features({"prompt": [turn], "completion": [turn], "images": [Image()]}),
    )
    model, processor = trl_model()
    config = package.SFTConfig(
        **common(steps),
        per_device_train_batch_size=QUESTIONS,
        max_length=None,
        learning_rate=SFT_RATE,
        train_sampling_strategy="sequential",
        logging_strategy="no",
    )
    watch = Watch()
    trainer = package.SFTTrainer(
        model=model,
        args=config,
        train_dataset=data,
        processing_class=processor,
        peft_config=LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LANGUAGE_ONLY),
        callbacks=[callback(watch)],
    )
    losses: list[float] = []
    plain = trainer.compute_loss

    def compute_loss(*arguments: Any, **named: Any) -> Any:
        out = plain(*arguments, **named)
        losses.append(float((out[0] if isinstance(out, tuple) else out).detach()))
        return out

    trainer.compute_loss = compute_loss
    trainer.train()
    watch.tell("trl-sft", warm_up, trl=package.__version__, losses=[round(loss, 5) for loss in losses[:3]])


ARMS: dict[str, Callable[[int, int], None]] = {
    "grpo": ours_grpo,
    "trl-grpo": trl_grpo,
    "sft": ours_sft,
    "trl-sft": trl_sft,
}

if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(1)
    ARMS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
