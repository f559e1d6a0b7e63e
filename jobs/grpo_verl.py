"""GRPO through verl: its settings checked, its trainer launched, and what it says turned into the same evidence."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from importlib import resources
from pathlib import Path
from typing import Any

from vlmconsole.data.example import Example, truth_text
from vlmconsole.data.scored import common_scorer
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.grpo_evidence import TRAINING, GrpoEvidence, RolloutAnswer, first_and_last, reward_facts
from vlmconsole.jobs.grpo_local import ready_data, refuse_leaks, say_moved, split
from vlmconsole.jobs.grpo_settings import GrpoSpec, check_rewardable, learning, reward_parts
from vlmconsole.measure.machine import hardware
from vlmconsole.models.door import door
from vlmconsole.runs.conditions import Conditions
from vlmconsole.scoring.rewards import Reward, RewardPart
from vlmconsole.scoring.verl_reward import FUNCTIONS, LOADED, write_loader

GRACE = 30.0  # seconds between asking verl to stop and killing it
LATE = 10.0  # seconds that a rollout file may come after its step's line
VIDEO_TAG = "<video>"
FAILED_IN_VERL = "a part gave no score (verl keeps no reason)"
TAIL = 15  # lines of verl's last words kept for the reason


def train(context: Context, spec: GrpoSpec) -> dict[str, Any]:
    """Check, launch, follow, export. Raises JobError with the reason (memory, NaN, a crash) and Stopped."""
    from vlmconsole.training.adapters.provenance import weights_sha256
    from vlmconsole.training.bases import answering_base, base_name
    from vlmconsole.training.verl import config, settings

    installed = config.installed()
    folder = answering_base(spec.base)
    dataset, digest = ready_data(context, spec.data, learning(spec), spec.steps)
    rows = split(dataset, spec.train_split)
    for example in rows:
        check_rewardable(example, spec)
        refuse_video(example)
    refuse_leaks(rows, context)
    per_epoch = len(rows) // spec.questions
    if per_epoch == 0:
        raise JobError(f"{spec.data} has {len(rows)} training images, fewer than the {spec.questions} of one step")
    reward_file, reward_name = _reward(context, spec, rows, split(dataset, spec.validation_split))
    run = settings.VerlRun(
        model=str(folder),
        train_file=dataset / f"{spec.train_split}.parquet",
        validation_file=dataset / f"{spec.validation_split}.parquet",
        reward_file=reward_file,
        reward_name=reward_name,
        checkpoints=context.run.file("verl-checkpoints"),
        rollouts=context.run.file("verl-rollouts"),
        steps=spec.steps,
        questions=spec.questions,
        answers=spec.answers,
        temperature=spec.temperature,
        max_prompt_length=spec.verl.max_prompt_length,
        max_new_tokens=spec.max_new_tokens,
        lr=spec.lr,
        weight_decay=spec.weight_decay,
        clip=spec.clip,
        max_norm=spec.max_norm,
        passes=spec.passes,
        gpu_memory_utilization=spec.verl.gpu_memory_utilization,
        offload=spec.verl.offload,
        gpus=spec.verl.gpus,
        steps_per_epoch=per_epoch,
        extra=tuple(spec.verl.overrides),
    )
    given = settings.overrides(run)
    checked = config.check(given, installed)
    context.run.write_json("verl.json", {"version": installed.version, "overrides": given, "configuration": checked})
    context.log(f"verl {installed.version} takes all {len(given)} settings, none of them dead")
    base_sha256 = weights_sha256(folder)
    conditions = Conditions(
        hardware=hardware(),
        engine="verl GRPO",
        engine_version=f"verl {installed.version}",
        model=base_name(spec.base),
        model_sha256=base_sha256,
        precision="bfloat16",
        temperature=spec.temperature,
        **door(folder).facts(),
        max_tokens=spec.max_new_tokens,
        n=spec.steps * spec.questions * spec.answers,
        settings={"data": {dataset.name: digest}, "overrides": given},
    )
    context.run.write_json("conditions.json", conditions.known())
    _VerlFollower(context, spec, rows, run.rollouts).follow(settings.train_command(sys.executable, given))
    merged = context.run.file("model")
    code = _call(context, settings.merge_command(sys.executable, run.checkpoints, spec.steps, merged))
    if code != 0 or not list(merged.glob("*.safetensors")):
        raise JobError(
            f"verl's model_merger ended with {code} and left no model.", f"The shards are kept in {run.checkpoints}."
        )
    return _summary(context, spec, folder, base_sha256, {dataset.name: digest})


def refuse_video(example: Example) -> None:
    """Raise JobError for a text that verl would read as a video, as it does an image tag; it has no other notation."""
    if any(VIDEO_TAG in turn.text for turn in example.asked):
        raise JobError(
            f"verl would take {VIDEO_TAG} in the text of {example.id} for a video.",
            "Word it otherwise and import again, or engine=in-process.",
            code="verl-video",
        )


def _reward(context: Context, spec: GrpoSpec, train: list[Example], held: list[Example]) -> tuple[Path, str]:
    """(file, function) that verl imports as reward: ours for a scorer that needs nothing else, else one of the run's
    own, which judges by the same code as the in-process engine."""
    from vlmconsole.training.rewards import keep_reward

    scorer = spec.scorer or common_scorer(train)
    if not (parts := reward_parts(spec)) and scorer in FUNCTIONS:
        return Path(str(resources.files("vlmconsole.scoring") / "verl_reward.py")), FUNCTIONS[scorer]
    reward = Reward(parts or [RewardPart(scorer=spec.scorer)])
    keep_reward(context.run, reward)
    truths = {
        example.id: {
            "truth": example.truth,
            "scorer": example.scorer,
            "options": dict(example.options),
            "question": example.question,
        }
        for example in (*train, *held)
    }
    return write_loader(context.run.path, reward, truths), LOADED


class _VerlFollower:
    """Runs verl's trainer and turns its lines and rollout files into evidence as they come."""

    def __init__(self, context: Context, spec: GrpoSpec, examples: list[Example], rollouts: Path) -> None:
        self.context, self.spec, self.examples, self.rollouts = context, spec, examples, rollouts
        self.evidence = GrpoEvidence(context.run, spec.steps)
        self.reached = 0
        self.tail: list[str] = []
        self.memory = False

    def follow(self, command: list[str]) -> None:
        lines: queue.Queue[str | None] = queue.Queue()
        worker = _start(self.context, command)
        threading.Thread(target=_pump, args=(worker, lines), daemon=True).start()
        asked = False
        while (line := _next(lines)) is not None:
            if line:
                self._heard(line, worker)
            if self.context.stopping() and not asked:
                asked = True
                threading.Thread(target=_end, args=(worker,), daemon=True).start()
        code = worker.wait()
        if asked:
            raise Stopped({"steps": self.reached, "note": "verl was stopped; it keeps no state to go on from exactly"})
        if code != 0 or self.reached < self.spec.steps:
            self._explain(code)

    def _heard(self, line: str, worker: "subprocess.Popen[str]") -> None:
        from vlmconsole.training.verl.logs import out_of_memory, read_line

        self.context.log(line)
        self.tail = [*self.tail[-TAIL:], line]
        self.memory = self.memory or out_of_memory(line)
        printed = read_line(line)
        if printed is None or printed.step != self.reached + 1:
            return  # Ray repeats lines, and validation prints a step of its own
        self.reached = printed.step
        self.evidence.step(*self._step_of(printed))
        lost = printed.not_numbers()
        if lost:
            _end(worker)
            raise JobError(
                f"{', '.join(lost)} is no longer a number at step {printed.step}: the run is lost.",
                "Lower lr; the rollouts up to here are kept.",
                code="training-diverged",
            )

    def _step_of(self, printed: Any) -> tuple[dict[str, Any], list[RolloutAnswer]]:
        """The step's figures and answers; the picture is named only where the truth proves which one it was."""
        from vlmconsole.training.grpo import zero_share
        from vlmconsole.training.verl.logs import group_advantages, read_rollouts

        n, path = self.spec.answers, self.rollouts / f"{printed.step}.jsonl"
        until = time.monotonic() + LATE
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.1)
        sampled, bad = read_rollouts(path.read_bytes()) if path.exists() else ([], 0)
        if bad or len(sampled) != n * self.spec.questions:
            wanted = n * self.spec.questions
            self.context.events.note(
                f"step {printed.step}: {len(sampled)} of {wanted} answers were readable ({bad} bad lines)", "warning"
            )
        line = {**printed.line(), "lengths": None}
        if not sampled or bad:
            return line, []
        scores = [answer.score for answer in sampled]
        groups = [scores[i : i + n] for i in range(0, len(scores), n)]
        line["zero_advantage"] = zero_share(groups)
        if failed := sum(answer.failed for answer in sampled):
            self.evidence.unrewarded(printed.step, [FAILED_IN_VERL] * failed, len(sampled))
        if all(answer.parts.keys() == sampled[0].parts.keys() for answer in sampled) and sampled[0].parts:
            line["reward_parts"] = {
                name: sum(answer.parts[name] for answer in sampled) / len(sampled) for name in sampled[0].parts
            }
        answers = []
        for i, (answer, advantage) in enumerate(zip(sampled, group_advantages(scores, n), strict=True)):
            place = (printed.step - 1) * self.spec.questions + i // n
            example = self.examples[place % len(self.examples)]
            known = example if truth_text(example.truth) == answer.truth else None
            answers.append(
                RolloutAnswer(
                    known,
                    i // n,
                    answer.answer,
                    None,
                    None,
                    answer.truth,
                    answer.score,
                    advantage,
                    answer.valid,
                    scorer="" if self.spec.scorer or example.scorer == "counting" else example.scorer,
                    parts=answer.parts or None,
                )
            )
        return line, answers

    def _explain(self, code: int) -> None:
        from vlmconsole.training.verl.settings import OUT_OF_MEMORY

        reached = f"after {self.reached} of {self.spec.steps} steps"
        if self.memory:
            raise JobError(f"verl ended {reached}.", OUT_OF_MEMORY, code="gpu-memory")
        last = next((line for line in reversed(self.tail) if line.strip()), "it said nothing")
        raise JobError(
            f"verl ended {reached} (exit code {code}): {last[:300]}", "The log holds all it said.", code="verl-ended"
        )


def _start(context: Context, command: list[str]) -> "subprocess.Popen[str]":
    context.log("starting " + " ".join(command[:4]) + f" with {len(command) - 4} settings")
    return subprocess.Popen(
        command,
        cwd=context.run.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1"},
    )


def _pump(worker: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _next(lines: "queue.Queue[str | None]") -> str | None:
    """The next line, "" when none came for half a second, None at the end."""
    try:
        return lines.get(timeout=0.5)
    except queue.Empty:
        return ""


def _end(worker: "subprocess.Popen[str]") -> None:
    """Ask verl and everything it started to stop, and kill what is left after the grace."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(worker.pid, number)
            worker.wait(patience)
        except (ProcessLookupError, PermissionError):
            return
        except subprocess.TimeoutExpired:
            continue
        return


def _call(context: Context, command: list[str]) -> int:
    worker = _start(context, command)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(worker, lines), daemon=True).start()
    while (line := _next(lines)) is not None:
        if line:
            context.log(line)
        if context.stopping():
            _end(worker)
            context.check_stop()
    return worker.wait()


def _summary(context: Context, spec: GrpoSpec, folder: Path, base_sha256: str, data: dict[str, str]) -> dict[str, Any]:
    """What can be proved of the merged model: that it loads, what changed against the base, and that it answers."""
    from vlmconsole.training import export
    from vlmconsole.training.adapters.provenance import Provenance, weights_sha256, write_provenance
    from vlmconsole.training.bases import base_name
    from vlmconsole.training.model import load

    merged = context.run.file("model")
    origin = Provenance(
        kind="grpo",
        base=base_name(spec.base),
        base_sha256=base_sha256,
        precision="bfloat16",
        rank=0,
        alpha=0,
        data=data,
        run=context.run.name,
        step=spec.steps,
        resumable=False,
        prompt_sha256=door(folder).prompt_sha256,
    )
    write_provenance(merged, origin)
    before = load(folder, dtype="bfloat16").model.state_dict()
    rows = export.changes(before, load(merged, dtype="bfloat16").model.state_dict())
    moved = export.summary(rows)
    context.run.write_json("weights.json", {"against": "the base", **moved, "tensors": rows})
    if moved["visual"]["numbers_changed"]:
        raise JobError("verl changed the vision tower although it was to be frozen: see weights.json")
    say_moved(context, moved["language"], spec.lr, "bfloat16")
    reward = first_and_last(context.run, "reward_mean")
    return {
        "model": str(merged),
        "model_sha256": weights_sha256(merged),
        "resume": export.WEIGHTS_ONLY,
        "base_sha256": base_sha256,
        "data": data,
        "steps": sum(1 for _ in context.run.read_jsonl(TRAINING)),
        "reward_first": reward[0],
        "reward_last": reward[1],
        "reward_mean": reward[2],
        "zero_advantage": first_and_last(context.run, "zero_advantage")[2],
        **reward_facts(context.run),
        "language_tensors_changed": f"{moved['language']['tensors_changed']} of {moved['language']['tensors']}",
        "language_numbers_changed": export.numbers_moved(moved["language"]),
        "language_change_norm": moved["language"]["change_norm"],
        "language_rounding_norm": moved["language"]["rounding_norm"],
        "vision_bit_identical": moved["visual"]["numbers_changed"] == 0,
    }
