"""GRPO in this process: sample, score, compare inside each group, step; and go on exactly where a run was killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.data.example import Example
from vlmconsole.data.scored import score_example
from vlmconsole.scoring.rewards import Reward
from vlmconsole.scoring.scorers import Scored
from vlmconsole.training.generation import Generated, end_ids, prompt_of
from vlmconsole.training.generation import answers as greedy
from vlmconsole.training.grpo import GrpoStep, advantages, freeze_eyes, update, zero_share
from vlmconsole.training.masters import Masters
from vlmconsole.training.model import Loaded
from vlmconsole.training.rewards import reward_example
from vlmconsole.training.rollout import look, sample


@dataclass(frozen=True)
class GrpoTraining:
    """What decides the weights, beside base and data. Rates are AdamW's; `micro` is questions a forward pass."""

    questions: int = 4
    answers: int = 4
    temperature: float = 1.0
    max_new_tokens: int = 64
    rate: float = 1e-6
    weight_decay: float = 0.01
    max_norm: float = 1.0
    clip: float = 0.2
    passes: int = 1
    micro: int = 4
    seed: int = 0
    scorer: str = "counting"  # "": each example's own


@dataclass(frozen=True)
class Rollout:
    """One sampled answer with everything it was judged by. `finish` is "stop" or "length"."""

    example: Example
    group: int
    text: str
    tokens: list[int]
    finish: str
    scored: Scored
    advantage: float


@dataclass(frozen=True)
class Taken:
    """One training step: its answers (groups in order) and what its last pass over them did."""

    number: int  # from 1
    rollouts: list[Rollout]
    passes: list[GrpoStep]
    zero_advantage: float

    def groups(self) -> list[list[Rollout]]:
        """Return the answers by question."""
        size = len(self.rollouts) // (self.rollouts[-1].group + 1)
        return [self.rollouts[i : i + size] for i in range(0, len(self.rollouts), size)]


class Trainer:
    """Holds the model, fresh AdamW and the generator that every draw comes from.

    The questions come in the data's own order, four (say) a step, and begin again when they are used up.
    """

    def __init__(
        self,
        loaded: Loaded,
        examples: Sequence[Example],
        settings: GrpoTraining,
        *,
        masters: bool = False,
        reward: Reward | None = None,
    ) -> None:
        """`masters`: step float32 copies of the trained weights, for a model of a coarser type; `reward`: what rewards
        an answer in the scorer's place."""
        import torch

        self.loaded, self.examples, self.settings = loaded, examples, settings
        self.reward = reward
        self.step = 0
        taught = freeze_eyes(loaded.model)
        self.masters = Masters(taught) if masters else None
        # foreach would hold a second copy of every moment while it steps: that ran out of memory on the 3B.
        stepped = taught if self.masters is None else self.masters.weights
        self.optimizer = torch.optim.AdamW(stepped, lr=settings.rate, weight_decay=settings.weight_decay, foreach=False)
        if self.masters is not None:
            self.masters.follow(self.optimizer)
        self.generator = torch.Generator(device=loaded.model.device).manual_seed(settings.seed)
        # No dropout in this architecture; evaluation mode says so, and sampling and training see the same model.
        loaded.model.eval()

    def take(self) -> Taken:
        """Return one step. Raises FloatingPointError (weights unchanged) and ScoringError."""
        import torch

        asked, s = self._questions(), self.settings
        prompts = look(self.loaded, [prompt_of(example) for example in asked])
        made = sample(
            self.loaded,
            prompts,
            n=s.answers,
            generator=self.generator,
            max_new_tokens=s.max_new_tokens,
            temperature=s.temperature,
        )
        tokens = [made.tokens(i) for i in range(len(asked) * s.answers)]
        texts = [self.loaded.tokenizer.decode(ids, skip_special_tokens=True) for ids in tokens]
        scored = [self.judge(asked[i // s.answers], text) for i, text in enumerate(texts)]
        rewards = torch.tensor([answer.reward for answer in scored], dtype=torch.float32).view(-1, s.answers)
        advantage = advantages(rewards).flatten()
        passes = update(
            self.loaded,
            self.optimizer,
            prompts,
            made,
            advantage.to(made.ids.device),
            clip=s.clip,
            max_norm=s.max_norm,
            temperature=s.temperature,
            passes=s.passes,
            micro=s.micro,
        )
        self.step += 1
        ends = end_ids(self.loaded)
        rollouts = [
            Rollout(
                asked[i // s.answers],
                i // s.answers,
                text,
                tokens[i],
                "stop" if tokens[i][-1] in ends else "length",
                scored[i],
                float(advantage[i]),
            )
            for i, text in enumerate(texts)
        ]
        return Taken(self.step, rollouts, passes, zero_share(rewards.tolist()))

    def judge(self, example: Example, answer: str) -> Scored:
        """Return what rewards an answer. Raises ScoringError for a truth that does not fit."""
        if self.reward is None:
            return score_example(example, answer, self.settings.scorer)
        return reward_example(self.reward, example, answer)

    def _questions(self) -> list[Example]:
        first = self.step * self.settings.questions
        return [self.examples[(first + i) % len(self.examples)] for i in range(self.settings.questions)]

    def state(self) -> dict[str, Any]:
        """Return everything that the next steps follow from: trained weights, AdamW's moments, the generators, the
        step.
        """
        import torch

        return {
            "step": self.step,
            "model": {name: p.detach() for name, p in self.stepped().items()},
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "torch": torch.get_rng_state(),
        }

    def stepped(self) -> dict[str, Any]:
        """Return what the optimizer steps, by the parameters' names."""
        own = {name: p for name, p in self.loaded.model.named_parameters() if p.requires_grad}
        return own if self.masters is None else dict(zip(own, self.masters.weights, strict=True))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state` that was kept. Raises KeyError or RuntimeError when it is not this model's."""
        import torch

        own = self.stepped()
        if set(own) != set(state["model"]):
            raise RuntimeError("the checkpoint is of another model")
        with torch.no_grad():
            for name, tensor in state["model"].items():
                own[name].copy_(tensor)
        if self.masters is not None:
            self.masters.round()
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["torch"])
        self.step = int(state["step"])


def greedy_answers(
    loaded: Loaded, examples: Sequence[Example], max_new_tokens: int, batch: int = 16
) -> list[Generated]:
    """Greedy answers to examples, for in-training validation and for the check after reloading."""
    asks = [prompt_of(example) for example in examples]
    return list(greedy(loaded, asks, max_new_tokens=max_new_tokens, batch=batch))
