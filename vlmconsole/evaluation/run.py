"""The evaluation itself: plan frozen first, each side asked, every answer kept, nothing asked twice."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from vlmconsole.errors import LabError
from vlmconsole.evaluation.answerer import Answerer, ModelAnswer, Opener, Stopping, condition_hash
from vlmconsole.evaluation.figures import group_figures, paired_figures, score_figures, side_figures, sight_figures
from vlmconsole.evaluation.items import Item, batches, items_digest
from vlmconsole.evaluation.resume import ATTEMPT, Changed, Earlier
from vlmconsole.evaluation.settings import EvaluateSettings, SideName
from vlmconsole.gates.evidence import CONDITIONS, unlike
from vlmconsole.gates.samples import Sample, Side, read_side
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.folder import RunFolder
from vlmconsole.scoring.registry import identity
from vlmconsole.scoring.scorers import Scored, score
from vlmconsole.text.counts import many

UNSCORED = Scored(valid=True, all_correct=False, partial=0.0, reward=0.0)  # of an answer that nothing scores
GIVE_UP = 5  # requests that fail one after another before the server counts as gone
DIAGNOSTIC = "diagnostic"
BLIND = "blind"
#: remarks on answers (`engines.ending`), as they are counted
ENDINGS = {
    "limit": "cut at max tokens",
    "context": "cut by the server before max tokens",
    "empty": "empty",
    "reasoning": "reasoning alone",
    "refused": "refused by the model",
    "called": "a tool call alone",
    "tools": "with a tool call",
    "lost": "with events lost, set aside as failed",
    "ended": "ended by the server",
    "model": "by another model than was asked for",
    "models": "by several models at once",
}


class EvaluationError(LabError):
    """The evaluation cannot go on; what was answered is kept, and a retry goes on from there."""


@dataclass
class Evaluation:
    """One attempt. `opener` gives the model of a side; `earlier` is the attempt that this one may go on from.

    `blind` are the items whose images were taken away (how: `blind_how`), asked of the tested model.
    """

    run: RunFolder
    settings: EvaluateSettings
    items: list[Item]
    opener: Opener
    diagnostic: list[Item] = field(default_factory=list)
    blind: list[Item] = field(default_factory=list)
    blind_how: str = ""
    earlier: Earlier | None = None
    stopping: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda _: None
    on_progress: Callable[[int, int, str], None] = lambda done, total, note: None
    _done: int = 0
    _taken: int = 0
    _conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    _who: dict[str, dict[str, Any]] = field(default_factory=dict)
    _hashes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Answers in all."""
        return len(self.settings.sides) * len(self.items) + len(self.diagnostic) + len(self.blind)

    @property
    def scored(self) -> bool:
        """Whether the examples have truths; else answers are stored as they came."""
        return any(item.scorer for item in self.items)

    def answer(self) -> dict[str, Any]:
        """Ask everything, and return the summary. Raises Stopping, EvaluationError, and what the opener raises."""
        try:
            self._sides()
        except Changed as changed:
            # Answers of two conditions must never stand in one file: from zero, both sides.
            self.say(f"{changed}: this attempt measures everything anew")
            self._set_aside()
            self.earlier, self._done, self._taken = None, 0, 0
            self._sides()
        return self._summary()

    def _sides(self) -> None:
        for side in self.settings.sides:
            with self.opener(side) as model:
                self._who[side] = model.who.to_json()
                self._side(side, model, self.items)
                if self.diagnostic and side == self.settings.sides[-1]:
                    self._side(DIAGNOSTIC, model, self.diagnostic)
                if self.blind and side == self.settings.sides[-1]:
                    self._side(BLIND, model, self.blind)

    def _side(self, side: str, model: Answerer, items: list[Item]) -> None:
        name = f"{side}.jsonl"
        if side == "after":
            wrong = unlike(
                self._conditions["before"], model.conditions().model_dump(mode="json") | self._lengths("before")
            )
            if wrong:
                raise EvaluationError(
                    f"Before and after are not alike: {'; '.join(wrong[:3])}.",
                    "Only the model or the adapter may differ; the answers of before are kept.",
                    code="sides-differ",
                )
        sha = condition_hash(model.facts, items_digest(items))
        done: set[str] = set()
        if self.earlier is not None:
            taken = self.earlier.samples(side, items, sha, model.facts)
            if taken:
                self.run.append_jsonl(name, *taken)
                done = {sample["id"] for sample in taken}
                self.say(f"{side}: {len(taken)} answers taken over from {self.earlier.name(side)}, same conditions")
        self._hashes[side] = {"sha256": sha, "facts": model.facts, "taken_over": len(done)}
        self.run.write_json(ATTEMPT, self._hashes)
        self._taken += len(done)
        self._done += len(done)
        self._ask(side, model, items, done)
        if side != DIAGNOSTIC:
            # Again after the last answer: what a server says of itself must not have changed on the way.
            kept = {**model.conditions().model_dump(mode="json"), **self._told(side, items)}
            self._conditions[side] = Conditions.model_validate(kept).model_dump(mode="json")
            self.run.write_json(CONDITIONS, self._conditions)

    def _ask(self, side: str, model: Answerer, items: list[Item], done: set[str]) -> None:
        failed, asked = 0, False
        for batch, members in batches(items, self.settings.together):
            missing = [item for item in members if item.id not in done]
            if not missing:
                continue
            if self.stopping():
                raise Stopping
            if not asked and _whole(model):
                self.on_progress(self._done, self.total, f"{side}: loading the model")
            asked = True
            # A batch whose writing was cut off is generated whole again, so that its members are the same.
            answers = dict(zip((i.id for i in members), model.ask(members), strict=True)) if _whole(model) else {}
            answers = answers or dict(zip((i.id for i in missing), model.ask(missing), strict=True))
            lines = [self._line(item, answers[item.id], batch) for item in missing]
            self.run.append_jsonl(f"{side}.jsonl", *lines)
            self._done += len(lines)
            right = sum(line["all_correct"] for line in lines)
            note = f"{right} of {len(lines)} right" if self.scored else many(len(lines), "answer")
            self.on_progress(self._done, self.total, f"{side} {batch}: {note}")
            for item in missing:
                failed = 0 if answers[item.id].http_ok else failed + 1
                if failed >= GIVE_UP:
                    raise EvaluationError(
                        f"{failed} requests failed one after another: {answers[item.id].error}",
                        "Answers and failures are stored; a retry resumes from there.",
                        code="requests-failed",
                    )

    def _line(self, item: Item, answer: ModelAnswer, batch: str) -> dict[str, Any]:
        scored = score(item.scorer, answer.answer, item.truth, item.options) if item.scorer else UNSCORED
        return {
            "id": item.id,
            "group": item.group,
            "picture_sha256": item.picture_sha256,
            "pixel_sha256": item.pixel_sha256,
            "tensor_sha256": answer.tensor_sha256,
            "prompt": item.example.prompt,
            "prompt_sha": item.prompt_sha,
            "answer": answer.answer,
            "token_ids": answer.token_ids,
            "truth": item.truth,
            "valid": scored.valid,
            "all_correct": scored.all_correct,
            "partial": scored.partial,
            "reward": scored.reward,
            "reason": scored.reason,
            "scorer": identity(item.scorer) if item.scorer else "",
            **({"options": dict(item.options)} if item.options else {}),
            "http_ok": answer.http_ok,
            "error": answer.error,
            "finish": answer.finish,
            "prompt_tokens": answer.prompt_tokens,
            "output_tokens": answer.output_tokens,
            "seconds": answer.seconds,
            "sight": answer.sight,
            "remarks": list(answer.remarks),
            "answered_by": list(answer.others),
            "batch": batch,
            "dataset": item.dataset,
            "split": item.split,
            "t": round(time.time(), 3),
        }

    def _lengths(self, side: str) -> dict[str, Any]:
        """The counted fields of a side, which the other cannot have before it has answered."""
        counted = ("input_tokens", "output_tokens", "n", "image", "asked_model")
        return {key: self._conditions[side][key] for key in counted}

    def _told(self, side: str, items: list[Item]) -> dict[str, Any]:
        """The conditions that only the answers can tell: their number and lengths in tokens, and the picture sizes."""
        name = f"{side}.jsonl"
        lines = [line for line in self.run.read_jsonl(name) if line.get("http_ok")]
        others = sorted({str(name) for line in lines for name in line.get("answered_by") or ()})
        summary: dict[str, Any] = {}
        if others:
            self.say(f"{name}: answered by {', '.join(others)}, which is not the model asked for")
            tested = self.settings.sides[-1] if side == BLIND else side
            summary = {"model": ", ".join(others), "asked_model": self._who[tested]["model"]}
        return {
            **summary,
            "n": len(items),
            "image": _sizes(items),
            "input_tokens": _span([line["prompt_tokens"] for line in lines]),
            "output_tokens": _span([line["output_tokens"] for line in lines]),
        }

    def _set_aside(self) -> None:
        for side in (*self.settings.sides, DIAGNOSTIC, BLIND):
            path = self.run.file(f"{side}.jsonl")
            if path.exists():
                path.rename(self.run.file(f"set-aside-{side}.jsonl"))

    def _summary(self) -> dict[str, Any]:
        sides = {side: read_side(self.run.file(f"{side}.jsonl")) for side in self.settings.sides}
        groups = list(dict.fromkeys(item.group for item in self.items))
        after = sides["after"].samples if "after" in sides else None
        every = [sample for side in sides.values() for sample in side.samples.values()]
        summary: dict[str, Any] = {
            "n": len(every),
            "http_failures": sum(not sample.http_ok for sample in every),
            "taken_over": self._taken,
            **({"endings": endings} if (endings := self._endings()) else {}),
            "scorers": sorted({identity(item.scorer) for item in self.items if item.scorer}),
            "groups": group_figures(sides["before"].samples, after, groups) if self.scored else {},
            "scores": self._scores(sides),
            **({"paired": paired_figures(sides["before"].samples, after)} if after is not None and self.scored else {}),
            **self._who,
        }
        if after is not None:
            first = sides["before"].samples
            same = sum(i in first and first[i].answer == sample.answer for i, sample in after.items())
            summary["same_answers"] = same
            if same == len(after) and self.settings.after_adapter:
                self.say(f"all {same} answers are the same before and after: the adapter had no effect to be seen")
        if ended := ", ".join(f"{count} {ENDINGS.get(code, code)}" for code, count in endings.items()):
            self.say(f"of {len(every)} answers: {ended}")
        if self.blind and self.scored:
            summary[BLIND] = self._sight(sides[self.settings.sides[-1]].samples, summary["groups"])
        if self.diagnostic:
            diagnostics = read_side(self.run.file(f"{DIAGNOSTIC}.jsonl")).samples
            summary[DIAGNOSTIC] = {
                **side_figures(diagnostics.values()),
                "note": "training images: no measure of skill",
            }
        return summary

    def _scores(self, sides: Mapping[SideName, Side]) -> dict[str, Any]:
        """Each side's score; {} where the examples have no truth to score by."""
        return {side: score_figures(held.samples.values()) for side, held in sides.items()} if self.scored else {}

    def _sight(self, seen: dict[str, Sample], groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """What the images are worth, over all and, put into `groups`, in each."""
        unseen = read_side(self.run.file(f"{BLIND}.jsonl")).samples
        for name, group in groups.items():
            first, second = ({i: s for i, s in side.items() if s.group == name} for side in (unseen, seen))
            if first:
                group[BLIND] = sight_figures(first, second, self.blind_how)
        return sight_figures(unseen, seen, self.blind_how)

    def _endings(self) -> dict[str, int]:
        """How many answers were cut by the ceiling, empty, reasoning alone…, by the code of `engines.ending`."""
        sides = [self.run.read_jsonl(f"{side}.jsonl") for side in self.settings.sides]
        return dict(Counter(str(code) for lines in sides for line in lines for code in line.get("remarks") or ()))


def _whole(model: Answerer) -> bool:
    """Whether a batch's members decide its answers: in-process they are padded together."""
    return model.facts.get("backend") == "in-process"


def _span(values: Sequence[int | None]) -> int | str | None:
    """One number when all agree, "120–128" otherwise, None when one is not known."""
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    low, high = min(known), max(known)
    return low if low == high else f"{low}–{high}"


def _sizes(items: Sequence[Item]) -> str:
    """The images' size in pixels, or how many different sizes there are."""
    sizes = {Image.open(io.BytesIO(image)).size for item in items for image in item.example.images}
    if not sizes:
        return "no images"
    if len(sizes) == 1:
        width, height = sizes.pop()
        return f"{width}x{height}"
    return f"{len(sizes)} sizes"
