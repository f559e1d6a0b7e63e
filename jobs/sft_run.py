"""One supervised training from its data to its chosen adapter, with everything written down on the way.

Imported only inside a worker: it needs torch. What a kill leaves is a checkpoint and the adapters of finished epochs;
a retry copies them into its own folder and goes on to the same weights.
"""

from pathlib import Path
from typing import Any

from vlmconsole.data.dataset import manifest_digest
from vlmconsole.data.names import promised
from vlmconsole.data.scored import check_scorable, common_scorer, scored_by
from vlmconsole.errors import LabError
from vlmconsole.jobs import data
from vlmconsole.jobs.contract import Context, JobError, Stopped
from vlmconsole.jobs.memory_plan import memory_plan, say_peak
from vlmconsole.jobs.sft_dev import develop, read_rewards
from vlmconsole.jobs.sft_settings import LEARNING, SftSpec, learning, planned_work
from vlmconsole.jobs.training_end import say_outcome
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import digest, freeze
from vlmconsole.measure.machine import hardware
from vlmconsole.models.door import door
from vlmconsole.runs.conditions import Conditions, another_prompt
from vlmconsole.runs.events import json_line
from vlmconsole.runs.folder import RunFolder, write_atomic
from vlmconsole.scoring.learning import TrainingOutcome, sft_causes, training_outcome
from vlmconsole.scoring.registry import find_scorer, identity
from vlmconsole.training import bases, checkpoint, curriculum, model, selection, sft
from vlmconsole.training.adapters import saved as kept
from vlmconsole.training.adapters.provenance import Provenance
from vlmconsole.training.adapters.store import base_sha256, check_fits, find_adapter, open_adapter

CHECKPOINT, TRAINING, START = "checkpoint.pt", "training.jsonl", "start"
START_EPOCH = 0  # the dev scores before the first step
LOOK = 10  # steps between two points of the slower curves


class Teacher:
    """The state of one attempt. `run` is the whole of it, in order; each part says what it did in the events."""

    def __init__(self, context: Context, spec: SftSpec) -> None:
        import torch

        torch.set_num_threads(spec.threads)
        self.context, self.run_folder, self.spec = context, context.run, spec
        self.base = bases.answering_base(spec.base)
        self.device = bases.device_for(spec.device)
        self.precision = bases.precision_for(spec.precision, self.device)
        self.base_sha = base_sha256(self.base)
        self.prompt = door(self.base).facts()
        self.parent: str | None = None

    def run(self) -> dict[str, Any]:
        data.course(self.context, [self.spec.data], {LEARNING: self._expected()}, examines=True)
        folder = data.ready(self.context, self.spec.data)
        manifest = data.examined(self.context, folder)
        self.context.events.phase(LEARNING)
        self.context.events.progress(0, None, note=data.LOADING)
        self.dataset, self.digest = folder.name, manifest_digest(manifest)
        self.dev_split = next(name for name, split in manifest["splits"].items() if split["role"] == "dev")
        dev = data.split_examples(folder, manifest, "dev")
        self.dev = [question for example in dev for question in example.questions()]
        for question in self.dev:
            check_scorable(question, self.spec.scorer)
        rows = data.split_examples(folder, manifest, "train")
        self._freeze()
        left = self._left()
        loaded = model.load(self.base, dtype=self.precision, device=self.device)
        adapted = self._begin(loaded, left)
        frozen = sft.frozen_sha256(adapted)
        self._audit_mask(loaded, rows)
        plan = curriculum.Curriculum(
            len(rows), self.spec.epochs, self.spec.batch, self.spec.accumulation, self.spec.seed
        )
        self.course = sft.Course(loaded, adapted, rows, plan, self._settings())
        if left is not None:
            self._take_up(left)
        # Answers come from the same weights that are trained: the adapter sits inside the base.
        self.answering = model.Loaded(adapted.get_base_model(), loaded.tokenizer, loaded.images, loaded.folder)
        self._write_conditions(len(rows))
        if self.spec.score_start and not self.run_folder.file(selection.development_file(START_EPOCH)).exists():
            develop(self, START_EPOCH)
        for epoch in range(1, self.spec.epochs + 1):
            self._epoch(epoch)
        return self._finish(frozen)

    # ── before the first step ──────────────────────────────────────────────────────────────────────────────────

    def _expected(self) -> float:
        """Seconds that the training would take with the bundled model."""
        try:
            splits = promised(self.spec.data, self.context.places.datasets)
        except LabError:
            return 1.0  # what is wrong with the data is said when they are made
        n = {role: sum(split.n or 0 for split in splits.values() if split.role == role) for role in ("train", "dev")}
        return learning(self.spec, n["train"], n["dev"])

    def _freeze(self) -> None:
        """The rule of selection goes into the ledger before anything is learnt."""
        scoring = [(example.id, scored_by(example, self.spec.scorer)) for example in self.dev]
        left = self.context.earlier.read_json(selection.FILE) if self.context.earlier is not None else None
        older = isinstance(left, dict) and "scorers" not in left  # the same rule as the attempt that it goes on from
        rule = selection.SelectionRule(
            self.dataset,
            self.digest,
            self.dev_split,
            tuple(example.id for example in self.dev),
            tuple(sorted(self.spec.dev_epochs)),
            self.spec.max_new_tokens,
            scorers=() if older else tuple(sorted({find_scorer(name).label for _, (name, _) in scoring})),
            scoring_sha256=digest([[uid, identity(*scored)] for uid, scored in scoring]),
        )
        frozen = freeze(self.run_folder, selection.FILE, rule.to_json(), Ledger(self.context.places.ledger))
        self.context.events.note(f"the rule of selection is frozen: {frozen.sha256[:12]}…")

    def _left(self) -> RunFolder | None:
        """The nearest earlier attempt that left a checkpoint; None to start at step 0."""
        run = self.run_folder if self.run_folder.file(CHECKPOINT).exists() else self.context.earlier
        while run is not None and not run.file(CHECKPOINT).exists():
            earlier = run.job().get("earlier")
            run = RunFolder(Path(earlier)) if earlier else None
        return run

    def _begin(self, loaded: model.Loaded, left: RunFolder | None) -> Any:
        """The model with its starting adapter, which is kept as `start/` so that every change can be recomputed."""
        start = self.run_folder.file(START)
        source: Path | None = None
        if left is not None:
            if left.path != self.run_folder.path:
                kept.copy_adapter(left.file(START), start)
            source = start if self.spec.adapter else None
            origin = open_adapter(start).provenance
            self.parent = origin.parent_sha256 if origin else None
        elif self.spec.adapter:
            adapter = find_adapter(self.context.places, self.spec.adapter)
            label = check_fits(adapter, self.base, self.precision, self.spec.other_base)
            self.context.events.note(
                f"continues {adapter.name} ({adapter.sha256[:12]}…){': ' + label if label else ''}",
                "warning" if label else "info",
            )
            source, self.parent = adapter.path, adapter.sha256
        adapted = sft.adapted(loaded, self._settings(), source)
        if left is None:
            kept.save_adapter(adapted, start, self._origin(0, 0))
        return adapted

    def _audit_mask(self, loaded: model.Loaded, rows: list[Any]) -> None:
        """What each training picture teaches, from the tensors themselves. Raises JobError before the first step."""
        masked = list(curriculum.audit_mask(loaded, rows, self.context.stopping))
        self.context.check_stop()
        wrong = [masked_row for masked_row in masked if masked_row.wrong]
        supervised = sum(masked_row.count for masked_row in masked)
        total = sum(masked_row.tokens for masked_row in masked)
        self.run_folder.write_json(
            "mask.json",
            {
                "rule": "the answer and its end mark count; question, image and padding never do",
                "dataset": self.dataset,
                "dataset_sha256": self.digest,
                "rows": len(masked),
                "tokens": total,
                "supervised_tokens": supervised,
                "visual_tokens_supervised": sum(masked_row.visual for masked_row in masked),
                "wrong": len(wrong),
                "each": [masked_row.to_json() for masked_row in masked],
            },
        )
        if wrong:
            raise JobError(
                f"{len(wrong)} of {len(masked)} images would teach wrong tokens: {wrong[0].uid}: {wrong[0].wrong}.",
                "Nothing was trained; mask.json lists them.",
                code="mask-wrong",
            )
        self.context.events.note(f"mask audit: {supervised} of {total} tokens count, all of them answers")

    def _write_conditions(self, rows: int) -> None:
        import torch
        import transformers

        conditions = Conditions(
            hardware=hardware(),
            engine="transformers",
            engine_version=transformers.__version__,
            model=bases.base_name(self.spec.base),
            model_sha256=self.base_sha,
            precision=self.precision,
            adapter=f"continues {self.parent}" if self.parent else "fresh",
            clock="a step: drawing up the tensors, forward, backward, update",
            n=rows,
            temperature=0.0,
            seed=self.spec.seed,
            **self.prompt,
            max_tokens=self.spec.max_new_tokens,
            settings={
                "torch": torch.__version__,
                "threads": self.spec.threads,
                "device": self.device,
                "dataset": self.dataset,
                "dataset_sha256": self.digest,
            },
            notes=(selection.NOT_A_BASELINE,),
        )
        self.run_folder.write_json("conditions.json", conditions.model_dump(mode="json"))

    # ── checkpoints ────────────────────────────────────────────────────────────────────────────────────────────

    def _identity(self) -> dict[str, Any]:
        """Return what a checkpoint must agree with for a resume."""
        return {
            "spec": {**self.spec.model_dump(mode="json"), "scorer": self.spec.scorer or common_scorer(self.dev)},
            "base": self.base_sha,
            "dataset": self.digest,
            "parent": self.parent,
            "device": self.device,
            "precision": self.precision,
            **another_prompt(self.prompt),
        }

    def _keep(self) -> None:
        state = {"identity": self._identity(), **self.course.state()}
        checkpoint.save(self.run_folder.file(CHECKPOINT), state, step=self.course.done, label="resumable")

    def _take_up(self, left: RunFolder) -> None:
        """Bring what an earlier attempt finished into this folder, the checkpoint last, and resume from it."""
        state = checkpoint.read(left.file(CHECKPOINT))
        mine, theirs = self._identity(), state["identity"]
        other = sorted(key for key in mine if mine[key] != theirs.get(key))
        if other:
            raise JobError(
                f"The checkpoint of {left.name} was made with another {' and '.join(other)}.",
                "It is left as it was; start the preset anew.",
                code="checkpoint-differs",
            )
        self.course.take_up(state)
        done, per_epoch = self.course.done, self.course.plan.steps_per_epoch
        lines = [line for line in left.read_jsonl(TRAINING) if line["step"] <= done]
        if len(lines) != done:
            raise JobError(
                f"{TRAINING} of {left.name} holds {len(lines)} of {done} steps.",
                "Start the preset anew.",
                code="checkpoint-incomplete",
            )
        if left.path != self.run_folder.path and left.file(selection.development_file(START_EPOCH)).exists():
            name = selection.development_file(START_EPOCH)
            write_atomic(self.run_folder.file(name), left.file(name).read_bytes())
        past = range(1, (done - 1) // per_epoch + 1)
        missing = [f"epoch-{epoch}" for epoch in past if not left.file(f"epoch-{epoch}").is_dir()]
        missing += [
            file
            for epoch in past
            if epoch in self.spec.dev_epochs and not left.file(file := selection.development_file(epoch)).exists()
        ]
        if missing:
            raise JobError(
                f"{left.name} has lost {', '.join(missing)}.", "Start the preset anew.", code="checkpoint-incomplete"
            )
        if left.path != self.run_folder.path:
            for epoch in range(1, done // per_epoch + 1):
                if left.file(f"epoch-{epoch}").is_dir():  # the last may not have come to it: it is saved now
                    kept.copy_adapter(left.file(f"epoch-{epoch}"), self.run_folder.file(f"epoch-{epoch}"))
                file = selection.development_file(epoch)
                if left.file(file).exists():
                    write_atomic(self.run_folder.file(file), left.file(file).read_bytes())
        write_atomic(self.run_folder.file(TRAINING), b"".join(json_line(line) for line in lines))
        if left.path != self.run_folder.path:
            checkpoint.copy(left.file(CHECKPOINT), self.run_folder.file(CHECKPOINT))
            for line in lines:  # so that the curves are whole
                self._curves(line)
        self.context.events.note(f"resumes exactly from step {done} of {left.name}")

    # ── training ───────────────────────────────────────────────────────────────────────────────────────────────

    def _epoch(self, epoch: int) -> None:
        try:
            self._train(epoch)
        except sft.DivergedError as error:
            advice = "The last checkpoint and the finished epochs' adapters are whole. Lower lr, or take another seed."
            raise JobError(
                f"The training diverged in epoch {epoch}: {error}.",
                advice if self.course.done else model.at_once(self.course.model, self.spec.base),
                code="training-diverged",
            ) from None

    def _train(self, epoch: int) -> None:
        last = epoch * self.course.plan.steps_per_epoch
        for step in self.course.steps(last):
            self._took(step)
            if self.context.stopping():
                self._keep()
                raise Stopped({"note": f"stopped; a retry resumes from step {step.step}", "steps": step.step})
        folder = self.run_folder.file(f"epoch-{epoch}")
        if folder.exists() and self._judged(epoch):
            return  # finished by an earlier attempt
        self._keep()
        kept.save_adapter(self.course.model, folder, self._origin(epoch, last))
        moved = kept.moved(kept.changes(self.run_folder.file(START), folder))
        self.context.events.metric("weight change", moved, step=last)
        self.context.events.note(f"epoch {epoch}: adapter saved, weights only (a retry resumes from the checkpoint)")
        if not self._judged(epoch):
            develop(self, epoch)

    def _judged(self, epoch: int) -> bool:
        """Whether the epoch needs no development, or has had it."""
        file = self.run_folder.file(selection.development_file(epoch))
        return epoch not in self.spec.dev_epochs or file.exists()

    def _took(self, step: sft.SftStep) -> None:
        line = step.to_json()
        self.run_folder.append_jsonl(TRAINING, line)
        self._curves(line)
        if step.step % LOOK == 0:
            used = sft.memory_bytes(self.course.model)
            if used is not None:
                self.context.events.metric("GPU memory", used / 2**30, step=step.step, unit="GiB")
        if step.step % self.spec.checkpoint_every == 0:
            self._keep()
        note = f"epoch {step.epoch} of {self.spec.epochs}: loss {step.loss:.4f}, {step.seconds:.2f} s a step"
        self.context.events.progress(step.step, self.course.plan.steps, note=note)
        if step.step % LOOK == 0 or step.step == 1:
            at = f"step {step.step}/{self.course.plan.steps} · epoch {step.epoch}/{self.spec.epochs}"
            self.context.log(f"{at} · loss {step.loss:.4f} · {step.seconds:.2f} s")

    def _curves(self, line: dict[str, Any]) -> None:
        step = line["step"]
        self.context.events.metric("loss", line["loss"], step=step)
        self.context.events.metric("grad norm", line["grad_norm"], step=step)
        if step % LOOK == 0 or step == 1:  # the first: of a warm-up one sees where it began, not where it was at LOOK
            self.context.events.metric("learning rate", line["lr"], step=step)
            pace = line["tokens"] / max(line["seconds"], 1e-9)
            self.context.events.metric("training throughput", pace, step=step, unit="tok/s")

    def _origin(self, epoch: int, step: int) -> Provenance:
        return Provenance(
            prompt_sha256=self.prompt["prompt_sha256"],
            kind="repair" if self.spec.adapter else "sft",
            base=bases.base_name(self.spec.base),
            base_sha256=self.base_sha,
            precision=self.precision,
            rank=self.spec.rank,
            alpha=self.spec.alpha,
            data={self.dataset: self.digest},
            run=self.run_folder.name,
            parent_sha256=self.parent,
            step=step,
            epoch=epoch,
            seed=self.spec.seed,
            resumable=False,  # weights only: the optimizer's state is in the run's checkpoint, of its last step
        )

    def _memory(self) -> dict[str, Any]:
        """The measured peak of memory beside what was planned; nothing for a base whose sizes cannot be planned."""
        try:
            return say_peak(
                self.context,
                memory_plan(planned_work(self.spec, self.device != "cpu", self.context.places), self.device),
            )
        except LabError as error:
            self.context.events.note(f"memory was not planned: {error.message}", "warning")
            return {}

    def _settings(self) -> sft.SftTraining:
        s = self.spec
        return sft.SftTraining(s.rank, s.alpha, s.lr, s.warm_up, s.schedule, s.clip, s.seed, s.gradient_checkpointing)

    # ── after the last step ────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, frozen: dict[str, str]) -> dict[str, Any]:
        choice = selection.choose({epoch: read_rewards(self.run_folder, epoch) for epoch in self.spec.dev_epochs})
        adapter = kept.copy_adapter(self.run_folder.file(f"epoch-{choice.epoch}"), self.run_folder.file("adapter"))
        after = sft.frozen_sha256(self.course.model)
        moved = kept.changes(self.run_folder.file(START), adapter.path)
        self.run_folder.write_json(
            "weights.json",
            {
                "adapter_sha256": adapter.sha256,
                "epoch": choice.epoch,
                "tensors": [tensor.to_json() for tensor in moved],
                "changed": sum(tensor.most > 0 for tensor in moved),
                "unchanged": sum(tensor.most == 0 for tensor in moved),
                "visual_tensors_trained": sum("visual" in tensor.name for tensor in moved),
                "visual_tensors_changed": 0 if after["visual"] == frozen["visual"] else None,
                "frozen_before": frozen,
                "frozen_after": after,
            },
        )
        if after != frozen:
            raise JobError("Weights that should be frozen have changed: the adapter belongs to no known base.")
        self.context.events.emit(
            "weights", epoch=choice.epoch, change_l2={tensor.name: tensor.moved for tensor in moved}
        )
        still = [tensor.name for tensor in moved if tensor.most == 0]
        if still:
            self.context.events.note(f"{len(still)} of {len(moved)} tensors did not move ({still[0]}…)", "warning")
        tie = f" (equal with epoch {', '.join(map(str, choice.tied[1:]))})" if choice.tied[1:] else ""
        self.context.events.note(f"epoch {choice.epoch} is chosen by the frozen rule{tie}")
        final = list(self.run_folder.read_jsonl(TRAINING))[-1]
        outcome = self._outcome(choice)
        return {
            "adapter": str(adapter.path),
            "adapter_sha256": adapter.sha256,
            "parent_sha256": self.parent,
            "epoch": choice.epoch,
            "dev": {str(epoch): mean for epoch, mean in choice.means.items()},
            "dev_n": len(self.dev),
            "dev_label": selection.NOT_A_BASELINE,
            **({"outcome": outcome.to_json()} if outcome else {}),
            "steps": self.course.done,
            "final_loss": final["loss"],
            "seed": self.spec.seed,
            "base": bases.base_name(self.spec.base),
            "base_sha256": self.base_sha,
            "precision": self.precision,
            "data": {self.dataset: self.digest},
            "memory": self._memory(),
            "tensors_changed": sum(tensor.most > 0 for tensor in moved),
            "numbers_changed": f"{sum(t.changed for t in moved):,} of {sum(t.numbers for t in moved):,}",
            "visual_tensors_changed": 0,
        }

    def _outcome(self, choice: selection.Choice) -> TrainingOutcome | None:
        """Say whether the chosen epoch scores above the start; None where the start was not scored."""
        if not self.run_folder.file(selection.development_file(START_EPOCH)).exists():
            return None
        losses = [float(line["loss"]) for line in self.run_folder.read_jsonl(TRAINING)]
        samples = list(self.run_folder.read_jsonl(selection.development_file(choice.epoch)))
        outcome = training_outcome(
            read_rewards(self.run_folder, START_EPOCH),
            read_rewards(self.run_folder, choice.epoch),
            sft_causes(losses, self.spec.lr, samples),
            samples,
        )
        say_outcome(self.context, outcome)
        return outcome
