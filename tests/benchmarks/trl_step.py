"""The same training step here and in TRL: seconds a step and peak memory, one arm a process, in turns.

    python tests/benchmarks/trl_step.py ARM STEPS        ARM: grpo, sft (ours), trl-grpo, trl-sft

The TRL arms run under an interpreter that has TRL (`pip install trl peft datasets torch torchvision`). Both take the
bundled model, the same counting scenes in the same order, float32, one thread: GRPO 4 questions × 4 answers of up to 64
tokens with the whole language half trained; SFT 4 pictures a step with a rank-8 language LoRA. Each prints one JSON
line: every step's seconds (the first is a warm-up and not counted), their median, and the process's peak RSS.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "assets" / "tiny-qwen2.5-vl"
ANSWER = 64


def scenes(count: int) -> list[tuple[Any, str]]:
    """Pictures and truths, regular 0–7, the same for every arm."""
    from vlmconsole.counting.scene import label_json, make_scene

    made = [make_scene(f"benchmark:{i}", red=i % 8, blue=(3 * i) % 8) for i in range(count)]
    return [(scene.draw(), label_json(scene.label)) for scene in made]


def told(arm: str, seconds: list[float], **more: Any) -> None:
    """One line of result; the first step pays for what is made once and is left out of the median."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    median = statistics.median(seconds[1:])
    shown = [round(value, 3) for value in seconds]
    print(json.dumps({"arm": arm, "median_s": round(median, 3), "steps_s": shown, "peak_rss_bytes": peak, **more}))


def ours_grpo(steps: int) -> None:
    import io

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.counting.rows import Row
    from vlmconsole.training.grpo_train import Settings, Trainer
    from vlmconsole.training.model import load

    rows = []
    for i, (picture, truth) in enumerate(scenes(4 * steps)):
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        rows.append(Row(str(i), buffer.getvalue(), COUNT_PROMPT, truth, "vlmconsole/counting", "", "train", i))
    trainer = Trainer(load(MODEL), rows, Settings(rate=1e-5, max_new_tokens=ANSWER))
    seconds, tokens = [], []
    for _ in range(steps):
        began = time.perf_counter()
        taken = trainer.take()
        seconds.append(time.perf_counter() - began)
        tokens.append(statistics.fmean(len(one.tokens) for one in taken.rollouts))
    told("grpo", seconds, tokens_an_answer=round(statistics.fmean(tokens), 1))


def ours_sft(steps: int) -> None:
    import torch

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.training.lora import answer_loss, inject
    from vlmconsole.training.model import Turn, load

    loaded, data = load(MODEL), scenes(4 * steps)
    model = inject(loaded.model).train()
    taught = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(taught, lr=2e-3, weight_decay=0.0, foreach=False)
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        chats = [[Turn(COUNT_PROMPT, truth, (picture,))] for picture, truth in data[4 * step : 4 * step + 4]]
        optimizer.zero_grad(set_to_none=True)
        answer_loss(loaded, model, chats).backward()
        torch.nn.utils.clip_grad_norm_(taught, 1.0, foreach=False)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    told("sft", seconds)


def clock() -> Any:
    """A Trainer callback that stamps the beginning and end of each optimizer step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    return Clock()


def trl_grpo(steps: int) -> None:
    import trl
    from datasets import Dataset
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.scoring.reward import read_truth, score_counts

    def reward(completions: list[Any], truth: list[str], **_: Any) -> list[float]:
        texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
        return [score_counts(text, read_truth(t)).reward for text, t in zip(texts, truth, strict=True)]

    rows = [
        {"prompt": [{"role": "user", "content": COUNT_PROMPT}], "image": picture, "truth": truth}
        for picture, truth in scenes(4 * steps)
    ]
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL)
    model.model.visual.requires_grad_(False)
    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=ANSWER,
        max_steps=steps,
        learning_rate=1e-5,
        beta=0.0,
        temperature=1.0,
        top_k=0,
        use_cpu=True,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    watch = clock()
    processor = AutoProcessor.from_pretrained(MODEL)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=processor,
        callbacks=[watch],
    )
    began = time.perf_counter()
    trainer.train()
    # Generation may lie outside the stamps of a step, so the whole is given as well.
    told("trl-grpo", watch.seconds, trl=trl.__version__, whole_s_per_step=(time.perf_counter() - began) / steps)


def trl_sft(steps: int) -> None:
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.training.lora import LANGUAGE_ONLY

    rows = [
        {
            "prompt": [{"role": "user", "content": COUNT_PROMPT}],
            "completion": [{"role": "assistant", "content": truth}],
            "images": [picture],
        }
        for picture, truth in scenes(4 * steps)
    ]
    config = trl.SFTConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        max_steps=steps,
        max_length=None,
        learning_rate=2e-3,
        use_cpu=True,
        gradient_checkpointing=False,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    watch = clock()
    trainer = trl.SFTTrainer(
        model=Qwen2_5_VLForConditionalGeneration.from_pretrained(MODEL),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoProcessor.from_pretrained(MODEL),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=LANGUAGE_ONLY),
        callbacks=[watch],
    )
    began = time.perf_counter()
    trainer.train()
    told("trl-sft", watch.seconds, trl=trl.__version__, whole_s_per_step=(time.perf_counter() - began) / steps)


ARMS: dict[str, Callable[[int], None]] = {"grpo": ours_grpo, "sft": ours_sft, "trl-grpo": trl_grpo, "trl-sft": trl_sft}

if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    ARMS[sys.argv[1]](int(sys.argv[2]))
