"""A GRPO preset in verl's words: the overrides of `verl.trainer.main_ppo`, and the commands around it.

verl 0.6.1 trains with FSDP2 and samples with SGLang; both need CUDA. The rest of this module is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = re.compile(
    r"(^|[.+~])(external_lib|trust_remote_code|class_path|import_path|runtime_env|_target_|py_executable|env_vars"
    r"|custom_\w+|\w*module\w*|\w*config_path|datagen|fn|func\w*)(\.|=|$)"
)
"""Keys of verl 0.6 to 0.9 by which it imports or runs what a value names."""


def names_program(item: str) -> bool:
    """Return whether a key=value for verl has it run or import something: what a preset, which is data, may not
    choose.
    """
    key, _, value = item.partition("=")
    return _PROGRAM.search(f"{key}=") is not None and value.strip().lower() not in ("false", "null", "none", "")


OUT_OF_MEMORY = (
    "The GPU ran out of memory. AdamW's foreach=False is set already (with foreach=True the first step does not fit "
    "the 3B into 32 GB); set verl.offload=true, then lower verl.gpu_memory_utilization, max_new_tokens or questions, "
    "and see that nothing else holds the card."
)


@dataclass(frozen=True)
class VerlRun:
    """What a run through verl is made of. Lengths are tokens; `steps_per_epoch` questions fit into the data once."""

    model: str
    train_file: Path
    validation_file: Path
    reward_file: Path
    checkpoints: Path
    rollouts: Path
    steps: int
    questions: int
    answers: int
    temperature: float
    max_prompt_length: int
    max_new_tokens: int
    lr: float
    weight_decay: float
    clip: float
    max_norm: float
    passes: int
    gpu_memory_utilization: float
    offload: bool
    gpus: int
    steps_per_epoch: int
    reward_name: str = "compute_score"  # the function in `reward_file`
    extra: tuple[str, ...] = ()


def overrides(run: VerlRun) -> list[str]:
    """Return the list of key=value for `main_ppo`, in Hydra's notation; `extra` comes last and wins."""
    actor = {
        "strategy": "fsdp2",
        "freeze_vision_tower": True,
        "optim.lr": run.lr,
        "optim.weight_decay": run.weight_decay,
        "optim.optimizer": "AdamW",
        "optim.optimizer_impl": "torch.optim",
        "optim.override_optimizer_config": "{foreach:False}",
        "grad_clip": run.max_norm,
        "clip_ratio": run.clip,
        "ppo_epochs": run.passes,
        "ppo_mini_batch_size": run.questions,
        "ppo_micro_batch_size_per_gpu": 1,
        "use_kl_loss": False,
        "entropy_coeff": 0,
        "fsdp_config.param_offload": run.offload,
        "fsdp_config.optimizer_offload": run.offload,
        "fsdp_config.model_dtype": "bfloat16",
        "checkpoint.save_contents": "[model]",
        "checkpoint.load_contents": "[model]",
    }
    rollout = {
        "name": "sglang",
        "n": run.answers,
        "temperature": run.temperature,
        "top_p": 1.0,
        "tensor_model_parallel_size": 1,
        "gpu_memory_utilization": run.gpu_memory_utilization,
        "enforce_eager": True,
        "free_cache_engine": True,
        "log_prob_micro_batch_size_per_gpu": 1,
    }
    # verl's own default, FlashAttention 2 over unpadded rows, needs flash-attn, which PyPI has as source alone (its
    # building wants a CUDA compiler): attention is torch's own, over padded rows. Who has it says so in `extra`.
    model = {"path": run.model, "enable_gradient_checkpointing": True, "use_remove_padding": False}
    given: dict[str, object] = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": True,
        "algorithm.use_kl_in_reward": False,
        "data.train_files": run.train_file,
        "data.val_files": run.validation_file,
        "data.train_batch_size": run.questions,
        "data.max_prompt_length": run.max_prompt_length,
        "data.max_response_length": run.max_new_tokens,
        "data.image_key": "images",
        "data.shuffle": False,
        "data.filter_overlong_prompts": True,
        "data.truncation": "error",
        "data.dataloader_num_workers": 0,
        **{f"actor_rollout_ref.model.{key}": value for key, value in model.items()},
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        **{f"actor_rollout_ref.actor.{key}": value for key, value in actor.items()},
        **{f"actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()},
        "trainer.critic_warmup": 0,
        "trainer.logger": "[console]",
        "trainer.n_gpus_per_node": run.gpus,
        "trainer.nnodes": 1,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": run.steps,
        "trainer.total_training_steps": run.steps,
        "trainer.total_epochs": -(-run.steps // max(1, run.steps_per_epoch)),
        "trainer.default_local_dir": run.checkpoints,
        "trainer.rollout_data_dir": run.rollouts,
        "trainer.resume_mode": "disable",
        # Balancing would deal a batch out anew, and the answers of a question would no longer stand together.
        "trainer.balance_batch": False,
        "critic.enable": False,
        "custom_reward_function.path": run.reward_file,
        "custom_reward_function.name": run.reward_name,
    }
    return [f"{key}={_hydra(value)}" for key, value in given.items()] + list(run.extra)


def train_command(python: str, given: list[str]) -> list[str]:
    """Return the trainer as an argument list; no shell ever sees it. `-P` keeps the current folder off the import
    path.
    """
    return [python, "-P", "-m", "verl.trainer.main_ppo", *given]


def merge_command(python: str, checkpoints: Path, step: int, target: Path) -> list[str]:
    """FSDP shards of a step → a Hugging Face folder."""
    shards = checkpoints / f"global_step_{step}" / "actor"
    given = ["--backend", "fsdp", "--local_dir", str(shards), "--target_dir", str(target)]
    return [python, "-P", "-m", "verl.model_merger", "merge", *given]


def _hydra(value: object) -> str:
    """A value as Hydra's grammar reads it back: paths are quoted, as commas, spaces and `=` mean something there."""
    if isinstance(value, Path):
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
    return str(value)
