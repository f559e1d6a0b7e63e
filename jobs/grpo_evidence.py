"""What a GRPO run leaves as evidence, by either engine: a line a step, a group and an answer; and as events."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmconsole.data.example import Example
from vlmconsole.gates.samples import images_hash
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.text.plain import one_line

TRAINING, ROLLOUTS, GROUPS, PICTURES = "training.jsonl", "rollouts.jsonl", "groups.jsonl", "pictures"
FAILURES = "reward-failures.jsonl"  # a line a step in which the reward of an answer failed
#: key of a training line → name of its curve, unit
CURVES = {
    "loss": ("loss", None),
    "reward_mean": ("reward mean", None),
    "reward_std": ("reward spread", None),
    "grad_norm": ("grad norm", None),
    "lr": ("learning rate", None),
    "entropy": ("entropy", "nat/token"),
    "clip_fraction": ("clip fraction", None),
    "zero_advantage": ("zero advantage", None),
    "length_mean": ("answer length", "token"),
    "seconds": ("seconds per step", "s"),
}


@dataclass(frozen=True)
class RolloutAnswer:
    """One sampled answer as it is kept. `example` is None where it is not known which one it belongs to; `scorer` is
    told where the run's settings name none for all.
    """

    example: Example | None
    group: int
    answer: str
    tokens: list[int] | None
    finish: str | None
    truth: Any
    reward: float
    advantage: float
    valid: bool | None
    reason: str = ""
    scorer: str = ""
    parts: Mapping[str, float] | None = None  # of a reward, by name


class GrpoEvidence:
    """Writes a run's steps. A step is written before its checkpoint, so a resumed run can be cut back to it."""

    def __init__(self, run: RunFolder, total: int) -> None:
        self.run, self.total = run, total
        run.file(PICTURES).mkdir(mode=0o700, exist_ok=True)

    def step(self, line: dict[str, Any], answers: Iterable[RolloutAnswer]) -> None:
        """One training step: `line` holds `step` and the figures, `said` its answers, group after group."""
        groups: dict[int, list[RolloutAnswer]] = {}
        for answer in answers:
            groups.setdefault(answer.group, []).append(answer)
            self._answer(line["step"], answer)
        for number, members in groups.items():
            rewards = [answer.reward for answer in members]
            self.run.append_jsonl(
                GROUPS,
                {
                    "step": line["step"],
                    "group": number,
                    "uid": members[0].example.id if members[0].example else None,
                    "rewards": rewards,
                    "advantages": [answer.advantage for answer in members],
                    "zero_advantage": len(set(rewards)) == 1,
                },
            )
        self.run.append_jsonl(TRAINING, line)
        self.show(line)

    def unrewarded(self, step: int, reasons: Sequence[str], of: int) -> None:
        """Say that the reward of some of a step's answers failed: they were rewarded with 0."""
        text = f"step {step}: the reward of {len(reasons)} of {of} answers failed, so it is 0: {one_line(reasons[0])}"
        self.run.append_jsonl(FAILURES, {"step": step, "n": len(reasons), "of": of, "reasons": sorted(set(reasons))})
        self.run.events.note(text, "warning")

    def show(self, line: dict[str, Any]) -> None:
        """A training line as progress and points of its curves."""
        for name, mean in (line.get("reward_parts") or {}).items():
            self.run.events.metric(f"reward {name}", mean, step=line["step"])
        for key, (name, unit) in CURVES.items():
            if isinstance(line.get(key), int | float):
                self.run.events.metric(name, line[key], step=line["step"], unit=unit)
        note = f"reward {line['reward_mean']:.3f}" if isinstance(line.get("reward_mean"), float) else None
        self.run.events.progress(line["step"], self.total, note=note)

    def _answer(self, step: int, answer: RolloutAnswer) -> None:
        example = answer.example
        pictures = self.pictures(example) if example is not None else []
        shared = {
            "step": step,
            "uid": example.id if example else None,
            "group": answer.group,
            "picture": pictures[0] if pictures else None,
            **({"pictures": pictures} if len(pictures) > 1 else {}),
            "truth": answer.truth,
            "answer": answer.answer,
            "reward": answer.reward,
            "advantage": answer.advantage,
            **({"parts": dict(answer.parts)} if answer.parts else {}),
        }
        more = {
            "picture_sha256": images_hash(example.image_sha256s) if example else None,
            "prompt": example.prompt if example else None,
            "token_ids": answer.tokens,
            "finish": answer.finish,
            "valid": answer.valid,
            "reason": answer.reason,
            **({"scorer": answer.scorer} if answer.scorer else {}),
            **({"options": dict(example.options)} if answer.scorer and example and example.options else {}),
        }
        self.run.append_jsonl(ROLLOUTS, {**shared, **more})
        self.run.events.emit("rollout", **shared)

    def pictures(self, example: Example) -> list[str]:
        """Return each image's file inside the run, written once, as bytes unchanged; paths are relative to the run."""
        names = []
        for image, sha in zip(example.images, example.image_sha256s, strict=True):
            ending = "png" if image.startswith(b"\x89PNG") else "jpg" if image.startswith(b"\xff\xd8") else "img"
            names.append(name := f"{PICTURES}/{sha[:16]}.{ending}")
            if not self.run.file(name).exists():
                write_atomic(self.run.file(name), image)
        return names

    def take_over(self, earlier: RunFolder, step: int) -> None:
        """Bring an earlier attempt's steps up to `step` into this run, so that it is whole by itself."""
        for name in (TRAINING, ROLLOUTS, GROUPS, FAILURES, "validation.jsonl"):
            for line in earlier.read_jsonl(name):
                if isinstance(line.get("step"), int) and line["step"] <= step:
                    self.run.append_jsonl(name, line)
                    if name == TRAINING:
                        self.show(line)
        if earlier.file(PICTURES).is_dir():
            for path in sorted(earlier.file(PICTURES).iterdir()):
                shutil.copyfile(path, self.run.file(f"{PICTURES}/{path.name}"))


def first_and_last(run: RunFolder, key: str) -> tuple[float | None, float | None, float | None]:
    """First, last and mean of one figure over a run's training lines; Nones where there are none."""
    values = [line[key] for line in run.read_jsonl(TRAINING) if isinstance(line.get(key), int | float)]
    return (values[0], values[-1], sum(values) / len(values)) if values else (None, None, None)


def reward_facts(run: RunFolder) -> dict[str, Any]:
    """For a summary: the last mean of each part of the reward, and for how many answers it failed; both where any."""
    parts: dict[str, float] = {}
    for line in run.read_jsonl(TRAINING):
        parts = line.get("reward_parts") or parts
    failed = sum(int(line["n"]) for line in run.read_jsonl(FAILURES))
    return {**({"reward_parts_last": parts} if parts else {}), **({"reward_failures": failed} if failed else {})}


def unchanged(run: RunFolder) -> str:
    """Return why training may have changed no weight, from its lines; the learning rate is blamed only if it had
    gradients.
    """
    lines = [line for line in run.read_jsonl(TRAINING) if isinstance(line.get("grad_norm"), int | float)]
    if not lines:
        return "no weight changed, and no gradient was told"
    if any(line["grad_norm"] != 0 for line in lines):
        return "no weight changed: the learning rate is below this precision's resolution"
    equal = all(line.get("zero_advantage") == 1 for line in lines)
    return "no weight changed: every gradient was 0" + (
        ", as the answers to each question had equal rewards (raise temperature, answers or steps)" if equal else ""
    )
