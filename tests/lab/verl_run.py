"""One GRPO run through verl, as the job would set it up."""

from pathlib import Path
from typing import Any

from vlmconsole.training.verl import settings as verl

TRUTH = '{"red_circles": 1, "blue_squares": 2}'


def settings(**more: Any) -> verl.VerlRun:
    given: dict[str, Any] = {
        "model": "/models/qwen",
        "train_file": Path("/data/a, b=c/it's/train.parquet"),
        "validation_file": Path("/data/heldout.parquet"),
        "reward_file": Path("/code/verl_reward.py"),
        "checkpoints": Path("/run/verl-checkpoints"),
        "rollouts": Path("/run/verl-rollouts"),
        "steps": 30,
        "questions": 4,
        "answers": 4,
        "temperature": 1.0,
        "max_prompt_length": 2048,
        "max_new_tokens": 256,
        "lr": 1e-6,
        "weight_decay": 0.01,
        "clip": 0.2,
        "max_norm": 1.0,
        "passes": 1,
        "gpu_memory_utilization": 0.4,
        "offload": True,
        "gpus": 1,
        "steps_per_epoch": 32,
    }
    return verl.VerlRun(**{**given, **more})
